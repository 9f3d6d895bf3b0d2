//! How much of the processors other programs use.

use std::collections::HashMap;
use std::fs;
use std::time::Instant;

use rustix::process::Pid;

/// `PF_KTHREAD` of the flags in `/proc/PID/stat`: a thread of the kernel.
const KERNEL: u64 = 0x0020_0000;

/// The processor time of everything, and of each process that takes part, at one moment.
#[derive(Debug, Clone)]
pub struct Load {
    at: Instant,
    /// In ticks.
    all: f64,
    /// In ticks, by process.
    ours: HashMap<u32, f64>,
}

/// A process as `/proc/PID/stat` shows it.
struct Process {
    pid: u32,
    group: i32,
    flags: u64,
    ticks: f64,
}

impl Process {
    /// Returns `None` for a process that has ended meanwhile.
    fn of(stat: &str) -> Option<Self> {
        let (start, rest) = stat.rsplit_once(')')?;
        // After the name: state, parent, group, session, terminal, its group, flags, …, user time, system time.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            pid: start.split_once(' ')?.0.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            flags: number(6)?,
            ticks: (number(11)? + number(12)?) as f64,
        })
    }
}

/// Returns all processes.
fn processes() -> impl Iterator<Item = Process> {
    let folders = fs::read_dir("/proc").unwrap().flatten();
    folders.filter_map(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        Process::of(&stat)
    })
}

fn seconds(ticks: f64) -> f64 {
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the processor time of a process group, in seconds.
pub fn spent(group: Pid) -> f64 {
    let group = group.as_raw_nonzero().get();
    seconds(processes().filter(|process| process.group == group).map(|process| process.ticks).sum())
}

impl Load {
    /// Returns the load now. The server, this process, the attacker's group and the kernel take part.
    pub fn now(server: u32, attacker: Option<Pid>) -> Self {
        let attacker = attacker.map(|pid| pid.as_raw_nonzero().get());
        let is_ours = |process: &Process| {
            process.pid == server
                || process.pid == std::process::id()
                || Some(process.group) == attacker
                || process.flags & KERNEL != 0
        };
        let ours =
            processes().filter(is_ours).map(|process| (process.pid, process.ticks)).collect();
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let all = stat.lines().next().unwrap().split_whitespace().skip(1);
        let all: Vec<f64> = all.map(|ticks| ticks.parse().unwrap()).collect();
        // User, nice, system, idle, waiting, interrupts, soft interrupts, stolen. Interrupts are nobody's.
        let all = all[0] + all[1] + all[2] + all.get(7).unwrap_or(&0.0);
        Self { at: Instant::now(), all, ours }
    }

    /// Returns how many processors other programs have used from this moment to `later`.
    pub fn of_others(&self, later: &Self) -> f64 {
        // One that has ended meanwhile does not count.
        let since = |(pid, ticks): (&u32, &f64)| ticks - self.ours.get(pid).unwrap_or(&0.0);
        let ours: f64 = later.ours.iter().map(since).sum();
        let others = (later.all - self.all - ours).max(0.0);
        seconds(others) / later.at.duration_since(self.at).as_secs_f64()
    }
}
