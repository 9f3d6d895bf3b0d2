//! Slices, brackets and pairs: how a figure is made.
//!
//! ```text
//! bracket  floor  bracket  subject  bracket | subject  bracket  floor  bracket | …
//! ```
//!
//! The host moves the two CPUs between *near* (one cache) and *far* within seconds, so no figure
//! stands alone. A bracket is a short bounce of the writable line, and says where the CPUs are. A pair
//! of slices counts only if its three brackets agree. What is reported, for each state: the median of
//! the slices, and the ratio of the two medians.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::loops::{Loops, Share};
use super::rows::{self, PingPong, Row};
use crate::Outcome;
use crate::peer::Peer;
use crate::runner::{Pace, Runner, median};
use crate::state::{Bracket, STATES, State, Weather};

/// Slices in one calibration, about; each variant has at least three.
const TRIALS: usize = 30;
/// How much longer than its time a row may take because of its calibrations.
const CALIBRATION: Duration = Duration::from_secs(15);
/// One pair in so many is stamped, for the tails. Odd, so that these also alternate who is first.
const TAILS_EVERY: u64 = 5;

/// One row at one size in one state.
pub struct Record {
    pub row: &'static Row,
    pub bytes: usize,
    pub state: State,
    pub p50: f64,
    /// Of all round trips in the slices that `p50` is the median of.
    pub mean: f64,
    /// Of single round trips; empty in streams.
    pub stamps: Histogram<u64>,
    pub ratio: f64,
    pub floor: Option<(&'static str, f64)>,
    pub line: f64,
    /// The chosen variant, where there are several.
    pub variant: Option<u64>,
    /// Slices in `p50`.
    pub n: usize,
    /// The part of their rate alone that the busy loops had beside it.
    pub loops: Option<f64>,
}

/// A row that is open, and what the busy loops did during its slices in each state.
struct Side {
    runner: Runner,
    loops: [Share; STATES],
}

impl Side {
    fn open(peer: &mut Peer, index: usize, bytes: usize) -> Outcome<Side> {
        Ok(Side { runner: Runner::open(peer, index, bytes)?, loops: Default::default() })
    }
}

pub struct Harness {
    peer: Peer,
    bracket: Bracket,
    loops: Option<Loops>,
}

impl Harness {
    /// Starts the peer on the second CPU, and so many busy loops on both.
    pub fn start(cpus: (usize, usize), busy: usize) -> Outcome<Harness> {
        // The loops come first: a child inherits the CPU that this process pins itself to.
        let loops = if busy > 0 { Some(Loops::start(busy, cpus)?) } else { None };
        let mut peer = Peer::start(&PingPong, cpus)?;
        let line = rows::find("line").ok_or("no row is called line")?;
        let bracket = Bracket::open(&mut peer, line)?;
        Ok(Harness { peer, bracket, loops })
    }

    /// Returns the busy loops.
    pub fn loops(&self) -> Option<&Loops> {
        self.loops.as_ref()
    }

    pub fn quit(self) -> Outcome<Weather> {
        self.peer.quit()?;
        Ok(self.bracket.weather)
    }

    /// Measures a row at one size for so long, its floor beside it; the records of both.
    pub fn measure(&mut self, index: usize, bytes: usize, time: Duration) -> Outcome<Vec<Record>> {
        let (mut deadline, latest) = (Instant::now() + time, Instant::now() + time + CALIBRATION);
        self.bracket.lines = Default::default();
        let mut subject = Side::open(&mut self.peer, index, bytes)?;
        let mut beside = match rows::floor(index, bytes) {
            Some((index, bytes)) => Some(Side::open(&mut self.peer, index, bytes)?),
            None => None,
        };
        let mut state = self.bracket.take(&mut self.peer)?;
        let mut turn = 0;
        while Instant::now() < deadline {
            let start = Instant::now();
            let known = |side: &Side| side.runner.figures[state as usize].best.is_some();
            let unknown = if known(&subject) {
                beside.as_mut().filter(|floor| !known(floor))
            } else {
                Some(&mut subject)
            };
            if let Some(side) = unknown {
                state = self.calibrate(&mut side.runner, latest)?;
                // Beside busy loops a calibration can take seconds.
                deadline = (deadline + start.elapsed()).min(latest);
            } else {
                state = self.pair(&mut subject, beside.as_mut(), state, turn)?;
                turn += 1;
            }
        }
        subject.runner.close(&mut self.peer);
        if let Some(floor) = &beside {
            floor.runner.close(&mut self.peer);
        }
        Ok(self.records(&subject, beside.as_ref()))
    }

