//! What a node has seen, and its process's CPU time, for the process that measures.
//!
//! A node's standard input has commands: each line asks for its CPU time, and the end of the input ends the node. Its
//! standard output has `cpu NANOSECONDS` for each line, and at the end `KIND SEQUENCE STAMP AT` for each message that was
//! recorded.

use std::io::{BufRead, BufWriter, Write, stdin, stdout};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::time::{ClockId, clock_gettime};

use super::transport::Head;
use crate::Outcome;

static ENDS: AtomicBool = AtomicBool::new(false);
static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

/// A message that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub head: Head,
    /// In nanoseconds of CLOCK_MONOTONIC.
    pub at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The camera sent a frame.
    Sent,
    /// The viewer found the disc in a frame.
    Shown,
    /// The viewer received a track.
    Track,
}

impl Kind {
    const ALL: [(Kind, &str); 3] =
        [(Kind::Sent, "sent"), (Kind::Shown, "shown"), (Kind::Track, "track")];
}

impl Seen {
    /// Parses a line of a node's output.
    pub fn parse(line: &str) -> Outcome<Seen> {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, sequence, stamp, at] = words[..] else {
            return Err(format!("a node said {line:?}").into());
        };
        let known = Kind::ALL.iter().find(|(_, name)| *name == kind);
        let (kind, _) = known.ok_or_else(|| format!("a node said {line:?}"))?;
        let head = Head { sequence: sequence.parse()?, stamp: stamp.parse()? };
        Ok(Seen { kind: *kind, head, at: at.parse()? })
    }

    fn line(&self) -> String {
        let name =
            Kind::ALL.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, name)| name);
        format!("{name} {} {} {}", self.head.sequence, self.head.stamp, self.at)
    }
}

/// Serves commands on a thread of its own.
pub fn serve() {
    thread::spawn(|| {
        for line in stdin().lock().lines() {
            let asked = line.and_then(|_| writeln!(stdout(), "cpu {}", cpu()));
            if asked.is_err() {
                break;
            }
        }
        ENDS.store(true, Ordering::Relaxed);
    });
}

/// Returns whether the node is to end.
pub fn ends() -> bool {
    ENDS.load(Ordering::Relaxed)
}

pub fn put(kind: Kind, head: Head) {
    let seen = Seen { kind, head, at: now() };
    SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(seen);
}

/// Writes what was recorded.
pub fn write() -> Outcome<()> {
    let mut out = BufWriter::new(stdout().lock());
    for seen in SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
        writeln!(out, "{}", seen.line())?;
    }
    Ok(out.flush()?)
}

/// Returns the nanoseconds of CLOCK_MONOTONIC, which all processes share.
pub fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns the nanoseconds that all threads of this process have used, in user and system mode.
fn cpu() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
