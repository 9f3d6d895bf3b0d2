//! The processes of this machine that use slipring, as their status pages and `/proc` tell of them.
//!
//! ```text
//!   /proc/PID/fd ──▶ page ──▶ rows ┐
//!   /proc/PID/maps ─────▶ maps ────┼──▶ scene: processes, and links whose two sides agree
//!   /proc/PID/stat ─────▶ process ─┘
//! ```
//!
//! 1. A page is its owner's word. What is not confirmed by the kernel or by the other side is marked.
//! 2. A page is a file that its owner may change at any moment: it is copied, and the copy is judged.
//! 3. No more than a bounded part of what a process shows is read.

mod address;
mod descriptors;
mod listening;
mod maps;
mod owner;
mod page;
mod scene;

pub(crate) use address::{address_of, sun_path};
pub(crate) use listening::{Listening, Socket};
pub(crate) use owner::Owner;
pub(crate) use scene::{Scene, Side, Trust};
