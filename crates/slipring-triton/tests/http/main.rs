//! HTTP: requests, errors, and regions of shared memory.

mod classification;
mod errors;
#[path = "../served/http.rs"]
mod http_served;
#[path = "../served/loadable.rs"]
mod loadable;
mod regions;
mod repository;
mod requests;
#[path = "../../../../tests/support/mod.rs"]
mod support;
