//! gRPC: the protocol's service as a tonic service, and connections that serve it.
//!
//! ```text
//!   HTTP/2 ─▶ gathered ──▶ codec ─▶ calls, stream ─▶ request, contents ─▶ Front::infer
//!             (frames)     (protobuf)                (InferRequest)            │
//!             inflate               response ◀──────────────────────────────┘
//! ```
//!
//! 1. Memory for a message is taken as its bytes come, whatever length it claims, and counted; so is what it becomes
//!    when it is made plain and decoded.
//! 2. A message is weighed before it is decoded: what takes many times its size in memory is refused.
//! 3. Raw contents are cut out of their message, and not copied.
//! 4. A status has the text of a refusal, and no more of it than a client's headers hold.

mod calls;
mod codec;
mod connections;
mod contents;
#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod generated;
mod inflate;
mod message_size;
mod parameters;
mod refusal;
mod request;
mod response;
mod response_body;
mod scatter_gather;
mod service;
mod stream;

pub(super) use connections::serve;
pub use service::{GrpcHealth, GrpcService};
