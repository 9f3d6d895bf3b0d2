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

use super::rows::{self, PingPong, Row};
use crate::Outcome;
use crate::peer::Peer;
use crate::runner::{Pace, Runner, median};
use crate::state::{Bracket, State, Weather};

/// Slices in one calibration, about; each variant has at least three.
const TRIALS: usize = 30;
/// One pair in so many is stamped, for the tails. Odd, so that these also alternate who is first.
const TAILS_EVERY: u64 = 5;

/// One row at one size in one state.
pub struct Record {
    pub row: &'static Row,
    pub bytes: usize,
    pub state: State,
    pub p50: f64,
    /// Of single round trips; empty in streams.
    pub stamps: Histogram<u64>,
    pub ratio: f64,
    pub floor: Option<(&'static str, f64)>,
    pub line: f64,
    /// The chosen variant, where there are several.
    pub variant: Option<u64>,
    /// Slices in `p50`.
    pub n: usize,
}

pub struct Harness {
    peer: Peer,
    bracket: Bracket,
}

impl Harness {
    pub fn start(cpus: (usize, usize)) -> Outcome<Harness> {
        let mut peer = Peer::start(&PingPong, cpus)?;
        let line = rows::find("line").ok_or("no row is called line")?;
        let bracket = Bracket::open(&mut peer, line)?;
        Ok(Harness { peer, bracket })
    }

    pub fn quit(self) -> Outcome<Weather> {
        self.peer.quit()?;
        Ok(self.bracket.weather)
    }

    /// Measures a row at one size for so long, its floor beside it; the records of both.
    pub fn measure(&mut self, index: usize, bytes: usize, time: Duration) -> Outcome<Vec<Record>> {
        let deadline = Instant::now() + time;
        self.bracket.lines = Default::default();
        let mut subject = Runner::open(&mut self.peer, index, bytes)?;
        let mut beside = match rows::floor(index, bytes) {
            Some((index, bytes)) => Some(Runner::open(&mut self.peer, index, bytes)?),
            None => None,
        };
        let mut state = self.bracket.take(&mut self.peer)?;
        let mut turn = 0;
        while Instant::now() < deadline {
            let known = |runner: &Runner| runner.figures[state as usize].best.is_some();
            if !known(&subject) {
                state = self.calibrate(&mut subject, deadline)?;
            } else if let Some(floor) = beside.as_mut().filter(|floor| !known(floor)) {
                state = self.calibrate(floor, deadline)?;
            } else {
                state = self.pair(&mut subject, beside.as_mut(), state, turn)?;
                turn += 1;
            }
        }
        subject.close(&mut self.peer);
        if let Some(floor) = &beside {
            floor.close(&mut self.peer);
        }
        Ok(self.records(&subject, beside.as_ref()))
    }

    fn records(&self, subject: &Runner, beside: Option<&Runner>) -> Vec<Record> {
        let mut records = Vec::new();
        let seen = |state: State| subject.figures[state as usize].slices.len();
        let near = if seen(State::Close) > seen(State::Near) { State::Close } else { State::Near };
        for state in [near, State::Far] {
            let Some(p50) = median(&subject.figures[state as usize].slices) else { continue };
            let line = median(&self.bracket.lines[state as usize]).unwrap_or(f64::NAN);
            let below = beside.and_then(|floor| median(&floor.figures[state as usize].slices));
            let ratio = match (below, subject.pace) {
                (Some(floor), Pace::Stream) => floor / p50,
                (Some(floor), _) => p50 / floor,
                (None, _) => 1.0,
            };
            let named =
                beside.zip(below).map(|(floor, value)| (rows::row(floor.index).mode, value));
            records.push(record(subject, state, ratio, named, line));
            records.extend(beside.map(|floor| record(floor, state, 1.0, None, line)));
        }
        records
    }

    /// A slice of the floor and a slice of the subject, which take turns to be first: caches and
    /// prefetchers remember who was. Keeps them only if all brackets agree.
    fn pair(
        &mut self,
        subject: &mut Runner,
        floor: Option<&mut Runner>,
        before: State,
        turn: u64,
    ) -> Outcome<State> {
        let mut between = before;
        let mut slices = Vec::new();
        let stamped = turn % TAILS_EVERY == TAILS_EVERY - 1;
        let mut order: Vec<&mut Runner> = floor.into_iter().chain([subject]).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for runner in order {
            let variant = runner.choice(before);
            let done = runner.slice(&mut self.peer, variant, stamped)?;
            slices.push((runner, done));
            let after = self.bracket.take(&mut self.peer)?;
            // Once they have disagreed, `between` differs from the last state or from the first.
            between = if between == before { after } else { between };
        }
        let after = self.bracket.last().unwrap_or(before);
        let kept =
            between == before && after == before && slices.iter().all(|(_, done)| done.is_some());
        self.bracket.weather.pairs += 1;
        self.bracket.weather.dropped += u64::from(!kept);
        if kept {
            for (runner, done) in slices {
                runner.keep(before, done)?;
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

fn record(
    runner: &Runner,
    state: State,
    ratio: f64,
    floor: Option<(&'static str, f64)>,
    line: f64,
) -> Record {
    let figures = &runner.figures[state as usize];
    Record {
        row: rows::row(runner.index),
        bytes: runner.bytes,
        state,
        p50: median(&figures.slices).unwrap_or(f64::NAN),
        stamps: figures.stamps.clone(),
        ratio,
        floor,
        line,
        variant: (runner.variants.len() > 1).then(|| runner.variants[runner.choice(state)]),
        n: figures.slices.len(),
    }
}
