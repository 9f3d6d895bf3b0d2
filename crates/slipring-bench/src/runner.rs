//! One row at one size, open on both sides: the length of its slices, its best variant, and the figures of its slices at
//! each distance of the CPUs.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Outcome;
use crate::distance::{DISTANCES, Distance};
use crate::floors::futex;
use crate::peer::{Peer, Slice, Slot};
use crate::rows::Rows;

/// The time of a slice. It is short against the seconds between two moves of the CPUs.
const SLICE: Duration = Duration::from_millis(3);
/// The time of a slice in which a round trip is a wake-up or longer, so that the slice has some dozens of them.
const LONG_SLICE: Duration = Duration::from_millis(8);
/// The least number of round trips in a slice where one takes less than `SHORT` nanoseconds. Elsewhere (bulk, sleep,
/// connect) a slice has as many as fit in its time, and two at least.
const LEAST: u64 = 1000;
const SHORT: f64 = 3000.0;

/// How a slice is made, and what its figure is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Round trips are timed as a whole. Slices of their own give the tails.
    Batches,
    /// Messages one way are timed as a whole. There are no tails.
    Stream,
    /// Round trips of many microseconds, in which a stamp does not show. Each is stamped, and their median is the figure.
    Each,
    /// As `Each`, with both sides asleep. `lead` and `follow` call `futex::idle` before they send, and that time is taken
    /// out. Slices in which fewer than nine in ten waits slept do not count.
    Asleep,
}

impl Pace {
    /// Returns the time that each round trip idles.
    pub fn idle(self) -> Duration {
        if self == Pace::Asleep { futex::GAP * 2 } else { Duration::ZERO }
    }
}

/// One row at one size, open on both sides.
pub struct Runner {
    /// Index among the program's rows.
    pub index: usize,
    /// Bytes of payload.
    pub bytes: usize,
    /// How its slices are made.
    pub pace: Pace,
    slot: Slot,
    /// Its variants.
    pub variants: Vec<u64>,
    /// The last mean of each variant, which gives the count of the next slice.
    means: Vec<f64>,
    /// What is known at each distance.
    pub figures: [Figures; DISTANCES],
}

/// The figures of one row at one size at one distance of the CPUs.
pub struct Figures {
    /// Nanoseconds of a round trip, or of a message in streams: one value a slice.
    pub slices: Vec<f64>,
    /// Nanoseconds of all slices together, and their round trips. The mean is their quotient.
    time: f64,
    trips: u64,
    /// Stamps of single round trips, in nanoseconds.
    pub stamps: Histogram<u64>,
    /// The best variant, after the calibration.
    pub best: Option<u64>,
    /// Slices of each variant in the calibration.
    pub trials: Vec<Vec<f64>>,
}

/// The result of a slice. `stamps` is empty if it was timed as a whole.
pub struct Done {
    /// Nanoseconds of a round trip or message.
    pub value: f64,
    /// Nanoseconds of all round trips together, without what they idle.
    time: f64,
    trips: u64,
    stamps: Vec<u64>,
}

impl Runner {
    /// Opens a row on both sides.
    pub fn open(peer: &mut Peer, index: usize, bytes: usize) -> Outcome<Runner> {
        let rows: &dyn Rows = peer.rows();
        let (pace, variants) = (rows.pace(index), rows.variants(index, bytes));
        let slot = peer.open(index, bytes)?;
        let figures =
            [Figures::new(&variants)?, Figures::new(&variants)?, Figures::new(&variants)?];
        let means = vec![f64::NAN; variants.len()];
        Ok(Runner { index, bytes, pace, slot, variants, means, figures })
    }

    /// Closes the row on both sides.
    pub fn close(&self, peer: &mut Peer) {
        peer.close(self.slot);
    }

    /// Returns the index of the best variant at a distance.
    pub fn choice(&self, distance: Distance) -> usize {
        self.figures[distance as usize].best.unwrap_or(0) as usize
    }

