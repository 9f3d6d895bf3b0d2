//! A process, as `/proc` tells of it.

use std::fmt;

use crate::look::Owner;

/// A process, at the moment when it was looked at.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pid: Option<u32>,
    uid: u32,
    /// `None`: it has ended, or is in another pid namespace.
    owner: Option<Owner>,
}

impl Process {
    /// Looks at a process. `None`: it is in another pid namespace.
    pub(crate) fn look(pid: Option<u32>, uid: u32) -> Self {
        Self { pid, uid, owner: pid.and_then(Owner::look) }
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
        let Some(owner) = &self.owner else { return Some("is gone") };
        Some(match owner.state() {
            'X' | 'x' => "is gone",
            'R' => "runs",
            'S' | 'I' => "sleeps",
            'D' => "waits for a device (D)",
            'T' => "is stopped (T): continue it with kill -CONT",
            't' => "is stopped by a debugger (t)",
            'Z' => "has ended (Z)",
            _ => return None,
        })
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.owner) {
            (Some(pid), Some(owner)) => write!(f, "process {pid} ({})", owner.command()),
            (Some(pid), None) => write!(f, "process {pid}"),
            (None, _) => write!(f, "a process of user {} in another pid namespace", self.uid),
        }
    }
}
