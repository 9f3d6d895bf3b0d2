//! gRPC: calls and errors.

mod calls;
mod classification;
mod decoupled;
mod decoupled_limits;
#[path = "../served/decoupled.rs"]
mod decoupled_served;
mod errors;
#[path = "../served/grpc.rs"]
mod grpc_served;
#[path = "../served/http.rs"]
mod http_served;
#[path = "../served/loadable.rs"]
mod loadable;
mod own_server;
mod repository;
#[path = "../../../../tests/support/mod.rs"]
mod support;
#[cfg(feature = "traces")]
mod traces;
