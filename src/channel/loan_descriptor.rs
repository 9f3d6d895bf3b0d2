//! The loan descriptor: 32 bytes in a record that name a range of a pool segment.
//!
//! 1. A sender writes it for a message or tensor in its pool. The receiver copies it once and checks the copy.
//! 2. [`LoanDescriptor::check`] and [`LoanDescriptor::range_in`] together make it safe to use: the first needs no
//!    segment, the second the segment's length.

use crate::error::Fault;
use crate::pool::Loan;

/// The length of a descriptor, in bytes.
pub(crate) const LEN: usize = 32;

/// The alignment of a range in its segment, in bytes.
pub(crate) const ALIGNMENT: u64 = 64;

/// The slot of a range that is not lent.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// A range of a pool segment, and the loan that the receiver returns after it has read the range.
///
/// ```text
///   0        4        8             16           24               32
///   │ segment│ slot   │ offset      │ len        │ generation     │
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoanDescriptor {
    /// The number of the segment, as announced over the control socket.
    pub(crate) segment: u32,
    /// The loan slot that the receiver returns, or [`NO_SLOT`].
    pub(crate) slot: u32,
    /// The start of the range in the segment, in bytes; a multiple of [`ALIGNMENT`].
    pub(crate) offset: u64,
    /// The length of the range, in bytes.
    pub(crate) len: u64,
    /// The generation that the receiver writes into its return slot.
    pub(crate) generation: u64,
}

impl LoanDescriptor {
    /// Returns the descriptor of the first `len` bytes of a loan.
    pub(crate) fn new(loan: &Loan, len: u64) -> Self {
        let Loan { segment, slot, offset, generation } = *loan;
        Self { segment, slot, offset, len, generation }
    }

    /// Returns the descriptor of a range of a frozen segment, which is not lent.
    pub(crate) fn frozen(segment: u32, offset: u64, len: u64) -> Self {
        Self { segment, slot: NO_SLOT, offset, len, generation: 0 }
    }

    /// Returns whether the descriptor in these bytes names a range of a frozen segment.
    pub(crate) fn is_frozen(bytes: &[u8]) -> bool {
        bytes.get(4..8) == Some(&NO_SLOT.to_le_bytes())
    }

    /// Returns the bytes of [`encode`](Self::encode) as little-endian words.
    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; 4] {
        let first = u64::from(self.segment) | u64::from(self.slot) << 32;
        [first, self.offset, self.len, self.generation].map(u64::to_le)
    }

    /// Takes a descriptor apart as [`decode`](Self::decode) does, from little-endian words.
    #[inline(always)]
    pub(crate) fn of_words(words: [u64; 4]) -> Self {
        let [first, offset, len, generation] = words.map(u64::from_le);
        Self { segment: first as u32, slot: (first >> 32) as u32, offset, len, generation }
    }

    /// Returns the bytes that a record carries.
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&self.segment.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..].copy_from_slice(&self.generation.to_le_bytes());
        bytes
    }

    /// Takes a private copy of a peer's descriptor apart. It checks nothing.
    pub(crate) fn decode(bytes: &[u8; LEN]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            segment: word(0) as u32,
            slot: (word(0) >> 32) as u32,
            offset: word(8),
            len: word(16),
            generation: word(24),
        }
    }

    /// Checks the length, the slot and the offset. `max` is the longest length, `slots` the count of loan slots.
    ///
    /// # Errors
    ///
    /// [`Fault::MessageLength`], [`Fault::LoanSlot`], [`Fault::Field`].
    pub(crate) fn check(&self, max: u64, slots: u32) -> Result<(), Fault> {
        let Self { slot, len, .. } = *self;
        if len > max {
            return Err(Fault::MessageLength { len, max });
        }
        if slot >= slots {
            return Err(Fault::LoanSlot { slot: slot.into(), slots: slots.into() });
        }
        self.check_offset()
    }

    /// Returns the range as offset and length in bytes, if it lies within a segment of `capacity` bytes.
    ///
    /// # Errors
    ///
    /// [`Fault::SegmentRange`]: it does not.
    #[inline(always)]
    pub(crate) fn range_in(&self, capacity: u64) -> Result<(usize, usize), Fault> {
        let Self { offset, len, .. } = *self;
        if offset > capacity || len > capacity - offset {
            return Err(Fault::SegmentRange { offset, len, capacity });
        }
        Ok((offset as usize, len as usize))
    }

    /// Checks that the offset is a multiple of [`ALIGNMENT`].
    ///
    /// # Errors
    ///
    /// [`Fault::Field`]: it is not.
    pub(crate) fn check_offset(&self) -> Result<(), Fault> {
        if !self.offset.is_multiple_of(ALIGNMENT) {
            return Err(Fault::Field { field: "pooled.offset", value: self.offset });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
