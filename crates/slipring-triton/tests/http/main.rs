//! HTTP: requests, errors, and regions of shared memory.

mod classification;
mod errors;
#[path = "../served/http.rs"]
mod http_served;
mod regions;
mod requests;
#[path = "../../../../tests/support/mod.rs"]
mod support;
