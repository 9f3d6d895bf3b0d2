//! Slices, probes and pairs: how a figure is made.
//!
//! ```text
//! probe  floor  probe  subject  probe | subject  probe  floor  probe | …
//! ```
//!
//! The host moves the two CPUs between *near* (they share a cache) and *far* within seconds, so no figure stands alone. A
//! probe is a short bounce of the writable line, which tells how far the CPUs are from each other. A pair of slices counts
//! only if its three probes agree. The figures at each distance are the median of the slices, and the ratio of the
//! subject's median to the floor's.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::rows::{self, PingPong, Row};
use crate::Outcome;
use crate::distance::{DISTANCES, Distance, Probe, Tally};
use crate::loops::{Loops, Share};
use crate::peer::Peer;
use crate::runner::{Pace, Runner, median};

/// Slices in one calibration, roughly. Each variant has at least three.
const TRIALS: usize = 30;
/// The most time that calibrations add to a row.
const CALIBRATION: Duration = Duration::from_secs(15);
/// One pair in `TAILS_EVERY` is stamped, for the tails. The number is odd, so that subject and floor are first in turn
/// among these pairs, too.
const TAILS_EVERY: u64 = 5;

/// The figures of a row at one size at one distance of the CPUs.
pub struct Record {
    pub row: &'static Row,
    pub bytes: usize,
    pub distance: Distance,
    pub p50: f64,
    /// The mean of all round trips in the slices of `p50`.
    pub mean: f64,
    /// Nanoseconds of single round trips. Empty in streams.
    pub stamps: Histogram<u64>,
    pub ratio: f64,
    pub floor: Option<(&'static str, f64)>,
    pub line: f64,
    /// The best variant, if there are several.
    pub variant: Option<u64>,
    /// The number of slices.
    pub n: usize,
    /// The part of their speed that the busy loops kept.
    pub loops: Option<f64>,
}

/// A row that is open, and the iterations of the busy loops during its slices at each distance.
struct Side {
    runner: Runner,
    loops: [Share; DISTANCES],
}

impl Side {
    fn open(peer: &mut Peer, index: usize, bytes: usize) -> Outcome<Side> {
        Ok(Side { runner: Runner::open(peer, index, bytes)?, loops: Default::default() })
    }
}

/// The peer, the probes, and the busy loops of a run.
pub struct Harness {
    peer: Peer,
    probe: Probe,
    loops: Option<Loops>,
}

impl Harness {
    /// Starts the peer on the second CPU, and `busy` loops on both CPUs.
    pub fn start(cpus: (usize, usize), busy: usize) -> Outcome<Harness> {
        // The loops come first: a child inherits the CPU that this process pins itself to.
        let loops = if busy > 0 { Some(Loops::start(busy, cpus)?) } else { None };
        let mut peer = Peer::start(&PingPong, cpus)?;
        let line = rows::find("line").ok_or("no row is called line")?;
        let probe = Probe::open(&mut peer, line)?;
        Ok(Harness { peer, probe, loops })
    }

    /// Returns the busy loops, if there are any.
    pub fn loops(&self) -> Option<&Loops> {
        self.loops.as_ref()
    }

    /// Ends the peer and returns the counts of the run.
    pub fn quit(self) -> Outcome<Tally> {
        self.peer.quit()?;
        Ok(self.probe.tally)
    }

