//! One slice of a system: its processes, and what they did in a window of time.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use slipring_bench::results::RobotFigure;
use slipring_bench::runner::median;

use super::record::{self, Kind, Seen};
use super::transport::Transport;
use crate::Outcome;
use crate::systems;
use crate::work::footprint::Held;

/// From the start of the processes to the window: a subscriber of ZeroMQ tries to connect ten times a second.
const RUN_IN: Duration = Duration::from_millis(1500);
/// From the window to the end: its last frames arrive.
const RUN_OUT: Duration = Duration::from_millis(200);

pub struct Slice {
    /// The part of a CPU that each node has used.
    cpu: Vec<(&'static str, f64)>,
    /// Of all nodes together, in KiB. A page that several map counts once.
    memory: f64,
    /// From the start of a frame to the receive of its track, in nanoseconds.
    ages: Vec<u64>,
    sent: usize,
    /// Frames whose track did not arrive.
    untracked: usize,
    /// Frames that the viewer did not get.
    unseen: usize,
}

impl Slice {
    /// Runs the system's processes, and measures for `window`.
    pub fn run(system: &dyn Transport, window: Duration) -> Outcome<Slice> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let robot = format!("robot-{}-{number}", std::process::id());
        let start = |node: &&'static str| Process::start(system.name(), node, &robot);
        let mut processes = system.nodes().iter().map(start).collect::<Outcome<Vec<Process>>>()?;
        thread::sleep(RUN_IN);
        let before = times(&mut processes)?;
        let from = record::now();
        thread::sleep(window);
        let after = times(&mut processes)?;
        let to = record::now();
        let ids: Vec<u32> = processes.iter().map(|process| process.child.id()).collect();
        let memory = Held::by(&ids)?.memory;
        thread::sleep(RUN_OUT);
        let cpu =
            processes.iter().zip(before.iter().zip(&after)).map(|(process, (before, after))| {
                (process.node, (after - before) as f64 / (to - from) as f64)
            });
        let cpu = cpu.collect();
        let mut seen = Vec::new();
        for process in processes {
            seen.extend(process.end()?);
        }
        seen.retain(|seen| (from..to).contains(&seen.head.stamp));
        let of = |kind: Kind| seen.iter().filter(move |seen| seen.kind == kind);
        let numbers = |kind| of(kind).map(|seen| seen.head.sequence).collect::<BTreeSet<_>>();
        let sent = numbers(Kind::Sent);
        let lost = |kind| sent.difference(&numbers(kind)).count();
        if sent.is_empty() {
            return Err(format!("{}: no frame was sent in {window:?}", system.name()).into());
        }
        Ok(Slice {
            cpu,
            memory,
            ages: of(Kind::Track).map(|seen| seen.at - seen.head.stamp).collect(),
            untracked: lost(Kind::Track),
            unseen: lost(Kind::Shown),
            sent: sent.len(),
        })
    }
}

/// Returns the CPU time of each process, in nanoseconds.
fn times(processes: &mut [Process]) -> Outcome<Vec<u64>> {
    processes.iter_mut().map(Process::cpu).collect()
}

/// A node. Dropping kills it.
struct Process {
    node: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(system: &str, node: &'static str, robot: &str) -> Outcome<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["node", system, node, robot])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        Ok(Process { node, child, input, output })
    }

    fn cpu(&mut self) -> Outcome<u64> {
        writeln!(self.input.as_mut().ok_or("the node ends")?, "cpu")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let time = line.trim_end().strip_prefix("cpu ");
        let node = self.node;
        Ok(time.ok_or_else(|| format!("{node} said {line:?}, and not its CPU time"))?.parse()?)
    }

    /// Ends the node in order, and returns what it has recorded.
    fn end(mut self) -> Outcome<Vec<Seen>> {
        drop(self.input.take());
        let seen = (&mut self.output).lines().map(|line| Seen::parse(&line?)).collect();
        let status = self.child.wait()?;
        if status.success() { seen } else { Err(format!("{}: {status}", self.node).into()) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the figure of a system's slices: medians of them, and the quantiles of all their frames.
pub fn figure(system: &dyn Transport, slices: &[Slice]) -> Outcome<RobotFigure> {
    let mut ages = Histogram::<u64>::new(3)?;
    for age in slices.iter().flat_map(|slice| &slice.ages) {
        ages.record(*age)?;
    }
    let middle = |of: &dyn Fn(&Slice) -> Option<f64>| {
        median(&slices.iter().filter_map(of).collect::<Vec<_>>())
    };
    let node = |name: &str| {
        middle(&|slice| Some(100.0 * slice.cpu.iter().find(|(node, _)| *node == name)?.1))
    };
    let quantile = |quantile| (!ages.is_empty()).then(|| ages.value_at_quantile(quantile) as f64);
    let all = |of: fn(&Slice) -> usize| slices.iter().map(of).sum();
    Ok(RobotFigure {
        system: system.name().into(),
        kind: system.kind().name().into(),
        version: system.package().map_or(String::new(), version),
        camera_percent: node("camera"),
        detector_percent: node("detector"),
        tracker_percent: node("tracker"),
        viewer_percent: node("viewer"),
        cpu_percent: middle(&|slice| {
            Some(100.0 * slice.cpu.iter().map(|(_, part)| part).sum::<f64>())
        }),
        age_p50_ns: quantile(0.5),
        age_p99_ns: quantile(0.99),
        sent: all(|slice| slice.sent),
        untracked: all(|slice| slice.untracked),
        unseen: all(|slice| slice.unseen),
        memory_kib: middle(&|slice| Some(slice.memory)),
        slices: slices.len(),
        options: system.options().into(),
    })
}

/// Returns the version of a package. One that carries the sources of another project names that one's behind a plus.
fn version(package: &str) -> String {
    let version = systems::version_of(package);
    version.rsplit_once('+').map_or(version.clone(), |(_, carried)| carried.to_owned())
}
