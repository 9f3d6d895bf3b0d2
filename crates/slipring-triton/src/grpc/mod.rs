//! gRPC: the protocol's service as a tonic service, and connections that serve it.
//!
//! ```text
//!   HTTP/2 ─▶ scatter_gather ─▶ codec ─▶ calls, stream ─▶ request, contents ─▶ Front::infer
//!             (frames)          (protobuf)                (InferRequest)            │
//!             inflate                    response ◀─────────────────────────────────┘
//! ```
//!
//! Long messages pass tonic by from `scatter_gather` to `codec` (`long_messages`), and long tensors of responses from `codec`
//! to `response_body` (`tail`).
//!
//! 1. Memory for a message grows with the bytes that arrive, whatever length the message claims. All of it is charged,
//!    also
//!    that of the decompressed and the decoded message.
//! 2. The decoded size of a message is computed before it is decoded. A message that grows many times is refused.
//! 3. Raw contents are slices of their message, without a copy.
//! 4. A status carries the text of a refusal, shortened to what clients accept in headers.

mod answer;
mod calls;
mod codec;
mod connections;
mod contents;
mod control;
mod deadline_body;
mod decoupled;
#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod generated;
mod inflate;
mod long_messages;
mod message_size;
mod parameters;
mod progress;
mod refusal;
mod request;
mod response;
mod response_body;
mod scatter_gather;
mod service;
mod stream;
#[cfg(fuzzing)]
pub(super) mod stream_fuzzing;
mod tail;

pub(super) use connections::serve;
pub use service::{GrpcHealth, GrpcService};
