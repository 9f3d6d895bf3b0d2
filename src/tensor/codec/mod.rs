//! The bytes of a tensor: how they are made, read, and judged.
//!
//! The encoding is that of Triton's binary tensor data extension: elements one behind the other, the last
//! dimension fastest, little-endian, nothing between them and nothing behind them.
//!
//! ```text
//!   BOOL  [3]     01 00 01                              1 is true, 0 is false, all else is wrong
//!   INT16 [2]     01 00 │ fe ff                         1, -2
//!   BYTES [2]     02 00 00 00 68 69 │ 00 00 00 00       "hi", ""
//!                 └─ u32 len ─┘bytes
//! ```
//!
//! 1. A length that stands in the bytes is compared with what is left; nothing is allocated by it.
//! 2. What is malformed is an error that says where: the element, the byte, both numbers.
//! 3. All of it works on bytes that nobody changes. Bytes that a peer may still write are copied first.
//!
//! # Examples
//!
//! ```
//! use slipring::{DType, Shape, codec};
//!
//! let bytes = codec::encode_bytes(["hello", ""])?;
//! codec::check(DType::Bytes, &Shape::from([2, 1]), &bytes)?;
//! assert_eq!(codec::decode_bytes(&Shape::from([2, 1]), &bytes)?, [&b"hello"[..], b""]);
//!
//! let mut bytes = Vec::new();
//! codec::encode(&[1i16, -2], &mut bytes);
//! assert_eq!(bytes, [1, 0, 0xfe, 0xff]);
//! assert_eq!(codec::decode::<i16>(&bytes)?, [1, -2]);
//! # Ok::<(), slipring::Error>(())
//! ```

mod builder;
mod check;
mod elements;
mod values;

pub use builder::{BytesBuilder, encode_bytes, encoded_len};
pub use check::check;
pub use elements::{Elements, decode_bytes};
pub use values::{decode, decode_into, encode};
