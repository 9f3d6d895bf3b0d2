//! The descriptor of a message that lies in a pool block: what a record carries instead of it.

use crate::error::Fault;
use crate::pool::Loan;

/// Bytes of a descriptor.
pub(crate) const LEN: usize = 32;

/// What a message's offset is a multiple of, in bytes.
pub(crate) const ALIGNMENT: u64 = 64;

/// The slot of what is not lent.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// A range of a pool segment, and the loan to return when it was read.
///
/// ```text
///   0        4        8             16           24               32
///   │ segment│ slot   │ offset      │ len        │ generation     │
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoanDescriptor {
    pub(crate) segment: u32,
    pub(crate) slot: u32,
    /// Start in the segment, in bytes.
    pub(crate) offset: u64,
    /// The message's length in bytes.
    pub(crate) len: u64,
    pub(crate) generation: u64,
}

impl LoanDescriptor {
    pub(crate) fn new(loan: &Loan, len: u64) -> Self {
        let Loan { segment, slot, offset, generation } = *loan;
        Self { segment, slot, offset, len, generation }
    }

    /// A range of a frozen segment, of which nothing is lent.
    pub(crate) fn frozen(segment: u32, offset: u64, len: u64) -> Self {
        Self { segment, slot: NO_SLOT, offset, len, generation: 0 }
    }

    /// Whether the descriptor in these bytes is of such a range.
    pub(crate) fn is_frozen(bytes: &[u8]) -> bool {
        bytes.get(4..8) == Some(&NO_SLOT.to_le_bytes())
    }

    /// As [`encode`](Self::encode), as little-endian words.
    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; 4] {
        let first = u64::from(self.segment) | u64::from(self.slot) << 32;
        [first, self.offset, self.len, self.generation].map(u64::to_le)
    }

    /// As [`decode`](Self::decode), of little-endian words.
    #[inline(always)]
    pub(crate) fn of_words(words: [u64; 4]) -> Self {
        let [first, offset, len, generation] = words.map(u64::from_le);
        Self { segment: first as u32, slot: (first >> 32) as u32, offset, len, generation }
    }

    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&self.segment.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..].copy_from_slice(&self.generation.to_le_bytes());
        bytes
    }

    /// Takes a private copy of a peer's descriptor apart. Nothing in it is checked yet.
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

    /// Judges what can be judged without the segment. `max` is the length of the longest message.
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

    /// The range, if it lies inside of a segment of `capacity` bytes.
    #[inline(always)]
    pub(crate) fn range_in(&self, capacity: u64) -> Result<(usize, usize), Fault> {
        let Self { offset, len, .. } = *self;
        if offset > capacity || len > capacity - offset {
            return Err(Fault::SegmentRange { offset, len, capacity });
        }
        Ok((offset as usize, len as usize))
    }

    /// Judges where the range starts.
    pub(crate) fn check_offset(&self) -> Result<(), Fault> {
        if !self.offset.is_multiple_of(ALIGNMENT) {
            return Err(Fault::Field { field: "pooled.offset", value: self.offset });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_survives_its_bytes() {
        let pooled =
            LoanDescriptor { segment: 7, slot: 255, offset: 1 << 40, len: 3, generation: u64::MAX };
        assert_eq!(LoanDescriptor::decode(&pooled.encode()), pooled);
    }
}
