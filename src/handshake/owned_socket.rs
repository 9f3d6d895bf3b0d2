//! The socket of a peer, closed with care.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::handshake::socket;
use crate::handshake::untrusted::discard;
use crate::shm::fork::Generation;

/// Packets that are taken from a socket before it is closed elsewhere.
const PACKETS: usize = 4096;

/// A socket towards a peer.
#[derive(Debug)]
pub(crate) struct Socket {
    /// There until the drop.
    fd: Option<OwnedFd>,
    /// `None` where that cannot be told; then it is just closed.
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
        // A forked child has another handle of its parent's socket, and just closes it.
        if !self.generation.is_some_and(|generation| generation.is_current()) {
            return;
        }
        // Nothing more can come. What has come without descriptors is taken, as an honest peer's last packets are.
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
