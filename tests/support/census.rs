//! Counts of what this process holds: descriptors, mappings of segments, threads.
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

/// Returns how many descriptors are open, with the one that reads the folder.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the open descriptors and the mappings of segments, a line each.
fn listing() -> String {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut lines: Vec<_> =
        open.map(|fd| format!("{:?} {:?}", fd.file_name(), fs::read_link(fd.path()))).collect();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    lines.extend(maps.lines().filter(|line| line.contains("/memfd:")).map(String::from));
    lines.join("\n")
}

/// Returns how many mappings of segments there are, own ones and those of peers.
pub fn mappings() -> usize {
    alone();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Returns how many threads there are.
pub fn threads() -> usize {
    alone();
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// The counts at one moment.
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

    /// Waits until the process holds no more than at this moment, or panics with the counts.
    pub fn comes_back(self) {
        self.comes_back_with(0);
    }

    /// As [`comes_back`](Self::comes_back), for a process with a living context. The context may have made its side of
    /// the next link beforehand.
    pub fn comes_back_but_for_a_spare(self) {
        self.comes_back_with(1);
    }

    /// As [`comes_back_but_for_a_spare`](Self::comes_back_but_for_a_spare), with so many links more.
    pub fn comes_back_with(self, spares: usize) {
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
            assert!(!late, "held {self:?}, now {now:?}\n{}", listing());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// Returns the processor time of this process.
pub fn processor_time() -> std::time::Duration {
    alone();
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::time::Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Returns the bytes of all mapped segments. A segment counts once, up to the last byte that is mapped.
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

/// Returns the bytes of private memory that the process uses.
pub fn private_bytes() -> u64 {
    alone();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
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

/// Runs `body` while this process may take only `more` bytes of memory more.
pub fn short_of_memory<T>(more: u64, body: impl FnOnce() -> T) -> T {
    alone();
    // The backtrace of a panic would take more memory than there is.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let resource = rustix::process::Resource::As;
    let before = rustix::process::getrlimit(resource);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let limit = rustix::process::Rlimit { current: Some((size << 10) + more), ..before };
    rustix::process::setrlimit(resource, limit).unwrap();
    let done = body();
    rustix::process::setrlimit(resource, before).unwrap();
    done
}

/// Limits the length of the files that this process may make or write, in bytes.
pub fn limit_files(bytes: u64) {
    alone();
    let resource = rustix::process::Resource::Fsize;
    let before = rustix::process::getrlimit(resource);
    let limit = rustix::process::Rlimit { current: Some(bytes), ..before };
    rustix::process::setrlimit(resource, limit).unwrap();
}
