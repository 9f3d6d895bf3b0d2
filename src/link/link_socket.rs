//! The socket of a link, for event loops and runtimes.
//!
//! 1. A handle keeps the link alive, but not its session.
//! 2. A half that finds nothing arms the socket once [`LinkSocket::use_descriptor`] was called.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::error::Result;
use crate::link::link::Link;

/// The socket of a link, which wakes its halves when they are armed.
///
/// # Examples
///
/// ```
/// use slipring::seam::LinkSocket;
/// use std::os::fd::{AsFd, AsRawFd};
///
/// fn watch(socket: &LinkSocket) -> i32 {
///     socket.use_descriptor(); // from now on a poll that finds nothing arms the socket
///     assert_eq!(socket.as_fd().as_raw_fd(), socket.as_raw_fd());
///     socket.as_raw_fd()
/// }
/// # let _ = watch;
/// ```
#[derive(Debug, Clone)]
pub struct LinkSocket {
    link: Arc<Link>,
}

impl LinkSocket {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }

    /// Notes that a thread sleeps on the socket: a half that finds nothing arms it.
    pub fn use_descriptor(&self) {
        self.link.use_descriptor();
    }

    /// Notes that a half is about to sleep on the socket without reading it. Takes the wake-ups of earlier sleeps if
    /// they may be many. Returns whether one of them was for the receiving half, which may sleep.
    pub(crate) fn note_sleep(&self) -> Result<bool> {
        let noted = self.link.control_socket().note_sleep(self.link.socket());
        noted.map_err(|error| self.link.fail(error))
    }

    /// Reads the socket if this side admits descriptors, or the peer may withdraw allocations. Returns whether more may be
    /// there. The caller polls the receiving half next in any case.
    pub(crate) fn take_in(&self) -> bool {
        if !self.is_alive() {
            return false;
        }
        let taken = self.link.control_socket().take_in(self.link.socket());
        taken.map_err(|error| self.link.fail(error)).unwrap_or(false)
    }

    /// Takes withdrawals of allocations that come next, while the halves may sleep. Returns `false` if something else comes
    /// next, or the end: the halves read that, and withdrawals behind it.
    pub fn take_withdrawals(&self) -> bool {
        if !self.is_alive() {
            return false;
        }
        let taken = self.link.control_socket().take_withdrawals(self.link.socket());
        taken.map_err(|error| self.link.fail(error)).is_ok_and(|is_other| !is_other)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    /// Notes that the peer's end of the socket is closed.
    pub(crate) fn hang_up(&self) {
        self.link.hang_up();
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.socket().as_fd()
    }
}

impl AsRawFd for LinkSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.link.socket().as_raw_fd()
    }
}
