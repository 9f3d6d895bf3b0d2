//! Recordings of topics: files in the format MCAP (<https://mcap.dev/spec>), with the records that streaming needs.
//!
//! ```text
//!   magic │ Header │ Channel … │ Message … │ DataEnd │ Footer │ magic
//!   record:  u8 opcode │ u64 length │ content
//!   Message: u16 channel │ u32 sequence │ u64 log time │ u64 publish time │ data
//!   data:    u32 length │ JSON head │ the bytes of the message, or of its tensors one after the other
//! ```
//!
//! 1. Every record is written once and whole, so a file that ends anywhere is read up to there. Nothing is kept for the end of the
//!    file: an index, which MCAP's tools make later (`mcap recover`), would grow with the recording.
//! 2. A topic is a channel with the message encoding `slipring`. All channels come before the first message.
//! 3. Times are nanoseconds of the system's clock at the receive.

mod head;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use head::Head;
pub(crate) use reader::{Event, Reader};
pub(crate) use writer::Writer;

const MAGIC: &[u8; 8] = b"\x89MCAP0\r\n";

const HEADER: u8 = 0x01;
const FOOTER: u8 = 0x02;
const CHANNEL: u8 = 0x04;
const MESSAGE: u8 = 0x05;
const CHUNK: u8 = 0x06;
const DATA_END: u8 = 0x0f;

/// The message encoding of a channel.
const ENCODING: &str = "slipring";

/// Bytes of a message before its data.
const MESSAGE_HEAD: u64 = 2 + 4 + 8 + 8;
