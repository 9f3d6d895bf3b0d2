//! HTTP/REST.
//!
//! ```text
//!   header ─▶ path ─▶ handle ─▶ describe, regions, control ───────────────────▶ reply
//!   body ─▶ coding ─▶ body ─▶ infer: infer_json, data ─▶ Front::infer ─▶ reply ─▶ coding
//! ```
//!
//! The front streams a body. It reads the JSON as a whole, up to a limit, and then each tensor into a buffer of its
//! own.

mod body;
mod buffer;
mod coding;
mod control;
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
pub(super) use reply::BodyChunks;
pub(super) use serve::{serve, serve_with};
