//! The socket of a link, which wakes its halves when they are armed.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::error::Result;
use crate::handshake::peer::Credentials;
#[cfg(feature = "tokio")]
use crate::handshake::peer::Peer;
use crate::link::link::Link;
use crate::wake::Spin;
#[cfg(feature = "tokio")]
use crate::wake::SpinPolicy;

/// The socket of a link, which wakes its halves when they are armed.
#[derive(Debug, Clone)]
pub struct LinkSocket {
    link: Arc<Link>,
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "for runtimes"))]
    spin: Spin,
}

impl LinkSocket {
    pub(crate) fn new(link: Arc<Link>, spin: Spin) -> Self {
        Self { link, spin }
    }

    /// From now on somebody sleeps on it.
    pub fn use_descriptor(&self) {
        self.link.use_descriptor();
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn spin(&self) -> SpinPolicy {
        SpinPolicy::new(self.spin)
    }

    /// Whether no `fork` lies between the caller and the link's process.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_here(&self) -> bool {
        self.link.own.generation().is_current()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn peer(&self) -> &Peer {
        &self.link.identity
    }

    /// A half is about to say once more that it sleeps on the socket: takes the wake-ups of earlier
    /// sleeps if they may be many. True: one of them was for the receiving half, which may sleep.
    pub(crate) fn make_way(&self) -> Result<bool> {
        let mut control_socket = self.link.control_socket();
        if !control_socket.is_crowded() {
            return Ok(false);
        }
        let taken = control_socket.take_late(&self.link.socket);
        let woken = control_socket.data_woken();
        drop(control_socket);
        taken.map(|()| woken).map_err(|error| self.link.fail(error))
    }

    /// Something may have come: takes in descriptors, where any are admitted, that no record may ever name. True: more may
    /// be there. The caller looks at the receiving half next, whether it was woken or not.
    pub(crate) fn take_in(&self) -> bool {
        if !self.is_alive() {
            return false;
        }
        let taken = self.link.control_socket().take_in(&self.link.socket);
        taken.map_err(|error| self.link.fail(error)).unwrap_or(false)
    }

    /// What the kernel vouches for about the peer.
    pub(crate) fn credentials(&self) -> Credentials {
        self.link.identity.credentials
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    /// The kernel says that the peer's end is closed.
    pub(crate) fn hang_up(&self) {
        self.link.hang_up();
    }

    /// Whether a wake-up for the sending half was taken, which it has not heard of.
    #[cfg(feature = "tokio")]
    pub(crate) fn room_woken(&self) -> bool {
        self.link.control_socket().room_woken()
    }

    /// Whether a wake-up for the receiving half was taken; it hears of that when it arms.
    #[cfg(feature = "tokio")]
    pub(crate) fn data_woken(&self) -> bool {
        self.link.control_socket().is_data_woken()
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }
}

impl AsRawFd for LinkSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.link.socket.as_raw_fd()
    }
}