    /// Runs one slice. Returns `None` if a side that was to sleep stayed awake.
    pub fn slice(
        &mut self,
        peer: &mut Peer,
        variant: usize,
        stamped: bool,
    ) -> Outcome<Option<Done>> {
        let pace = self.pace;
        let mut slice = Slice {
            variant: self.variants[variant],
            warm: 0,
            count: 2,
            asleep: pace == Pace::Asleep,
        };
        let idle = pace.idle().as_nanos() as f64;
        if self.means[variant].is_nan() {
            // The first slice of a variant brings its pages and lines in, too.
            slice.count = if idle > 0.0 || pace == Pace::Each { 4 } else { 16 };
            let elapsed = peer.run(self.slot, slice)?.as_nanos() as f64;
            self.means[variant] = (elapsed / slice.count as f64).max(1.0);
        }
        let mean = self.means[variant];
        let target = if mean < SHORT { SLICE } else { LONG_SLICE };
        let least = if mean < SHORT { LEAST } else { 2 };
        slice.count = ((target.as_nanos() as f64 / mean) as u64).max(least);
        slice.warm = (slice.count / 8).max(1);
        let single = matches!(pace, Pace::Each | Pace::Asleep);
        if single || (stamped && pace != Pace::Stream) {
            let (mut stamps, slept) = peer.run_stamped(self.slot, slice)?;
            let total: u64 = stamps.iter().sum();
            self.means[variant] = total as f64 / slice.count as f64;
            for stamp in &mut stamps {
                *stamp = stamp.saturating_sub(idle as u64);
            }
            if slice.asleep && slept * 10 < slice.count * 2 * 9 {
                return Ok(None);
            }
            let value = if single { middle(&stamps) } else { f64::NAN };
            let time = stamps.iter().sum::<u64>() as f64;
            return Ok(Some(Done { value, time, trips: slice.count, stamps }));
        }
        let elapsed = peer.run(self.slot, slice)?.as_nanos() as f64;
        self.means[variant] = elapsed / slice.count as f64;
        let (value, trips) = (self.means[variant], slice.count);
        Ok(Some(Done { value, time: elapsed, trips, stamps: Vec::new() }))
    }

    /// Counts the result of a slice.
    pub fn keep(&mut self, distance: Distance, done: Option<Done>) -> Outcome<()> {
        let Some(done) = done else { return Ok(()) };
        let figures = &mut self.figures[distance as usize];
        if !done.value.is_nan() {
            figures.slices.push(done.value);
            figures.time += done.time;
            figures.trips += done.trips;
        }
        for stamp in done.stamps {
            figures.stamps.record(stamp)?;
        }
        Ok(())
    }
}

impl Figures {
    fn new(variants: &[u64]) -> Outcome<Figures> {
        Ok(Figures {
            slices: Vec::new(),
            time: 0.0,
            trips: 0,
            stamps: Histogram::new(3)?,
            best: None,
            trials: vec![Vec::new(); variants.len()],
        })
    }

    /// Returns the mean of all round trips in `slices`, in nanoseconds.
    pub fn mean(&self) -> f64 {
        self.time / self.trips as f64
    }

    /// Selects the variant with the least median, if all have been tried twice.
    pub fn choose(&mut self) {
        if self.trials.iter().all(|trials| trials.len() >= 2) {
            let medians = self.trials.iter().map(|trials| median(trials).unwrap_or(f64::NAN));
            let best = medians.enumerate().min_by(|(_, one), (_, other)| one.total_cmp(other));
            self.best = best.map(|(index, _)| index as u64);
        }
    }
}

/// Returns the median, or `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[half]),
        _ => Some(f64::midpoint(sorted[half - 1], sorted[half])),
    }
}

fn middle(stamps: &[u64]) -> f64 {
    let mut sorted = stamps.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).map_or(f64::NAN, |stamp| *stamp as f64)
}
