//! A range of bytes with checked arithmetic.

use crate::error::RegionFault;

/// `len` bytes from `offset` on. Their end is at most 2^64 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    offset: u64,
    len: u64,
}

impl Extent {
    pub(super) fn new(offset: u64, len: u64) -> Result<Self, RegionFault> {
        match offset.checked_add(len) {
            Some(_) => Ok(Self { offset, len }),
            None => Err(RegionFault::Overflow { offset, len }),
        }
    }

    pub(super) fn offset(self) -> u64 {
        self.offset
    }

    pub(super) fn len(self) -> u64 {
        self.len
    }

    pub(super) fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Returns whether the two ranges share a byte.
    pub(super) fn meets(self, other: Self) -> bool {
        self.offset.max(other.offset) < self.end().min(other.end())
    }

    /// Checks that the range lies inside of `size` bytes.
    pub(super) fn inside(self, size: u64) -> Result<Self, RegionFault> {
        let Self { offset, len } = self;
        if offset > size {
            Err(RegionFault::Offset { offset, size })
        } else if self.end() > size {
            Err(RegionFault::Range { offset, len, size })
        } else {
            Ok(self)
        }
    }

    /// Returns the `len` bytes at `offset` of this range, relative to the same start as this range.
    pub(super) fn part(self, offset: u64, len: u64) -> Result<Self, RegionFault> {
        let part = Self::new(offset, len)?.inside(self.len)?;
        // The part lies inside of this range, so the sum does not wrap.
        Ok(Self { offset: self.offset + part.offset, len })
    }
}

#[cfg(test)]
mod tests;
