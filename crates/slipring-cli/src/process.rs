//! What `/proc` tells of a process.

use std::fmt;
use std::fs;

use crate::escaped::Escaped;

/// A process, at the moment when it was looked at.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pid: Option<u32>,
    uid: u32,
    command: Option<String>,
    state: Option<char>,
}

impl Process {
    /// Looks at a process. `None`: it is in another pid namespace.
    pub(crate) fn look(pid: Option<u32>, uid: u32) -> Self {
        let stat = pid.and_then(|pid| fs::read(format!("/proc/{pid}/stat")).ok());
        // pid (command) state: the command may hold parentheses itself, and is followed by the last one. Source: proc(5).
        let (command, state) = stat.as_deref().and_then(parts).unzip();
        let command = command.map(|command| Escaped(command).to_string());
        Self { pid, uid, command, state }
    }

    pub(crate) fn of(peer: &slipring::peer::Peer) -> Self {
        Self::look(peer.pid(), peer.uid())
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns what the process does, in words. `None`: nobody knows.
    pub(crate) fn state(&self) -> Option<&'static str> {
        self.pid?;
        Some(match self.state {
            None | Some('X' | 'x') => "is gone",
            Some('R') => "runs",
            Some('S' | 'I') => "sleeps",
            Some('D') => "waits for a device (D)",
            Some('T') => "is stopped (T): continue it with kill -CONT",
            Some('t') => "is stopped by a debugger (t)",
            Some('Z') => "has ended (Z)",
            Some(_) => return None,
        })
    }
}

fn parts(stat: &[u8]) -> Option<(&[u8], char)> {
    let from = stat.iter().position(|byte| *byte == b'(')? + 1;
    let to = stat.iter().rposition(|byte| *byte == b')')?;
    let state = stat.get(to + 2)?;
    Some((stat.get(from..to)?, char::from(*state)))
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.command) {
            (Some(pid), Some(command)) => write!(f, "process {pid} ({command})"),
            (Some(pid), None) => write!(f, "process {pid}"),
            (None, _) => write!(f, "a process of user {} in another pid namespace", self.uid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_is_read_whole() {
        assert_eq!(parts(b"7 (a) b) S 1 2"), Some((&b"a) b"[..], 'S')));
        assert_eq!(parts(b"7 ) ( S"), None);
        assert_eq!(parts(b"7 (a)"), None);
    }
}
