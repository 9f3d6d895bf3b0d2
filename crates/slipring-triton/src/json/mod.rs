//! JSON as clients of the protocol write it: with bare `NaN` and `Infinity`, with exact integers, at most 100 levels
//! deep.
//!
//! `jiter` reads it. One pass validates the whole text and keeps nothing. A [`Node`] is then a part of the text, which
//! is parsed on demand: a tensor's data goes from the text straight into its buffer. `serde_json` writes.

mod node;
mod validate;
mod write;

pub(super) use node::Node;
pub(super) use write::{float, value};
