//! Memory: the bytes that requests and responses take of the server, and clients that truncate theirs.

mod answers;
mod bombs;
#[path = "../served/grpc.rs"]
mod grpc_served;
#[path = "../served/http.rs"]
mod http_served;
mod process;
#[path = "../../../../tests/support/mod.rs"]
mod support;
mod tensors;
mod truncated;
