//! Slices, brackets and rounds: how a figure is made.
//!
//! ```text
//! probe  system A  probe  system B  probe  …  floor  probe | the next round, in another order
//! ```
//!
//! All systems that do a work are open in the same two processes at once, and take turns slice by slice. A
//! probe, a short bounce of the writable line, says whether the CPUs are near or far; a slice counts if
//! the brackets before and after it agree, and counts for their state only. A figure is the median of the
//! slices of one state.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::distance::{DISTANCES, Distance, Probe, Tally};
use crate::loops::{Loops, Share};
use crate::peer::Peer;
use crate::rows;
use crate::runner::{Runner, median};
use crate::systems;
use crate::work::finding;
use crate::work::footprint::Held;
use crate::work::{Treatment, Work};
use slipring_bench::results::Figure;

/// One round in so many is stamped, for the tails.
const TAILS_EVERY: u64 = 5;
/// Slices in a round for a floor that does not know yet which of its variants is best.
const TRIALS: usize = 6;
/// How many busy loops there are beside some of the measures, one after the other.
const BUSY: [usize; 3] = [1, 2, 4];
/// Links that are opened to see what one takes, after a first one that is not counted.
const LINKS: usize = 8;

pub struct Harness {
    peer: Peer,
    probe: Probe,
    cpus: (usize, usize),
    /// Busy loops on both CPUs.
    loops: Option<Loops>,
}

/// A system that is open on both sides.
struct Entry {
    runner: Runner,
    beside: [Vec<f64>; DISTANCES],
    dropped: u64,
    /// What the busy loops did during its slices.
    loops: [Share; DISTANCES],
}

impl Harness {
    pub fn start(cpus: (usize, usize)) -> Outcome<Harness> {
        let mut peer = Peer::start(&rows::Rivals, cpus)?;
        let line = rows::line().ok_or("no system is called line")?;
        let probe = Probe::open(&mut peer, line)?;
        Ok(Harness { peer, probe, cpus, loops: None })
    }

    /// Has so many busy loops run from now on.
    pub fn beside(&mut self, busy: usize) -> Outcome<()> {
        let running = self.loops.as_ref().map_or(0, Loops::count);
        if running != busy {
            self.loops = None;
            self.loops = (busy > 0).then(|| Loops::start(busy, self.cpus)).transpose()?;
        }
        Ok(())
    }

    pub fn quit(self) -> Outcome<Tally> {
        self.peer.quit()?;
        Ok(self.probe.tally)
    }

    /// Measures rows of one name at one size for so long, and for `least` rounds at least.
    pub fn measure(
        &mut self,
        indices: &[usize],
        bytes: usize,
        time: Duration,
        least: u64,
    ) -> Outcome<Vec<Figure>> {
        let deadline = Instant::now() + time;
        self.probe.lines = Default::default();
        let mut entries = Vec::new();
        for index in indices {
            let runner = Runner::open(&mut self.peer, *index, bytes)?;
            let (beside, loops) = Default::default();
            entries.push(Entry { runner, beside, dropped: 0, loops });
        }
        self.probe.take(&mut self.peer)?;
        let mut round = 0;
        while round < least || Instant::now() < deadline {
            let count = entries.len();
            for place in 0..count {
                // Another one begins each round, and each other round goes backwards: caches and
                // prefetchers remember who was before.
                let place = if round % 2 == 0 { place } else { count - 1 - place };
                let entry = &mut entries[(place + round as usize / 2) % count];
                let stamped = round % TAILS_EVERY == TAILS_EVERY - 1;
                self.visit(entry, stamped)?;
            }
            round += 1;
        }
        for entry in &entries {
            entry.runner.close(&mut self.peer);
        }
        Ok(self.figures(&entries))
    }

    fn visit(&mut self, entry: &mut Entry, stamped: bool) -> Outcome<()> {
        for _ in 0..TRIALS {
            let before = self.probe.last().unwrap_or(Distance::Near) as usize;
            let figures = &entry.runner.figures[before];
            if entry.runner.variants.len() == 1 || figures.best.is_some() {
                break;
            }
            let tried = figures.trials.iter().enumerate();
            let variant = tried.min_by_key(|(_, trials)| trials.len()).map_or(0, |(at, _)| at);
            let done = entry.runner.slice(&mut self.peer, variant, false)?;
            let after = self.probe.take(&mut self.peer)? as usize;
            if let Some(done) = done.filter(|_| after == before) {
                let figures = &mut entry.runner.figures[before];
                figures.trials[variant].push(done.value);
                figures.choose();
            }
        }
        let before = self.probe.last().unwrap_or(Distance::Near);
        if entry.runner.variants.len() > 1 && entry.runner.figures[before as usize].best.is_none() {
            return Ok(());
        }
        finding::take();
        let choice = entry.runner.choice(before);
        let start = self.loops.as_ref().map(Loops::read);
        let done = entry.runner.slice(&mut self.peer, choice, stamped)?;
        let span = start.zip(self.loops.as_ref().map(Loops::read));
        let found = finding::take().unwrap_or_default();
        let after = self.probe.take(&mut self.peer)?;
        self.probe.tally.pairs += 1;
        let Some(mut done) = done.filter(|_| after == before) else {
            self.probe.tally.dropped += 1;
            entry.dropped += 1;
            return Ok(());
        };
        if let Some((start, end)) = span {
            entry.loops[before as usize].add(start, end);
        }
        done.value = found.value.unwrap_or(done.value);
        entry.beside[before as usize].extend(found.beside);
        entry.runner.keep(before, Some(done))
    }

