//! A process that is looked at: what `/proc` tells of it.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::escaped::Escaped;

/// The most threads of a process that are looked at.
const MOST_THREADS: usize = 4096;

/// A process of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pid: u32,
    uid: u32,
    command: String,
    /// As in `proc(5)`.
    state: char,
    /// When it started, in clock ticks: with the pid it names one process.
    started: u64,
    /// Its pid in its own namespace.
    inner: u32,
    /// Whether it counts pids as this process does.
    shares_pids: bool,
}

impl Owner {
    /// Looks at a process. `None`: it has ended.
    pub(crate) fn look(pid: u32) -> Option<Self> {
        let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let Stat { command, state, started } = Stat::read(&stat)?;
        let command = Escaped(command).to_string();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let inner = inner.and_then(|pids| pids.split_whitespace().last()?.parse().ok());
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        let theirs = namespace(&pid.to_string());
        let shares_pids = theirs.is_some() && theirs == namespace("self");
        let inner = inner.unwrap_or(pid);
        Some(Self { pid, uid, command, state, started, inner, shares_pids })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    pub(crate) fn state(&self) -> char {
        self.state
    }

    pub(crate) fn inner(&self) -> u32 {
        self.inner
    }

    /// Returns whether a pid that this process tells of is one of this namespace.
    pub(crate) fn shares_pids(&self) -> bool {
        self.shares_pids
    }

    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Returns why the process does nothing at all, if so.
    pub(crate) fn halted(&self) -> Option<&'static str> {
        match self.state {
            'T' => Some("stopped (T)"),
            't' => Some("stopped by a debugger (t)"),
            _ => None,
        }
    }

    /// Returns what a process does that does not wait for slipring.
    pub(crate) fn otherwise(&self) -> &'static str {
        let busy = || threads(self.pid).any(|state| state == 'R');
        match self.state {
            _ if busy() => "computes",
            'D' => "waits for a device",
            _ => "sleeps in something else",
        }
    }
}

/// Returns the states of a process's threads, of not too many.
fn threads(pid: u32) -> impl Iterator<Item = char> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.take(MOST_THREADS).filter_map(|thread| {
        let stat = fs::read(thread.path().join("stat")).ok()?;
        Some(Stat::read(&stat)?.state)
    })
}

/// The words of `/proc/PID/stat` that are needed here.
#[derive(Debug, PartialEq, Eq)]
struct Stat<'a> {
    command: &'a [u8],
    state: char,
    started: u64,
}

impl<'a> Stat<'a> {
    /// Reads `pid (command) state …`. The command may hold parentheses itself, and is followed by the last one.
    fn read(stat: &'a [u8]) -> Option<Self> {
        let from = stat.iter().position(|byte| *byte == b'(')? + 1;
        let to = stat.iter().rposition(|byte| *byte == b')')?;
        let command = stat.get(from..to)?;
        let mut fields = std::str::from_utf8(stat.get(to + 2..)?).ok()?.split(' ');
        let state = fields.next()?.chars().next()?;
        // The 22nd field; the state is the third.
        Some(Self { command, state, started: fields.nth(18)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_is_read_whole() {
        let stat = b"7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99 20";
        let read = Stat { command: b"a) b", state: 'S', started: 99 };
        assert_eq!(Stat::read(stat), Some(read));
        assert_eq!(Stat::read(b"7 ) ( S"), None);
        assert_eq!(Stat::read(b"7 (a)"), None);
        assert_eq!(Stat::read(b"7 (a) S 1"), None);
    }
}
