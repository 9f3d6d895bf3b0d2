//! What this process holds: descriptors, and mappings of segments.
//!
//! The tests of a binary share a process. A test that counts what the process holds, or lowers a limit of it, needs a
//! process of its own ([`Other`](super::other::Other)). Without one a [`Census`] panics.

use std::fs;
use std::os::fd::AsRawFd;

use super::other::is_alone;

/// Panics where other tests run in the same process.
fn alone() {
    assert!(is_alone(), "a process of its own is needed: see Other::start");
}

/// Descriptors that are open, the one that counts included.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Mappings of segments, ours and peers'.
pub fn mappings() -> usize {
    alone();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Threads.
pub fn threads() -> usize {
    alone();
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// What a process holds at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    pub descriptors: usize,
    pub mappings: usize,
    pub threads: usize,
}

impl Census {
    pub fn take() -> Self {
        Self { descriptors: descriptors(), mappings: mappings(), threads: threads() }
    }

    /// Waits until the process holds what it held then, or says what it still holds.
    pub fn comes_back(self) {
        self.comes_back_with(0);
    }

    /// As [`comes_back`](Self::comes_back), for a process in which one context lives on: it may
    /// have made its side of the next link beforehand, or not.
    pub fn comes_back_but_for_a_spare(self) {
        self.comes_back_with(1);
    }

    fn comes_back_with(self, spares: usize) {
        let deadline = super::soon();
        loop {
            let now = Self::take();
            // A link's own segment is one descriptor and two mappings.
            if now.descriptors <= self.descriptors + spares
                && now.mappings <= self.mappings + 2 * spares
                && now.threads <= self.threads
            {
                return;
            }
            let late = std::time::Instant::now() >= deadline;
            assert!(!late, "held {self:?}, now {now:?}");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// Time that this process has spent on processors.
pub fn processor_time() -> std::time::Duration {
    alone();
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::time::Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Bytes of shared memory that segments take, each counted once: by inode, up to the last byte that is
/// mapped.
pub fn shared_bytes() -> u64 {
    alone();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut segments = std::collections::HashMap::new();
    for line in maps.lines().filter(|line| line.contains("/memfd:")) {
        // start-end rights offset device inode name
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |hex| u64::from_str_radix(hex, 16).unwrap();
        let (start, end) = fields[0].split_once('-').unwrap();
        let last = number(fields[2]) + number(end) - number(start);
        let len = segments.entry(fields[4].to_owned()).or_insert(0);
        *len = last.max(*len);
    }
    segments.values().sum()
}

/// Lowers the limit on descriptors so that `free` more can be opened.
pub fn leave_descriptors(free: u64) -> rustix::process::Rlimit {
    alone();
    let resource = rustix::process::Resource::Nofile;
    let before = rustix::process::getrlimit(resource);
    let probe = fs::File::open("/dev/null").unwrap();
    let mut next = probe.as_raw_fd() as u64;
    drop(probe);
    // Holes below are filled, so that the limit counts.
    let highest = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok())
        .max()
        .unwrap();
    let mut fillers = Vec::new();
    while next < highest {
        let filler = fs::File::open("/dev/null").unwrap();
        next = filler.as_raw_fd() as u64;
        fillers.push(filler);
    }
    drop(fillers.pop());
    std::mem::forget(fillers);
    let probe = fs::File::open("/dev/null").unwrap();
    let current = Some(probe.as_raw_fd() as u64 + free);
    drop(probe);
    let limit = rustix::process::Rlimit { current, maximum: before.maximum };
    rustix::process::setrlimit(resource, limit).unwrap();
    before
}
