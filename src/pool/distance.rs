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

/// A peer is near if the fastest of the latest loads took less, in nanoseconds. Source: `ping_pong --modes copy`, where
/// a position takes 30 to 50 ns near and 140 to 180 ns far, two readings of the clock included. Near, too, one in three
/// takes 160 ns behind a copy of 1 MiB, which has driven the line out of the caches.
const NEAR: u64 = 90;

/// How many loads are kept.
const KEPT: usize = 8;

/// The distances of a pool's peers.
#[derive(Debug, Default)]
pub(super) struct Distance {
    /// What the latest loads took, in nanoseconds.
    latest: [u64; KEPT],
    /// Where the next one goes.
    next: usize,
}

impl Distance {
    /// Returns whether the peers are far. They are near until measured.
    pub(super) fn is_far(&self) -> bool {
        self.latest.iter().all(|took| *took >= NEAR)
    }

    /// Adds a measurement. Returns whether the peers have become far, or near.
    pub(super) fn note(&mut self, took: Duration) -> bool {
        let was_far = self.is_far();
        self.latest[self.next] = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.next = (self.next + 1) % KEPT;
        self.is_far() != was_far
    }
}

#[cfg(test)]
mod tests;
