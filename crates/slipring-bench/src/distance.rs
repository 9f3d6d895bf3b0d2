//! How far the two CPUs are from each other, by a short bounce of the writable line.
//!
//! The host of a virtual machine moves the CPUs between places within seconds. A probe before and after each slice tells
//! for which distance the slice counts.

use crate::Outcome;
use crate::peer::{Peer, Slice, Slot};

/// How far the CPUs are from each other.
///
/// A table reports `Close` as near and never mixes the two. Where the CPUs are close, the bounce takes half as long, sealed
/// pages cost nothing, and streams run several times as fast: they seem to be two threads of one core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    /// The bounce takes less than 75 ns.
    Close,
    /// The bounce takes less than 200 ns: the CPUs share a cache.
    Near,
    /// The bounce takes longer.
    Far,
}

/// The number of distances.
pub const DISTANCES: usize = 3;

/// Nanoseconds of a round trip of the writable line. Measured: close 53 to 56, near 90 to 115, far 330 to 500.
const CLOSE_BELOW: f64 = 75.0;
const NEAR_BELOW: f64 = 200.0;

/// Counts of probes and slices in a run.
#[derive(Default)]
pub struct Tally {
    /// Probes that found the CPUs at each distance.
    pub probes: [u64; DISTANCES],
    /// Probes that found another distance than the probe before.
    pub moves: u64,
    /// Pairs of slices, or single slices where a run has no pairs.
    pub pairs: u64,
    /// Those of them that do not count.
    pub dropped: u64,
}

/// The line that is bounced between slices, and the distances that it has found.
pub struct Probe {
    line: Slot,
    last: Option<Distance>,
    /// Nanoseconds of each bounce at each distance.
    pub lines: [Vec<f64>; DISTANCES],
    /// Counts of the run.
    pub tally: Tally,
}

impl Probe {
    /// Opens the row with this index, which is that of the writable line.
    pub fn open(peer: &mut Peer, line: usize) -> Outcome<Probe> {
        let line = peer.open(line, 8)?;
        Ok(Probe { line, last: None, lines: Default::default(), tally: Tally::default() })
    }

    /// Returns the distance of the CPUs now. The least of four short batches counts, so that an interrupt in one of them
    /// does not look like a move.
    pub fn take(&mut self, peer: &mut Peer) -> Outcome<Distance> {
        let slice = Slice { variant: 0, warm: 16, count: 250, asleep: false };
        let mut least = f64::INFINITY;
        for _ in 0..4 {
            let elapsed = peer.run(self.line, slice)?;
            least = least.min(elapsed.as_nanos() as f64 / slice.count as f64);
        }
        let distance = match least {
            least if least < CLOSE_BELOW => Distance::Close,
            least if least < NEAR_BELOW => Distance::Near,
            _ => Distance::Far,
        };
        self.lines[distance as usize].push(least);
        self.tally.probes[distance as usize] += 1;
        self.tally.moves += u64::from(self.last.is_some_and(|last| last != distance));
        self.last = Some(distance);
        Ok(distance)
    }

    /// Returns the distance that the last probe found.
    pub fn last(&self) -> Option<Distance> {
        self.last
    }
}
