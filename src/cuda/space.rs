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

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_never_meet_and_all_come_back(
            acts in proptest::collection::vec((any::<bool>(), 1u64..40, any::<usize>()), 1..200),
        ) {
            let len = 64 * ALIGNMENT;
            let mut space = Space::new(len);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, blocks, which) in acts {
                if take {
                    let wanted = blocks * ALIGNMENT;
                    let Some(start) = space.take(wanted) else { continue };
                    prop_assert!(start + wanted <= len);
                    for (other, length) in &taken {
                        prop_assert!(start + wanted <= *other || other + length <= start);
                    }
                    taken.push((start, wanted));
                } else if !taken.is_empty() {
                    let (start, length) = taken.swap_remove(which % taken.len());
                    space.put(start, length);
                }
                let used: u64 = taken.iter().map(|(_, length)| length).sum();
                prop_assert_eq!(space.free.values().sum::<u64>(), len - used);
            }
            for (start, length) in taken {
                space.put(start, length);
            }
            prop_assert!(space.is_idle());
        }
    }

    #[test]
    fn a_range_is_taken_where_it_leaves_the_least() {
        let mut space = Space::new(10 * ALIGNMENT);
        let [a, b, c] = [4, 1, 2].map(|blocks| space.take(blocks * ALIGNMENT).unwrap());
        assert_eq!((a, b, c), (0, 4 * ALIGNMENT, 5 * ALIGNMENT));
        space.put(a, 4 * ALIGNMENT);
        // Three are left at the end, four at the start.
        assert_eq!(space.take(3 * ALIGNMENT), Some(7 * ALIGNMENT));
        assert_eq!(space.take(5 * ALIGNMENT), None);
    }
}
