//! What holds for every wire: how models execute, how connections end, what both protocols say alike.

mod connections;
mod execution;
#[path = "../served/grpc.rs"]
mod grpc_served;
#[path = "../served/http.rs"]
mod http_served;
mod protocol;
#[path = "../../../../tests/support/mod.rs"]
mod support;
