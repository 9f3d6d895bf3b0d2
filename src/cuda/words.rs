//! The words of a chunk: one for each place where a range can start. Numbers alone.
//!
//! ```text
//!   0                               room                       length
//!   │ ranges of tensors             │ word │ word │ …          │
//!              ▲ range at 512 · n          ▲ room + 8 · n
//! ```
//!
//! A word lies behind all ranges, so no bytes of a tensor ever stand in it. It only rises, and a range that is used again
//! has a higher value than before. When the writer's process has ended before it wrote a value, a reader writes one in its
//! place that is higher by [`UNWRITTEN`].

use crate::cuda::space::ALIGNMENT;

/// Bytes of a word.
const WORD: u64 = 8;

/// How much more than its value a word has whose writer ended before. The comparison of `CU_STREAM_WAIT_VALUE_GEQ` is that of
/// signed differences (`cuda.h`), for which this is more, and half of the most.
pub(super) const UNWRITTEN: u64 = 1 << 62;

/// What a reader finds in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The value is not written.
    Less,
    /// The value is written, or a later one.
    Value,
    /// A reader has written it in place of the writer, who has ended.
    Unwritten,
}

/// Returns what a word says of a value that is awaited.
pub(super) fn found(word: u64, value: u64) -> Found {
    // As the driver compares them. A writer counts its values from 1 and gets nowhere near half of the difference.
    match word.wrapping_sub(value) as i64 {
        ..0 => Found::Less,
        more if more < UNWRITTEN as i64 / 2 => Found::Value,
        _ => Found::Unwritten,
    }
}

/// Bytes of a range and of its word.
const BOTH: u64 = ALIGNMENT + WORD;

/// Returns the bytes for ranges of a chunk of `len` bytes.
pub(super) fn room(len: u64) -> u64 {
    len / BOTH * ALIGNMENT
}

/// Returns the length of a chunk that has room for a range of `len` bytes, or `None` if it is too long for a number.
pub(super) fn whole(len: u64) -> Option<u64> {
    len.max(1).div_ceil(ALIGNMENT).checked_mul(BOTH)
}

/// Returns the start of the word of the range at `offset`, in a chunk of `len` bytes.
pub(super) fn word_of(len: u64, offset: u64) -> u64 {
    room(len) + offset / ALIGNMENT * WORD
}

#[cfg(test)]
mod tests;
