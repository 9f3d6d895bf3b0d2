//! How far away the peers' cores are, by how long their lines take to come.
//!
//! Two cores that share a cache hand a line over in well under 100 ns; cores of different caches or
//! sockets take several times as long, and there writing lines that the peer has just read is so
//! slow that a footprint past the cache is faster. Which it is depends on where the threads run, and
//! can change under them.

use std::time::Duration;

/// Above this a peer is far. Source: `ping_pong --modes tensor-fill`, where a peer's position takes 40 to 50 ns near and
/// 140 to 150 ns far, two readings of the clock included.
const FAR: u64 = 100;
/// Below this it is near; between the two it stays what it was.
const NEAR: u64 = 75;

/// How far one measurement moves the estimate, in nanoseconds: so it settles where half of them lie
/// above and half below, and two in a row make a near peer far. A mean would be moved by what is no distance:
/// interrupts, page walks.
const STEP: u64 = 32;

/// A running median of distances, of all peers of a pool.
#[derive(Debug, Default)]
pub(super) struct Distance {
    /// The estimate, in nanoseconds.
    median: u64,
    is_far: bool,
}

impl Distance {
    /// Takes in a measurement. `Some`: the peers have become far, or near.
    pub(super) fn note(&mut self, took: Duration) -> Option<bool> {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.median = took.clamp(self.median.saturating_sub(STEP), self.median + STEP);
        let was_far = self.is_far;
        self.is_far = if was_far { self.median >= NEAR } else { self.median > FAR };
        (self.is_far != was_far).then_some(self.is_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_follows_the_most_and_not_the_outliers() {
        let mut distance = Distance::default();
        let mut note = |nanos| distance.note(Duration::from_nanos(nanos));
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
