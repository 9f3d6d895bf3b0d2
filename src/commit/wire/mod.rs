//! The messages between client and server: kinds, fields, and fault codes. No I/O. `docs/wire.md` specifies the bytes.

mod encoding;
mod fault;
pub(super) mod message;
