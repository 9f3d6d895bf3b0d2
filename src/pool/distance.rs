//! How far away the peers' cores are, by how long their lines take to come.
//!
//! Two cores that share a cache hand a line over in well under 100 ns; cores of different caches or
//! sockets take several times as long, and there writing lines that the peer has just read is so
//! slow that a footprint past the cache is faster. Which it is depends on where the threads run, and
//! can change under them.

use std::time::Duration;

/// Above this a peer is far. Source: `ping_pong --modes inplace`, where the load of a fresh line
/// takes 60 to 120 ns near and 220 to 300 ns far, two readings of the clock included.
const FAR: u64 = 180;
/// Below this it is near; between the two it stays what it was.
const NEAR: u64 = 140;

/// One measurement counts at most this, in nanoseconds: an interrupt is no distance.
const MOST: u64 = 500;

/// A running mean of distances, of all peers of a pool.
#[derive(Debug, Default)]
pub(super) struct Distance {
    /// Eight times the mean, in nanoseconds.
    sum: u64,
    is_far: bool,
}

impl Distance {
    /// Takes in a measurement. `Some`: the peers have become far, or near.
    pub(super) fn note(&mut self, took: Duration) -> Option<bool> {
        let took = u64::try_from(took.as_nanos()).unwrap_or(MOST).min(MOST);
        self.sum = self.sum - self.sum / 8 + took;
        let (mean, was_far) = (self.sum / 8, self.is_far);
        self.is_far = if was_far { mean >= NEAR } else { mean > FAR };
        (self.is_far != was_far).then_some(self.is_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_follows_the_mean_and_not_the_outlier() {
        let mut distance = Distance::default();
        let mut note = |nanos| distance.note(Duration::from_nanos(nanos));
        for _ in 0..100 {
            assert_eq!(note(80), None);
        }
        assert_eq!(note(1_000_000), None);
        assert_eq!((0..20).filter_map(|_| note(260)).collect::<Vec<_>>(), [true]);
        assert_eq!((0..20).filter_map(|_| note(160)).collect::<Vec<_>>(), []);
        assert_eq!((0..40).filter_map(|_| note(80)).collect::<Vec<_>>(), [false]);
    }
}
