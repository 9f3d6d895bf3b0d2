//! One row at one size, open on both sides: how long its slices are, which variant is best, what its
//! slices said in each state.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Outcome;
use crate::floors::futex;
use crate::peer::{Peer, Slice, Slot};
use crate::rows::Rows;
use crate::state::{STATES, State};

/// How long a slice should take: short against the seconds between two moves of the CPUs.
const SLICE: Duration = Duration::from_millis(3);
/// The same where a round trip is a wake-up or longer, so that a slice has some dozens of them.
const LONG_SLICE: Duration = Duration::from_millis(8);
/// Round trips a slice has at least where one takes less than `SHORT`; elsewhere (bulk, sleep,
/// connect) a slice has as many as fit in its time, two at the least.
const LEAST: u64 = 1000;
const SHORT: f64 = 3000.0;

/// How a slice is made and what it says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Round trips timed as a whole; tails from slices of their own.
    Batches,
    /// One way: messages timed as a whole. No tails.
    Stream,
    /// Round trips of many microseconds: each is stamped, which costs them nothing, and the slice
    /// says their median.
    Each,
    /// As `Each`, and both sides sleep. `lead` and `follow` call `futex::idle` before they send,
    /// which is taken out; slices in which fewer than nine in ten slept are dropped.
    Asleep,
}

impl Pace {
    /// What each round trip idles, by design.
    pub fn idle(self) -> Duration {
        if self == Pace::Asleep { futex::GAP * 2 } else { Duration::ZERO }
    }
}

/// One row at one size, open on both sides.
pub struct Runner {
    /// Index among the program's rows.
    pub index: usize,
    pub bytes: usize,
    pub pace: Pace,
    slot: Slot,
    pub variants: Vec<u64>,
    /// The last mean of each variant, from which the next slice's count follows.
    means: Vec<f64>,
    pub figures: [Figures; STATES],
}

/// What is known of one row at one size in one state.
pub struct Figures {
    /// Nanoseconds a round trip (a message in streams): one value a slice.
    pub slices: Vec<f64>,
    /// Nanoseconds of all slices together, and their round trips: what the mean is taken of.
    time: f64,
    trips: u64,
    /// Stamps of single round trips, in nanoseconds.
    pub stamps: Histogram<u64>,
    /// The best variant, once calibrated.
    pub best: Option<u64>,
    /// Slices of each variant during calibration.
    pub trials: Vec<Vec<f64>>,
}

/// What a slice found. `stamps` is empty if it was timed as a whole.
pub struct Done {
    pub value: f64,
    /// Nanoseconds of all round trips together, without what they idle.
    time: f64,
    trips: u64,
    stamps: Vec<u64>,
}

impl Runner {
    pub fn open(peer: &mut Peer, index: usize, bytes: usize) -> Outcome<Runner> {
        let rows: &dyn Rows = peer.rows();
        let (pace, variants) = (rows.pace(index), rows.variants(index, bytes));
        let slot = peer.open(index, bytes)?;
        let figures =
            [Figures::new(&variants)?, Figures::new(&variants)?, Figures::new(&variants)?];
        let means = vec![f64::NAN; variants.len()];
        Ok(Runner { index, bytes, pace, slot, variants, means, figures })
    }

    pub fn close(&self, peer: &mut Peer) {
        peer.close(self.slot);
    }
    pub fn choice(&self, state: State) -> usize {
        self.figures[state as usize].best.unwrap_or(0) as usize
    }

    /// Runs one slice; `None` if it is not what the row is about (a side was awake).
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
            // The first slice of a variant also brings its pages and lines in.
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

    pub fn keep(&mut self, state: State, done: Option<Done>) -> Outcome<()> {
        let Some(done) = done else { return Ok(()) };
        let figures = &mut self.figures[state as usize];
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

    /// The variant with the least median, if all have been tried twice.
    pub fn choose(&mut self) {
        if self.trials.iter().all(|trials| trials.len() >= 2) {
            let medians = self.trials.iter().map(|trials| median(trials).unwrap_or(f64::NAN));
            let best = medians.enumerate().min_by(|(_, one), (_, other)| one.total_cmp(other));
            self.best = best.map(|(index, _)| index as u64);
        }
    }
}

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
