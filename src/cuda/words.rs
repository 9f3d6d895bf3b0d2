//! The words of a chunk: one for each place where a range can start. Numbers alone.
//!
//! ```text
//!   0                               room                       length
//!   │ ranges of tensors             │ word │ word │ …          │
//!              ▲ range at 512 · n          ▲ room + 8 · n
//! ```
//!
//! A word lies behind all ranges, so no bytes of a tensor ever stand in it. It only rises, and a range that is used again
//! has a higher value than before.

use crate::cuda::space::ALIGNMENT;

/// Bytes of a word.
pub(super) const WORD: u64 = 8;

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
