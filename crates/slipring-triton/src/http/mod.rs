//! HTTP/REST.
//!
//! ```text
//!   head ─▶ path ─▶ handle ─▶ describe, verbs ─────────────────────────▶ reply
//!   body ─▶ coding ─▶ body ─▶ infer: head (JSON), data ─▶ Front::infer ─▶ reply ─▶ coding
//! ```
//!
//! A body is streamed: its JSON is read whole, up to a limit, and then each tensor into a buffer of its own, once.

mod body;
mod buffer;
mod coding;
mod data;
mod describe;
#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod handle;
mod infer;
mod infer_json;
mod path;
mod raw;
mod refusal;
mod regions;
mod reply;
mod serve;

pub use handle::router;
pub(super) use serve::serve;
