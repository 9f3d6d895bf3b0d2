//! What requests and responses take of the server's memory, and what clients do to theirs.

mod answers;
#[path = "../served/grpc.rs"]
mod grpc_served;
#[path = "../served/http.rs"]
mod http_served;
#[path = "../../../../tests/support/mod.rs"]
mod support;
mod tensors;
mod truncated;
