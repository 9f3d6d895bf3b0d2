//! `slipring why`: who waits for whom, since when, and where that ends.

mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use clap::Args;
use serde::Serialize;
use slipring::status::Kind;

use crate::failure::Failure;
use crate::look::{Scene, Trust, sun_path};
use crate::ls::Age;
use crate::output::Output;
use crate::why::waits::{Wait, waits};

/// The most processes that one answer follows.
const MOST: usize = 256;

/// The arguments of `slipring why`.
#[derive(Debug, Args)]
pub(crate) struct Why {
    /// A process id, or the address of a listener or a topic
    #[arg(value_name = "PID|ADDRESS")]
    whom: String,
}

/// The answer of `slipring why`.
#[derive(Debug, Serialize)]
struct Answer {
    processes: Vec<Told>,
    /// Processes that wait for each other in a circle.
    cycles: Vec<Cycle>,
    /// The processes at which chains of waiting end.
    ends: Vec<End>,
}

/// Processes of which each waits for the next one, and the last one for the first.
#[derive(Debug, Serialize)]
struct Cycle {
    processes: Vec<Name>,
    /// Each of them is a sender, which goes on only if the next process does something. A receiver can be idle.
    sends: bool,
}

/// A process and its waits.
#[derive(Debug, Serialize)]
struct Told {
    #[serde(flatten)]
    name: Name,
    waits: Vec<Wait>,
}

/// The name of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Name {
    pub(crate) pid: u32,
    pub(crate) command: String,
}

/// A process that others wait for, and that waits for none itself.
#[derive(Debug, Serialize)]
struct End {
    #[serde(flatten)]
    name: Name,
    state: String,
    /// How many processes of the answer wait for it.
    waiting: usize,
    remedy: Option<String>,
}

impl Why {
    /// Looks once, and tells.
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let scene = Scene::look()?;
        let starts = self.starts(&scene)?;
        output.show(&Answer::of(&scene, &starts))
    }

    /// Returns the processes that the question is about.
    fn starts(&self, scene: &Scene) -> Result<BTreeSet<u32>, Failure> {
        if let Ok(pid) = self.whom.parse::<u32>() {
            if scene.owner(pid).is_some() {
                return Ok([pid].into());
            }
            let is_hidden = scene.hidden().contains(&pid);
            return Err(if is_hidden {
                Failure::new(format!(
                    "process {pid} cannot be looked into: its user and root may (as for a debugger)"
                ))
            } else {
                Failure::not_found(format!(
                    "process {pid} does not exist, or does not use slipring"
                ))
            });
        }
        let address: slipring::Address = self.whom.parse()?;
        let sides = scene.sides().iter().filter(|side| {
            side.trust != Trust::Contradicted && side.row.address == sun_path(&address)
        });
        let starts: BTreeSet<u32> =
            sides.filter(|side| side.row.kind != Kind::Pool).map(|side| side.pid).collect();
        if starts.is_empty() {
            return Err(Failure::not_found(format!(
                "no process that can be looked into listens, publishes or is connected on {address}"
            )));
        }
        Ok(starts)
    }
}

impl Answer {
    fn of(scene: &Scene, starts: &BTreeSet<u32>) -> Self {
        let all = waits(scene);
        let (mut todo, mut seen) = (VecDeque::from_iter(starts.iter().copied()), starts.clone());
        // Those that wait for the ones asked about, too.
        for wait in all.values().flatten() {
            if wait.whom_pid().is_some_and(|whom| starts.contains(&whom)) && wait.blocks() {
                let pid = wait.waiter();
                if seen.insert(pid) {
                    todo.push_back(pid);
                }
            }
        }
        let mut processes = Vec::new();
        while let Some(pid) = todo.pop_front() {
            let waits = all.get(&pid).cloned().unwrap_or_default();
            for whom in waits.iter().filter_map(Wait::whom_pid) {
                if seen.len() < MOST && seen.insert(whom) {
                    todo.push_back(whom);
                }
            }
            processes.push(Told { name: name(scene, pid), waits });
        }
        let blocking: BTreeMap<u32, BTreeSet<u32>> = processes
            .iter()
            .map(|told| {
                let waits = told.waits.iter().filter(|wait| wait.blocks() && wait.is_confirmed());
                let whom = waits.filter_map(Wait::whom_pid);
                // A process that waits for itself has threads on both ends.
                (told.name.pid, whom.filter(|whom| *whom != told.name.pid).collect())
            })
            .collect();
        let sends = |from: u32, to: u32| {
            let mut waits = all.get(&from).into_iter().flatten();
            waits.any(|wait| wait.sends() && wait.whom_pid() == Some(to))
        };
        let cycles = cycles(&blocking).into_iter().map(|cycle| {
            let next = cycle.iter().cycle().skip(1);
            let sends = cycle.iter().zip(next).all(|(from, to)| sends(*from, *to));
            Cycle { processes: cycle.into_iter().map(|pid| name(scene, pid)).collect(), sends }
        });
        Self { cycles: cycles.collect(), ends: ends(scene, &blocking, &all), processes }
    }
}

