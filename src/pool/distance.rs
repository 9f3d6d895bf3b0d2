//! Near or far: whether the peers' cores share a cache with this process's cores.
//!
//! Why: which footprint is fastest depends on it. Cores that share a cache want what fits into that cache; for cores that
//! do not, a line that the peer has just read costs several times as much, and many blocks that have left its cache are
//! faster. On Zen 4 with CPUs far the far footprint takes 64 KiB from 47 to 24 µs, 1 MiB copied from 620 to 190 µs, and a
//! stream of 1 MiB from 2.5 to 7.5 GB/s against the near footprint kept (`docs/lab/2026-11-23-pool-footprint.md`). Which
//! it is changes as the kernel or a hypervisor moves threads, so a sender times how long a line takes to come: the peer's
//! position, which the peer's core stored last. `Options::pool_far_footprint` with the value of `Options::pool_footprint`
//! turns the difference off.

use std::time::Duration;

/// Near peers become far above this median, in nanoseconds. Source: `ping_pong --modes tensor-fill`, where a position takes
/// 40 to 50 ns near and 140 to 150 ns far, two readings of the clock included.
const FAR: u64 = 100;

/// Far peers become near below this median, in nanoseconds. Between the two they stay as they were.
const NEAR: u64 = 75;

/// How far one measurement moves the median, in nanoseconds. Two in a row make a near peer far. A mean would follow
/// interrupts and page walks, which are no distance.
const STEP: u64 = 32;

/// A running median of the distances of all peers of a pool.
#[derive(Debug, Default)]
pub(super) struct Distance {
    /// In nanoseconds.
    median: u64,
    is_far: bool,
}

impl Distance {
    /// Returns whether the peers are far. They are near until measured.
    pub(super) fn is_far(&self) -> bool {
        self.is_far
    }

    /// Adds a measurement. Returns whether the peers have become far, or near.
    pub(super) fn note(&mut self, took: Duration) -> bool {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.median = took.clamp(self.median.saturating_sub(STEP), self.median + STEP);
        let was_far = self.is_far;
        self.is_far = if was_far { self.median >= NEAR } else { self.median > FAR };
        self.is_far != was_far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_follows_the_median_and_not_the_outliers() {
        let mut distance = Distance::default();
        let mut note = |nanos| {
            let changed = distance.note(Duration::from_nanos(nanos));
            changed.then_some(distance.is_far())
        };
        for _ in 0..100 {
            assert_eq!(note(40), None);
        }
        for _ in 0..100 {
            for took in [1_000_000, 40, 40] {
                assert_eq!(note(took), None);
            }
        }
        assert_eq!((0..20).filter_map(|_| note(130)).collect::<Vec<_>>(), [true]);
        assert_eq!((0..20).filter_map(|_| note(90)).count(), 0);
        assert_eq!((0..40).filter_map(|_| note(40)).collect::<Vec<_>>(), [false]);
    }
}
