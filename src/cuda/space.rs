//! Free and taken ranges of an allocation. Numbers alone.

use std::collections::BTreeMap;

/// The alignment of ranges in bytes. `cuMemAlloc` promises 256 (CUDA C++ Programming Guide, "Size and
/// Alignment Requirement"). Two lines of 256 keep the writes of two peers apart.
pub(super) const ALIGNMENT: u64 = 512;

/// The free ranges of an allocation by their start. No two of them touch.
#[derive(Debug)]
pub(super) struct Space {
    len: u64,
    free: BTreeMap<u64, u64>,
}

impl Space {
    pub(super) fn new(len: u64) -> Self {
        Self { len, free: BTreeMap::from([(0, len)]) }
    }

    /// Returns whether no range is taken.
    pub(super) fn is_idle(&self) -> bool {
        self.free.get(&0) == Some(&self.len)
    }

    /// Returns the length of the shortest free range that holds `len` bytes.
    pub(super) fn fit(&self, len: u64) -> Option<u64> {
        self.free.values().copied().filter(|free| *free >= len).min()
    }

    /// Takes `len` bytes, a multiple of [`ALIGNMENT`], from the shortest free range that holds them. Returns
    /// their start.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let fit = self.fit(len)?;
        let (start, _) = self.free.iter().find(|(_, free)| **free == fit)?;
        let start = *start;
        self.free.remove(&start);
        if fit > len {
            self.free.insert(start + len, fit - len);
        }
        Some(start)
    }

    /// Returns a taken range.
    pub(super) fn put(&mut self, mut start: u64, mut len: u64) {
        if let Some((before, free)) = self.free.range(..start).next_back()
            && before + free == start
        {
            (start, len) = (*before, free + len);
            self.free.remove(&start);
        }
        if let Some(behind) = self.free.remove(&(start + len)) {
            len += behind;
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests;