    fn figures(&self, entries: &[Entry]) -> Vec<Figure> {
        let seen = |state: Distance| -> usize {
            entries.iter().map(|entry| entry.runner.figures[state as usize].slices.len()).sum()
        };
        // Never mixed: what is reported as near is the one that was seen more.
        let near = if seen(Distance::Close) > seen(Distance::Near) {
            Distance::Close
        } else {
            Distance::Near
        };
        let mut all = Vec::new();
        for (state, name) in [(near, "near"), (Distance::Far, "far")] {
            for entry in entries {
                all.extend(self.figure(entry, state, name));
            }
        }
        all
    }

    fn figure(&self, entry: &Entry, state: Distance, name: &str) -> Option<Figure> {
        let figures = &entry.runner.figures[state as usize];
        let p50_ns = median(&figures.slices)?;
        let tail = |quantile| {
            let stamps = &figures.stamps;
            (!stamps.is_empty()).then(|| stamps.value_at_quantile(quantile) as f64)
        };
        let variants = &entry.runner.variants;
        Some(Figure {
            state: name.into(),
            busy: self.loops.as_ref().map_or(0, Loops::count),
            loops: self.loops.as_ref().map(|loops| loops.part(entry.loops[state as usize])),
            p50_ns: Some(p50_ns),
            mean_ns: Some(figures.mean()),
            p99_ns: tail(0.99),
            p999_ns: tail(0.999),
            beside: median(&entry.beside[state as usize]),
            slices: figures.slices.len(),
            dropped: entry.dropped,
            line_ns: median(&self.probe.lines[state as usize]),
            variant: (variants.len() > 1).then(|| variants[entry.runner.choice(state)]),
            ..blank(rows::row(entry.runner.index), entry.runner.bytes)
        })
    }

    /// What a link takes: the mean of some, opened after a first one.
    pub fn footprint(&mut self, indices: &[usize]) -> Outcome<Vec<Figure>> {
        let processes = [std::process::id(), self.peer.id()];
        let mut all = Vec::new();
        for index in indices {
            let mut open = Vec::new();
            let mut before = Held::by(&processes)?;
            for link in 0..=LINKS {
                let mut runner = Runner::open(&mut self.peer, *index, 8)?;
                // Its memory is there once it is used.
                runner.slice(&mut self.peer, 0, false)?;
                open.push(runner);
                if link == 0 {
                    before = Held::by(&processes)?;
                }
            }
            let after = Held::by(&processes)?;
            for runner in &open {
                runner.close(&mut self.peer);
            }
            let each = |after: f64, before: f64| Some((after - before) / LINKS as f64);
            all.push(Figure {
                beside: each(after.descriptors, before.descriptors),
                memory_kib: each(after.memory, before.memory),
                slices: LINKS,
                ..blank(rows::row(*index), 8)
            });
        }
        Ok(all)
    }
}

/// What is known before measuring.
fn blank(row: &rows::Row, bytes: usize) -> Figure {
    let system = row.system;
    Figure {
        measure: row.work.name().into(),
        bytes,
        links: if let Work::Reactor(links) = row.work { links } else { 1 },
        system: system.name().into(),
        kind: system.kind().name().into(),
        version: systems::version(system),
        state: "any".into(),
        busy: 0,
        loops: None,
        p50_ns: None,
        mean_ns: None,
        p99_ns: None,
        p999_ns: None,
        beside: None,
        memory_kib: None,
        slices: 0,
        dropped: 0,
        line_ns: None,
        variant: None,
        writable: system.writable().name().into(),
        options: system.options(row.work, bytes),
    }
}

/// What is measured together: rows of one name at one size.
pub struct Group {
    pub work: Work,
    pub bytes: usize,
    pub indices: Vec<usize>,
    /// Busy loops beside it.
    pub busy: usize,
}

impl Group {
    /// Those that have at least one system which is no floor.
    pub fn all(wanted: impl Fn(&rows::Row, usize) -> bool) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (index, row) in rows::all().iter().enumerate() {
            for bytes in row.work.sizes() {
                if !row.system.does(row.work, *bytes) || !wanted(row, *bytes) {
                    continue;
                }
                let same = |group: &&mut Group| {
                    group.work.name() == row.work.name() && group.bytes == *bytes
                };
                match groups.iter_mut().find(same) {
                    Some(group) => group.indices.push(index),
                    None => {
                        let indices = vec![index];
                        groups.push(Group { work: row.work, bytes: *bytes, indices, busy: 0 })
                    }
                }
            }
        }
        let subject = |index: &usize| rows::row(*index).system.kind() != systems::Kind::Floor;
        groups.retain(|group| group.indices.iter().any(subject));
        let order =
            |work: Work| crate::work::ALL.iter().position(|known| known.name() == work.name());
        groups.sort_by_key(|group| (order(group.work), group.bytes));
        groups
    }

    /// Those of these groups that are measured beside busy loops, too, and beside how many.
    pub fn busy(groups: &[Group]) -> Vec<Group> {
        let filled = Work::Trip(Treatment::Filled);
        let beside = |busy: &usize| {
            let (busy, known) = (*busy, [(filled, 8), (filled, 64 << 10), (Work::Connect, 8)]);
            let mine =
                groups.iter().filter(move |group| known.contains(&(group.work, group.bytes)));
            mine.map(move |group| Group { busy, indices: group.indices.clone(), ..*group })
        };
        BUSY.iter().flat_map(beside).collect()
    }

    /// How much of a run's time it gets.
    pub fn weight(&self) -> f64 {
        match self.work {
            Work::Footprint => 0.0,
            Work::Trip(Treatment::Filled | Treatment::Copied) if self.bytes >= 1 << 24 => 2.0,
            Work::FanIn | Work::Idle => 1.5,
            _ => 1.0,
        }
    }
}
