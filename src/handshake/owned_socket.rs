//! Sockets whose close never blocks its thread: that of a peer, and a listening one.
//!
//! 1. The drop of a peer's socket takes packets without descriptors from the queue. If descriptors are left, a thread of
//!    [`untrusted`](super::untrusted) closes the socket.
//! 2. The drop of a listening socket takes the peers from the queue, if this process made the socket. Another process may
//!    accept the peers of an inherited one. A thread of [`untrusted`](super::untrusted) closes a socket that may have peers.
//! 3. A forked child only closes its own descriptor.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::handshake::socket;
use crate::handshake::untrusted::discard;
use crate::shm::fork::Generation;

/// Packets that a drop takes from a socket before it hands the socket to a closing thread.
const PACKETS: usize = 4096;

/// A socket towards a peer.
#[derive(Debug)]
pub(crate) struct Socket {
    /// `Some` until the drop.
    fd: Option<OwnedFd>,
    /// `None` if the process cannot tell a fork. Then the drop only closes the socket.
    generation: Option<Generation>,
    /// The handshake is over: the socket receives credentials, and no pidfd.
    is_of_link: bool,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), generation: Generation::current().ok(), is_of_link: false }
    }

    /// Returns the socket of a link, whose handshake is over.
    pub(crate) fn into_link(mut self) -> Self {
        socket::stop_pidfds(&self);
        self.is_of_link = true;
        self
    }
}

impl Deref for Socket {
    type Target = OwnedFd;

    #[inline(always)]
    fn deref(&self) -> &OwnedFd {
        self.fd.as_ref().expect("there until the drop")
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deref().as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // A forked child has another descriptor of its parent's socket.
        if !self.generation.is_some_and(|generation| generation.is_current()) {
            return;
        }
        // After this nothing can come. An honest peer's last packets have no descriptors.
        socket::end(&fd);
        let drain = if self.is_of_link { socket::drain_link } else { socket::drain };
        if drain(&fd, PACKETS) {
            return;
        }
        let user = socket::maker(&fd).map_or(u32::MAX, |maker| maker.uid);
        discard(vec![fd], user);
    }
}

/// Peers that the queue of a listening socket holds at most: the backlog of `listen`, and one.
const QUEUE: usize = 4097;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    /// `Some` until the drop.
    fd: Option<OwnedFd>,
    /// `None` as for [`Socket`].
    generation: Option<Generation>,
    /// Whether this process made the socket.
    is_own: bool,
}

impl ListeningSocket {
    pub(crate) fn new(fd: OwnedFd, is_own: bool) -> Self {
        Self { fd: Some(fd), generation: Generation::current().ok(), is_own }
    }

    /// Lets nobody join the queue, if this process made the socket.
    pub(crate) fn end(&self) {
        if self.is_own {
            socket::end(self);
        }
    }

    /// Hangs up on the peers in the queue. Returns `false` if one may be left: this process may open no descriptor.
    fn drain(&self) -> bool {
        self.end();
        for _ in 0..QUEUE {
            match socket::accept(self.as_fd()) {
                Ok(Some(peer)) => drop(Socket::new(peer)),
                Ok(None) => return true,
                // The answer of an empty queue that has ended.
                Err(error) => return error.os_code() == Some(Errno::INVAL.raw_os_error()),
            }
        }
        true
    }
}

impl Deref for ListeningSocket {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        self.fd.as_ref().expect("there until the drop")
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deref().as_fd()
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        // The kernel closes the peers in the queue with the last reference to the socket, and what they have sent.
        let is_current = self.generation.is_some_and(|generation| generation.is_current());
        if is_current && !(self.is_own && self.drain()) {
            let user = rustix::process::geteuid().as_raw();
            discard(self.fd.take().into_iter().collect(), user);
        }
    }
}

#[cfg(test)]
mod tests;
