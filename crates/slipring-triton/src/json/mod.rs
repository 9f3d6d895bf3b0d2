//! JSON as clients of the protocol write it: with bare `NaN` and `Infinity`, numbers that are told apart as they
//! are written, at most 100 levels deep.
//!
//! `jiter` reads it. A text is judged once as a whole, in one pass that keeps nothing. After that a [`Node`] is a part
//! of the text, looked at where it is needed: a tensor's data goes from the text straight into its buffer, however long
//! it is. `serde_json` writes.

mod node;
mod validate;
mod write;

pub(super) use node::Node;
pub(super) use write::{float, value};