    fn records(&self, subject: &Side, beside: Option<&Side>) -> Vec<Record> {
        let mut records = Vec::new();
        let slices = |side: &Side, state| median(&side.runner.figures[state as usize].slices);
        let seen = |state: State| subject.runner.figures[state as usize].slices.len();
        let near = if seen(State::Close) > seen(State::Near) { State::Close } else { State::Near };
        for state in [near, State::Far] {
            let Some(p50) = slices(subject, state) else { continue };
            let below = beside.and_then(|floor| Some((floor, slices(floor, state)?)));
            let ratio = match (below, subject.runner.pace) {
                (Some((_, floor)), Pace::Stream) => floor / p50,
                (Some((_, floor)), _) => p50 / floor,
                (None, _) => 1.0,
            };
            let named = below.map(|(floor, value)| (rows::row(floor.runner.index).mode, value));
            records.push(self.record(subject, state, ratio, named));
            records.extend(beside.map(|floor| self.record(floor, state, 1.0, None)));
        }
        records
    }

    fn record(
        &self,
        side: &Side,
        state: State,
        ratio: f64,
        floor: Option<(&'static str, f64)>,
    ) -> Record {
        let Side { runner, loops } = side;
        let figures = &runner.figures[state as usize];
        Record {
            row: rows::row(runner.index),
            bytes: runner.bytes,
            state,
            p50: median(&figures.slices).unwrap_or(f64::NAN),
            mean: figures.mean(),
            stamps: figures.stamps.clone(),
            ratio,
            floor,
            line: median(&self.bracket.lines[state as usize]).unwrap_or(f64::NAN),
            variant: (runner.variants.len() > 1).then(|| runner.variants[runner.choice(state)]),
            n: figures.slices.len(),
            loops: self.loops.as_ref().map(|all| all.part(loops[state as usize])),
        }
    }

    /// A slice of the floor and a slice of the subject, which take turns to be first: caches and
    /// prefetchers remember who was. Keeps them only if all brackets agree.
    fn pair(
        &mut self,
        subject: &mut Side,
        floor: Option<&mut Side>,
        before: State,
        turn: u64,
    ) -> Outcome<State> {
        let mut between = before;
        let mut slices = Vec::new();
        let stamped = turn % TAILS_EVERY == TAILS_EVERY - 1;
        let mut order: Vec<&mut Side> = floor.into_iter().chain([subject]).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let variant = side.runner.choice(before);
            let start = self.loops.as_ref().map(Loops::read);
            let done = side.runner.slice(&mut self.peer, variant, stamped)?;
            let span = start.zip(self.loops.as_ref().map(Loops::read));
            slices.push((side, done, span));
            let after = self.bracket.take(&mut self.peer)?;
            // Once they have disagreed, `between` differs from the last state or from the first.
            between = if between == before { after } else { between };
        }
        let after = self.bracket.last().unwrap_or(before);
        let kept = between == before
            && after == before
            && slices.iter().all(|(_, done, _)| done.is_some());
        self.bracket.weather.pairs += 1;
        self.bracket.weather.dropped += u64::from(!kept);
        if kept {
            for (side, done, span) in slices {
                side.runner.keep(before, done)?;
                if let Some((start, end)) = span {
                    side.loops[before as usize].add(start, end);
                }
            }
        }
        Ok(after)
    }

    /// One slice of each variant, each kept for the state that it was seen in; several times. A state
    /// whose variants all have been seen then has its best.
    fn calibrate(&mut self, runner: &mut Runner, deadline: Instant) -> Outcome<State> {
        let mut before = self.bracket.take(&mut self.peer)?;
        if runner.variants.len() == 1 {
            runner.figures[before as usize].best = Some(0);
            return Ok(before);
        }
        let rounds = (TRIALS / runner.variants.len()).max(3);
        for _ in 0..rounds {
            for variant in 0..runner.variants.len() {
                let done = runner.slice(&mut self.peer, variant, false)?;
                let after = self.bracket.take(&mut self.peer)?;
                if before == after
                    && let Some(done) = done
                {
                    runner.figures[before as usize].trials[variant].push(done.value);
                }
                before = after;
            }
            if Instant::now() > deadline {
                break;
            }
        }
        for figures in &mut runner.figures {
            figures.choose();
        }
        Ok(before)
    }
}