pub(crate) fn name(scene: &Scene, pid: u32) -> Name {
    let command = scene.owner(pid).map_or_else(String::new, |owner| owner.command().into());
    Name { pid, command }
}

/// Returns the processes at which chains of waiting end: first those that most others wait for.
fn ends(
    scene: &Scene,
    blocking: &BTreeMap<u32, BTreeSet<u32>>,
    all: &BTreeMap<u32, Vec<Wait>>,
) -> Vec<End> {
    let is_end = |pid: &u32| blocking.get(pid).is_none_or(BTreeSet::is_empty);
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for start in blocking.keys() {
        let (mut seen, mut todo) = (BTreeSet::from([*start]), vec![*start]);
        while let Some(pid) = todo.pop() {
            for next in blocking.get(&pid).into_iter().flatten() {
                if seen.insert(*next) {
                    todo.push(*next);
                }
            }
        }
        for end in seen.iter().filter(|pid| *pid != start && is_end(pid)) {
            *counts.entry(*end).or_default() += 1;
        }
    }
    let halted = |pid: u32| scene.owner(pid).and_then(|owner| owner.halted());
    for pid in blocking.keys().filter(|pid| halted(**pid).is_some()) {
        counts.entry(*pid).or_default();
    }
    let mut ends: Vec<End> = counts
        .into_iter()
        .map(|(pid, waiting)| {
            let state = match (scene.owner(pid), halted(pid)) {
                (_, Some(halted)) => format!("is {halted}"),
                (Some(_), None) if all.get(&pid).is_some_and(|waits| !waits.is_empty()) => {
                    "has a loop that watches for messages, and none that it has not read".into()
                }
                (Some(owner), None) => format!("{}, in code of its own", owner.otherwise()),
                (None, None) => "shows nothing: it cannot be looked into, or has ended".into(),
            };
            let is_stopped = halted(pid).is_some_and(|halted| halted.contains("(T)"));
            let remedy = is_stopped.then(|| format!("kill -CONT {pid} continues it"));
            End { name: name(scene, pid), state, waiting, remedy }
        })
        .collect();
    ends.sort_by_key(|end| std::cmp::Reverse(end.waiting));
    ends
}

/// Returns the circles of waiting, each once.
fn cycles(edges: &BTreeMap<u32, BTreeSet<u32>>) -> Vec<Vec<u32>> {
    let mut found: Vec<Vec<u32>> = Vec::new();
    let mut done = BTreeSet::new();
    for start in edges.keys() {
        let mut path = Vec::new();
        search(edges, *start, &mut path, &mut done, &mut found);
    }
    found
}

/// Follows the edges depth first. A process that is on the path already closes a circle.
fn search(
    edges: &BTreeMap<u32, BTreeSet<u32>>,
    pid: u32,
    path: &mut Vec<u32>,
    done: &mut BTreeSet<u32>,
    found: &mut Vec<Vec<u32>>,
) {
    if let Some(at) = path.iter().position(|on| *on == pid) {
        found.push(path[at..].to_vec());
        return;
    }
    if !done.insert(pid) {
        return;
    }
    path.push(pid);
    for next in edges.get(&pid).into_iter().flatten() {
        search(edges, *next, path, done, found);
    }
    path.pop();
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command.as_str() {
            "" => write!(f, "pid {}", self.pid),
            command => write!(f, "{command} (pid {})", self.pid),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for Told { name, waits } in &self.processes {
            let is_told = self.ends.iter().any(|end| end.name == *name);
            if waits.is_empty() && !is_told {
                lines.push(format!("{name} waits for nobody"));
            }
            for wait in waits {
                let since =
                    wait.since().map_or_else(String::new, |age| format!(" since {}", Age(age)));
                let mark = if wait.is_confirmed() { "" } else { " (unconfirmed)" };
                lines.push(format!("{name} {}{since}{}{mark}", wait.what(), wait.detail()));
            }
        }
        for Cycle { processes, sends } in &self.cycles {
            let names: Vec<String> = processes.iter().map(ToString::to_string).collect();
            let first = names.first().cloned().unwrap_or_default();
            let idle = if *sends {
                ""
            } else {
                "; idle, or a deadlock if no other thread of theirs sends"
            };
            lines.push(format!("they wait in a circle: {} → {first}{idle}", names.join(" → ")));
        }
        for End { name, state, waiting, remedy } in &self.ends {
            let waiting = match waiting {
                0 => String::new(),
                1 => "; one process waits for it".into(),
                count => format!("; {count} processes wait for it"),
            };
            let remedy = remedy.as_ref().map_or_else(String::new, |remedy| format!(": {remedy}"));
            lines.push(format!("{name} {state}{waiting}{remedy}"));
        }
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_once() {
        let edges = [(1, [2].into()), (2, [3].into()), (3, [1].into()), (4, [1].into())];
        assert_eq!(cycles(&edges.into()), [vec![1, 2, 3]]);
        assert_eq!(cycles(&[(1, [2].into()), (2, [].into())].into()), Vec::<Vec<u32>>::new());
        assert_eq!(cycles(&[(1, [1].into())].into()), [vec![1]]);
    }
}
