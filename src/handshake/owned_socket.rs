//! The socket of a peer, whose close never blocks its thread.
//!
//! 1. The drop takes packets without descriptors from the queue. If descriptors are left, a thread of
//!    [`untrusted`](super::untrusted) closes the socket.
//! 2. A forked child only closes its own descriptor.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), generation: Generation::current().ok() }
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
        for _ in 0..PACKETS {
            if !socket::holds_unread(&fd) {
                return;
            }
            if socket::next_brings_descriptors(&fd) {
                break;
            }
            socket::skip(&fd);
        }
        discard(vec![fd]);
    }
}
