//! A server in a process of its own, seen from outside.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::honest::Dial;
use crate::support::other::Other;

/// The longest own mapping that belongs to a link's ring, in bytes. Longer ones are the server's pool, which it keeps.
const RING: u64 = 73_728;

/// The most heap memory that a server keeps after an attack, in MiB. The allocator gives back less than it was given.
const KEPT_HEAP: u64 = 64;

/// The time within which a server holds what it held before. It reads what an attacker has left in its ring: sixteen
/// messages of 512 MiB, for example, which take a build without optimization 20 s on a machine that does other work.
const BACK: Duration = Duration::from_secs(60);

/// The longest file of a server that lacks [`Lack::FileSize`], in bytes: as long as the pool's segments for short messages.
/// The segment for an echo that is longer would be longer, too, and `long-echoes` asks for one.
const LONGEST_FILE: u64 = 1 << 20;

/// The threads that close and free what a peer has left. They end with their last item, or 100 ms after it
/// (`src/handshake/exits.rs`, `src/handshake/closers.rs`, `src/shm/discard.rs`).
const CLEANERS: [&str; 2] = ["slipring-close", "slipring-free"];

/// What a server lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    Nothing,
    /// It can have 600 MB of address space more than at its start.
    Memory,
    /// It cannot make files of more than [`LONGEST_FILE`] bytes.
    FileSize,
}

impl Lack {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Memory => "memory",
            Self::FileSize => "file-size",
        }
    }

    pub fn named(name: &str) -> Self {
        let all = [Self::Nothing, Self::Memory, Self::FileSize];
        all.into_iter().find(|lack| lack.name() == name).unwrap()
    }

    /// Limits this process.
    pub fn apply(self) {
        match self {
            Self::Nothing => {}
            Self::Memory => {
                let status = fs::read_to_string("/proc/self/status").unwrap();
                let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
                let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
                limit(Resource::As, (size << 10) + 600_000_000);
            }
            Self::FileSize => limit(Resource::Fsize, LONGEST_FILE),
        }
    }
}

/// Limits this process.
pub fn limit(resource: Resource, most: u64) {
    let limit = Rlimit { current: Some(most), maximum: getrlimit(resource).maximum };
    setrlimit(resource, limit).unwrap();
}

/// A server under attack. Killed on drop.
pub struct Subject {
    pub process: Other,
    /// The abstract name, or host and port.
    pub address: String,
    /// How an honest client reaches it.
    pub dial: Arc<Dial>,
}

/// What a server holds, its own pool left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub descriptors: usize,
    /// Mappings of segments.
    pub mappings: usize,
    /// Threads without the [`CLEANERS`].
    pub threads: usize,
    /// The [`CLEANERS`] that live.
    pub cleaners: usize,
    /// Memory that no file backs, in MiB.
    pub heap: u64,
}

impl Subject {
    fn file(&self, name: &str) -> Result<String, String> {
        let path = format!("/proc/{}/{name}", self.process.pid());
        fs::read_to_string(path).map_err(|error| format!("the server is gone: {name}: {error}"))
    }

    fn status(&self, field: &str) -> Result<u64, String> {
        let status = self.file("status")?;
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let value = value.ok_or_else(|| format!("the server is gone: it has no {field}"))?;
        Ok(value.trim().trim_end_matches(" kB").parse().unwrap())
    }

    /// Memory that no file backs, in MiB.
    pub fn heap(&self) -> Result<u64, String> {
        Ok(self.status("RssAnon")? >> 10)
    }

    pub fn held(&self) -> Result<Held, String> {
        let folder = format!("/proc/{}/fd", self.process.pid());
        let descriptors = fs::read_dir(folder).map_err(|error| error.to_string())?.count();
        let (mut pool, mut mappings) = (0, 0);
        for line in self.file("maps")?.lines().filter(|line| line.contains("/memfd:")) {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let number = |hex| u64::from_str_radix(hex, 16).unwrap();
            let is_pool = line.contains("rw-s") && number(end) - number(start) > RING;
            *(if is_pool { &mut pool } else { &mut mappings }) += 1;
        }
        let (threads, cleaners) = self.threads()?;
        let heap = self.heap()?;
        let descriptors = descriptors.saturating_sub(pool);
        Ok(Held { descriptors, mappings, threads, cleaners, heap })
    }

    /// Counts the threads: those that are none of the [`CLEANERS`], and the cleaners.
    fn threads(&self) -> Result<(usize, usize), String> {
        let folder = format!("/proc/{}/task", self.process.pid());
        let tasks = fs::read_dir(folder).map_err(|error| error.to_string())?.flatten();
        // A thread that has ended meanwhile has no name.
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let is_cleaner = |name: &String| CLEANERS.contains(&name.trim_end());
        let (cleaners, others): (Vec<String>, Vec<String>) = names.partition(is_cleaner);
        Ok((others.len(), cleaners.len()))
    }

    /// Waits until the server holds no more than it did then, two descriptors and mappings aside: the side of the next
    /// link that it keeps ready. No thread is aside, and no cleaner lives. Returns how long that took.
    pub fn comes_back(&self, then: Held) -> Result<Duration, String> {
        let start = Instant::now();
        loop {
            let now = self.held()?;
            if now.descriptors <= then.descriptors + 2
                && now.mappings <= then.mappings + 2
                && now.threads <= then.threads
                && now.cleaners == 0
                && now.heap <= then.heap + KEPT_HEAP
            {
                return Ok(start.elapsed());
            }
            if start.elapsed() > BACK {
                return Err(format!("does not come back: held {then:?}, now {now:?}"));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
