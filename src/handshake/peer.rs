//! Who is on the other side.

use std::fs::read_link;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What the kernel vouches for about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The process id, or `None` if the process is outside of this process's pid namespace.
    pub pid: Option<u32>,
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

/// The peer of a connection, as the kernel described the sender of its Hello.
#[derive(Debug)]
pub struct Peer {
    pub(crate) credentials: Credentials,
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
}

impl Peer {
    /// The process id, or `None` if the peer is outside of this process's pid namespace.
    pub fn pid(&self) -> Option<u32> {
        self.credentials.pid
    }

    /// The effective user id.
    pub fn uid(&self) -> u32 {
        self.credentials.uid
    }

    /// The effective group id.
    pub fn gid(&self) -> u32 {
        self.credentials.gid
    }

    /// A descriptor of the peer's process, which no reuse of its pid can confuse. `None` where the
    /// kernel is older than 5.3, or than 6.5 and the peer in another pid namespace.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(|pidfd| pidfd.as_fd())
    }

    /// That descriptor, also for when the link is over.
    pub(crate) fn life(&self) -> Option<Arc<OwnedFd>> {
        self.pidfd.clone()
    }

    /// The first namespace of these, as `/proc/pid/ns` names them, that this process and the peer each have for
    /// themselves. `None`: there is none, or `/proc` does not tell.
    pub(crate) fn other_namespace(&self, of: &[&'static str]) -> Option<&'static str> {
        let Some(pid) = self.credentials.pid else {
            // The kernel gives no pid of a process whose namespace is neither ours nor within it (`pid_vnr`).
            return of.iter().copied().find(|name| *name == "pid");
        };
        // Another namespace's `/proc` has other processes under our numbers.
        if read_link("/proc/self").ok()? != Path::new(&std::process::id().to_string()) {
            return None;
        }
        let differs = |name: &&&str| {
            let ours = read_link(format!("/proc/self/ns/{name}"));
            let theirs = read_link(format!("/proc/{pid}/ns/{name}"));
            matches!((ours, theirs), (Ok(ours), Ok(theirs)) if ours != theirs)
        };
        let other = of.iter().find(differs).copied()?;
        // Once it has ended, its number may be another process's.
        let lives = self.pidfd().is_some_and(|pidfd| !has_ended(pidfd));
        lives.then_some(other)
    }
}

/// Whether the process of a pidfd has ended, its descriptors closed and its memory given up.
///
/// The kernel tells so when the whole process is gone (`exit_notify` in `kernel/exit.c`), after it has closed
/// its files and done what that put off.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    // Interrupted, or out of memory: it is asked again.
    matches!(poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(ready) if ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    const BOTH: [&str; 2] = ["pid", "ipc"];

    /// A peer with this pid, and this process's life.
    fn peer(pid: Option<u32>) -> Peer {
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).ok().map(Arc::new);
        Peer { credentials: Credentials { pid, uid: 0, gid: 0 }, pidfd }
    }

    #[test]
    fn a_namespace_is_another_one_only_where_that_is_seen() {
        assert_eq!(peer(Some(std::process::id())).other_namespace(&BOTH), None);
        // No number of a process (`PID_MAX_LIMIT` is 2²²): nothing can be read of it.
        assert_eq!(peer(Some(u32::MAX / 2)).other_namespace(&BOTH), None);
        assert_eq!(peer(None).other_namespace(&BOTH), Some("pid"));
        assert_eq!(peer(None).other_namespace(&["ipc"]), None);
    }
}
