//! The process on the other side of a link, as the kernel describes it.
//!
//! 1. Credentials are those of the process that sent the Hello.
//! 2. A pidfd names that process as long as it is open, even after another process has its pid.

use std::fs::read_link;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// The ids of a process, for which the kernel vouches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// The process id, or `None` if the process is outside of this process's pid namespace.
    pub(crate) pid: Option<u32>,
    /// The effective user id.
    pub(crate) uid: u32,
    /// The effective group id.
    pub(crate) gid: u32,
}

/// The peer of a connection, as the kernel described the sender of its Hello.
///
/// # Examples
///
/// ```
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut listener = context.listen(&address)?;
/// let accepted = std::thread::spawn(move || listener.accept());
/// let link = context.connect(&address)?;
/// assert_eq!(link.peer().pid(), Some(std::process::id())); // both ends are in this process
/// # drop(accepted.join().unwrap()?);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Peer {
    credentials: Credentials,
    pidfd: Option<Arc<OwnedFd>>,
}

impl Peer {
    pub(crate) fn new(credentials: Credentials, pidfd: Option<OwnedFd>) -> Self {
        Self { credentials, pidfd: pidfd.map(Arc::new) }
    }

    /// Returns the peer without its pidfd, for handles that outlive the link.
    pub(crate) fn without_pidfd(&self) -> Self {
        Self { credentials: self.credentials, pidfd: None }
    }

    /// Returns the process id, or `None` if the peer is outside of this process's pid namespace.
    pub fn pid(&self) -> Option<u32> {
        self.credentials.pid
    }

    /// Returns the effective user id. The overflow uid (65534) stands for every user that this process's user namespace
    /// does not map.
    pub fn uid(&self) -> u32 {
        self.credentials.uid
    }

    /// Returns the effective group id.
    pub fn gid(&self) -> u32 {
        self.credentials.gid
    }

    /// Returns a descriptor of the peer's process, which stays true when the kernel reuses the pid. Returns `None` if
    /// the kernel is older than Linux 5.3, or older than Linux 6.5 and the peer in another pid namespace; in a
    /// [`PeerPolicy`](crate::options::PeerPolicy); and of a [`Link`](crate::Link) or a caller of committed buffers, which can
    /// outlive the connection.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(|pidfd| pidfd.as_fd())
    }

    /// Reads the name of the peer's command. `None`: it is in another pid namespace, or has ended.
    pub(crate) fn command(&self) -> Option<String> {
        let name = command_of(self.pid()?)?;
        // After the peer has ended, its pid may be another process's.
        self.pidfd().is_none_or(|pidfd| !has_ended(pidfd)).then_some(name)
    }

    /// Returns how the peer's process ended, if it was a child of this one that nobody has waited for.
    pub(crate) fn exit(&self) -> Option<String> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(self.pidfd()?), options).ok()??;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(format!("it exited with {code}")),
            (_, Some(signal)) => Some(format!("signal {signal} ended it")),
            _ => None,
        }
    }

    /// Returns the descriptor for use after the link has ended.
    pub(crate) fn life(&self) -> Option<Arc<OwnedFd>> {
        self.pidfd.clone()
    }

    /// Returns the first of these namespaces, as `/proc/pid/ns` names them, that the peer does not share with this
    /// process. Returns `None` if there is none, or `/proc` does not show it.
    pub(crate) fn other_namespace(&self, of: &[&'static str]) -> Option<&'static str> {
        let Some(pid) = self.credentials.pid else {
            // The kernel reports no pid of a process outside of this pid namespace and those within it (`pid_vnr`).
            return of.iter().copied().find(|name| *name == "pid");
        };
        // The `/proc` of another pid namespace shows other processes under these pids.
        if read_link("/proc/self").ok()? != Path::new(&std::process::id().to_string()) {
            return None;
        }
        let differs = |name: &&&str| {
            let ours = read_link(format!("/proc/self/ns/{name}"));
            let theirs = read_link(format!("/proc/{pid}/ns/{name}"));
            matches!((ours, theirs), (Ok(ours), Ok(theirs)) if ours != theirs)
        };
        let other = of.iter().find(differs).copied()?;
        // After the peer has ended, its pid may be another process's.
        let lives = self.pidfd().is_some_and(|pidfd| !has_ended(pidfd));
        lives.then_some(other)
    }
}

/// Names the process, for errors.
impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid() {
            Some(pid) => write!(f, "process {pid} of user {}", self.uid()),
            None => write!(f, "a process of user {}", self.uid()),
        }
    }
}

/// Returns the name of a process's command, with what could steer a terminal escaped: any process chooses its own name.
pub(crate) fn command_of(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    Some(name.escape_ascii().to_string())
}

/// Returns whether the process of a pidfd has ended, with its descriptors closed and its memory released.
///
/// The kernel makes a pidfd readable in `exit_notify` (`kernel/exit.c`), after it has closed the files of the process
/// and run the work that this deferred.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    // After an error (a signal, no memory) the caller asks once more.
    matches!(poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(ready) if ready > 0)
}

#[cfg(test)]
mod tests;
