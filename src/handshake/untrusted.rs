//! Descriptors that a peer controls: its socket, and those that it sent. This process closes them on threads of their
//! own.
//!
//! A descriptor of a peer can block the thread that asks for its state, copies it or closes it. A TCP socket with
//! `SO_LINGER` waits for its reader. A peer can serve the filesystem of a file (FUSE), and the kernel tells that server of
//! `fstat`, `fstatfs` and each `close`. The last `close` of a Unix socket closes the descriptors in its queue.
//!
//! 1. A listener, and a thread that serves links, never closes such a descriptor. They [hand it over](discard).
//! 2. The first question about a descriptor is `F_GET_SEALS`: only memory (shmem, hugetlbfs) answers. The second is a
//!    socket call. Neither asks a filesystem, and nothing else is asked of an unknown descriptor.
//! 3. Sockets and memory close on [threads that exit](super::exits), all else on [threads that block](super::closers).

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::handshake::packet::MOST;
use crate::handshake::{closers, exits};
use crate::shm::{LARGE, memfd_device, most_freed};

/// The bytes that a thread may free for one packet: freeing a GiB takes half a second.
const ROOM: u64 = LARGE as u64;

/// The bytes that a thread may free for one of a packet's descriptors.
const SHARE: u64 = ROOM / MOST as u64;

/// The descriptors that came with a packet. The peer chose their files.
#[derive(Debug, Default)]
pub(crate) struct UntrustedFds {
    fds: Vec<OwnedFd>,
    /// The user whose account they count for.
    user: u32,
}

impl UntrustedFds {
    pub(crate) fn len(&self) -> usize {
        self.fds.len()
    }

    pub(crate) fn push(&mut self, fd: OwnedFd) {
        self.fds.push(fd);
    }

    /// Names the user that sent them.
    pub(crate) fn charge_to(&mut self, user: u32) {
        self.user = user;
    }

    pub(crate) fn pop(&mut self) -> Option<UntrustedFd> {
        let user = self.user;
        self.fds.pop().map(|fd| UntrustedFd { fd: Some(fd), user })
    }

    /// Leaves them open, for a thread whose exit closes its table.
    pub(super) fn leave_open(mut self) {
        for fd in self.fds.drain(..) {
            let _ = fd.into_raw_fd();
        }
    }
}

impl Drop for UntrustedFds {
    fn drop(&mut self) {
        close(std::mem::take(&mut self.fds), self.user, ROOM);
    }
}

/// One descriptor that a peer sent.
///
/// # Examples
///
/// ```no_run
/// # fn read(sent: slipring::seam::UntrustedFd) -> std::io::Result<()> {
/// use std::os::fd::OwnedFd;
///
/// let file = std::fs::File::from(OwnedFd::from(sent)); // from here on the caller closes it
/// # drop(file);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UntrustedFd {
    fd: Option<OwnedFd>,
    user: u32,
}

impl UntrustedFd {
    /// Closes the descriptor of memory that this process has mapped. This takes no time: the mapping keeps the memory.
    pub(crate) fn close_mapped(self) {
        drop(OwnedFd::from(self));
    }
}

impl AsFd for UntrustedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("present until it is taken").as_fd()
    }
}

impl From<UntrustedFd> for OwnedFd {
    fn from(mut untrusted: UntrustedFd) -> Self {
        untrusted.fd.take().expect("present until it is taken")
    }
}

impl Drop for UntrustedFd {
    fn drop(&mut self) {
        close(self.fd.take().into_iter().collect(), self.user, SHARE);
    }
}

/// Closes memfds that free at most `room` bytes together, and hands the others over.
fn close(fds: Vec<OwnedFd>, user: u32, mut room: u64) {
    // One call takes a queue's lock once: a packet can bring 253 descriptors.
    discard(close_within(fds, &mut room), user);
}

/// Closes memfds that free at most `room` bytes together. Returns the others.
fn close_within(mut fds: Vec<OwnedFd>, room: &mut u64) -> Vec<OwnedFd> {
    fds.retain(|fd| match bytes_of(fd).and_then(|bytes| room.checked_sub(bytes)) {
        Some(left) => {
            *room = left;
            false
        }
        None => true,
    });
    fds
}

/// Returns how many bytes the last `close` of a memfd frees at most, or `None` if that is not known. The last `close` of a
/// file on another tmpfs can be the end of that filesystem.
fn bytes_of(fd: &OwnedFd) -> Option<u64> {
    let bytes = most_freed(fd)?;
    let stat = rustix::fs::fstat(fd).ok()?;
    (Some(stat.st_dev) == device_of_memfds()).then_some(bytes)
}

/// Returns the device of all memfds of this machine, or `None` if this process cannot make one.
fn device_of_memfds() -> Option<u64> {
    static DEVICE: OnceLock<u64> = OnceLock::new();
    DEVICE.get().copied().or_else(|| {
        let device = memfd_device()?;
        Some(*DEVICE.get_or_init(|| device))
    })
}

/// Hands descriptors of a user's peer to threads that close them.
pub(super) fn discard(mut fds: Vec<OwnedFd>, user: u32) {
    if fds.is_empty() {
        return;
    }
    let others: Vec<OwnedFd> = fds.extract_if(.., |fd| !closes_at_exit(fd)).collect();
    exits::take(&mut fds);
    fds.extend(others);
    closers::take(fds, user);
}

/// Returns whether `close` does nothing while another reference exists: the file is memory or a socket.
fn closes_at_exit(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok() || rustix::net::sockopt::socket_type(fd).is_ok()
}

/// Returns whether the library receives no further descriptors from a user: too many of them wait to be closed.
pub(crate) fn is_overdrawn(user: u32) -> bool {
    closers::is_overdrawn(user)
}

/// Returns whether a user [may be overdrawn](is_overdrawn).
#[inline]
pub(crate) fn are_some_overdrawn() -> bool {
    closers::are_behind()
}

#[cfg(test)]
pub(super) mod tests;