    /// Measures a row at one size and its floor for `time`, and returns the records of both.
    pub fn measure(&mut self, index: usize, bytes: usize, time: Duration) -> Outcome<Vec<Record>> {
        let (mut deadline, latest) = (Instant::now() + time, Instant::now() + time + CALIBRATION);
        self.probe.lines = Default::default();
        let mut subject = Side::open(&mut self.peer, index, bytes)?;
        let mut beside = match rows::floor(index, bytes) {
            Some((index, bytes)) => Some(Side::open(&mut self.peer, index, bytes)?),
            None => None,
        };
        let mut distance = self.probe.take(&mut self.peer)?;
        let mut turn = 0;
        while Instant::now() < deadline {
            let start = Instant::now();
            let known = |side: &Side| side.runner.figures[distance as usize].best.is_some();
            let unknown = if known(&subject) {
                beside.as_mut().filter(|floor| !known(floor))
            } else {
                Some(&mut subject)
            };
            if let Some(side) = unknown {
                distance = self.calibrate(&mut side.runner, latest)?;
                // A calibration beside busy loops can take seconds.
                deadline = (deadline + start.elapsed()).min(latest);
            } else {
                distance = self.pair(&mut subject, beside.as_mut(), distance, turn)?;
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
        let slices = |side: &Side, distance| median(&side.runner.figures[distance as usize].slices);
        let seen = |distance: Distance| subject.runner.figures[distance as usize].slices.len();
        let near = if seen(Distance::Close) > seen(Distance::Near) {
            Distance::Close
        } else {
            Distance::Near
        };
        for distance in [near, Distance::Far] {
            let Some(p50) = slices(subject, distance) else { continue };
            let below = beside.and_then(|floor| Some((floor, slices(floor, distance)?)));
            let ratio = match (below, subject.runner.pace) {
                (Some((_, floor)), Pace::Stream) => floor / p50,
                (Some((_, floor)), _) => p50 / floor,
                (None, _) => 1.0,
            };
            let named = below.map(|(floor, value)| (rows::row(floor.runner.index).mode, value));
            records.push(self.record(subject, distance, ratio, named));
            records.extend(beside.map(|floor| self.record(floor, distance, 1.0, None)));
        }
        records
    }

    fn record(
        &self,
        side: &Side,
        distance: Distance,
        ratio: f64,
        floor: Option<(&'static str, f64)>,
    ) -> Record {
        let Side { runner, loops } = side;
        let figures = &runner.figures[distance as usize];
        Record {
            row: rows::row(runner.index),
            bytes: runner.bytes,
            distance,
            p50: median(&figures.slices).unwrap_or(f64::NAN),
            mean: figures.mean(),
            stamps: figures.stamps.clone(),
            ratio,
            floor,
            line: median(&self.probe.lines[distance as usize]).unwrap_or(f64::NAN),
            variant: (runner.variants.len() > 1).then(|| runner.variants[runner.choice(distance)]),
            n: figures.slices.len(),
            loops: self.loops.as_ref().map(|all| all.part(loops[distance as usize])),
        }
    }

    /// Runs a slice of the floor and a slice of the subject, and counts them if all probes agree. They take turns to be
    /// first, because caches and prefetchers remember the slice before.
    fn pair(
        &mut self,
        subject: &mut Side,
        floor: Option<&mut Side>,
        before: Distance,
        turn: u64,
    ) -> Outcome<Distance> {
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
            let after = self.probe.take(&mut self.peer)?;
            // If probes disagree, `between` differs from the first distance or from the last one.
            between = if between == before { after } else { between };
        }
        let after = self.probe.last().unwrap_or(before);
        let kept = between == before
            && after == before
            && slices.iter().all(|(_, done, _)| done.is_some());
        self.probe.tally.pairs += 1;
        self.probe.tally.dropped += u64::from(!kept);
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

    /// Runs each variant for several slices, and counts each slice for the distance at which it ran. Then each distance at
    /// which all variants ran has its best one.
    fn calibrate(&mut self, runner: &mut Runner, deadline: Instant) -> Outcome<Distance> {
        let mut before = self.probe.take(&mut self.peer)?;
        if runner.variants.len() == 1 {
            runner.figures[before as usize].best = Some(0);
            return Ok(before);
        }
        let rounds = (TRIALS / runner.variants.len()).max(3);
        for _ in 0..rounds {
            for variant in 0..runner.variants.len() {
                let done = runner.slice(&mut self.peer, variant, false)?;
                let after = self.probe.take(&mut self.peer)?;
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
