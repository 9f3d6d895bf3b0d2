//! The bytes of a tensor: writing, reading and checking them.
//!
//! The encoding is that of Triton's binary tensor data extension: elements in row-major order, little-endian, with
//! nothing between them and nothing after them.
//!
//! ```text
//!   BOOL  [3]     01 00 01                              1 is true, 0 is false, any other byte is a fault
//!   INT16 [2]     01 00 │ fe ff                         1, -2
//!   BYTES [2]     02 00 00 00 68 69 │ 00 00 00 00       "hi", ""
//!                 └─ u32 len ─┘bytes
//! ```
//!
//! 1. A length in the bytes is compared with the bytes that are left. Nothing is allocated by it.
//! 2. A fault gives the element, the byte, and both numbers.
//! 3. The functions read bytes that nobody changes. Bytes that a peer can write are copied first.

mod builder;
mod check;
mod elements;
mod values;

pub use builder::BytesBuilder;
pub(super) use check::check_tensor;
pub use elements::BytesElements;
pub(super) use values::{decode, decode_into, encode};
