//! Descriptors that the user passes to the peer over the link's socket.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::channel::sender::{Sender, into_error};
use crate::error::{Error, ErrorKind, Result};
use crate::handshake::packet::{MOST, Packet};
use crate::handshake::socket;
use crate::handshake::untrusted::UntrustedFd;
use crate::patience::SendPatience;

impl Sender {
    /// Sends descriptors, which a later record names. Waits for room on the socket until `deadline`. Returns the number of
    /// the first descriptor; the others have the numbers after it.
    ///
    /// After an error some descriptors may have been sent. The peer drops them when a later record names others.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TimedOut`]: the peer did not read its socket before the deadline.
    /// - [`ErrorKind::DescriptorLimit`]: too many descriptors of this user are in flight.
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`].
    #[doc(hidden)]
    pub fn pass(&mut self, fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<u64> {
        self.check()?;
        let number = self.passed;
        let sent = self.post_descriptors(fds, deadline);
        if self.passed > number {
            // The peer reads its socket at this record, in the time that it has for that.
            self.announce_packets(SendPatience::Until(deadline)).map_err(into_error)?;
        }
        sent.map(|()| number)
    }

    fn post_descriptors(&mut self, fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<()> {
        for fds in fds.chunks(MOST) {
            let packet = Packet::Descriptors { first: self.passed, count: fds.len() as u32 };
            while !self.link.post(&packet, fds)? {
                self.await_socket(deadline)?;
            }
            self.passed += fds.len() as u64;
        }
        Ok(())
    }

    /// Waits for room on the socket.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]
    pub(crate) fn await_socket(&self, deadline: Instant) -> Result<()> {
        let start = Instant::now();
        if socket::wait_writable(self.link.socket(), deadline)? {
            return Ok(());
        }
        let late = Error::from(ErrorKind::TimedOut { after: start.elapsed() });
        let peer = self.link.peer_name();
        Err(late.waiting_for(format!("{peer} does not read its socket")))
    }

    /// Returns how many descriptors were sent.
    #[doc(hidden)]
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Lets up to `limit` descriptors of the peer wait until they are taken.
    #[doc(hidden)]
    pub fn admit_descriptors(&self, limit: usize) {
        self.link.control_socket().admit_descriptors(limit);
    }

    /// Returns the descriptors that a record of the peer names, and drops the ones before them.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fault`]: the peer sent no descriptors with these numbers. The connection ends.
    /// - [`ErrorKind::DescriptorLimit`]: this process had no room for one of them. The others are closed.
    /// - [`ErrorKind::AccountFull`]: the account of the link, peer or user had no room. The others are closed.
    #[doc(hidden)]
    pub fn take_descriptors(&self, first: u64, count: usize) -> Result<Vec<UntrustedFd>> {
        let taken = self.link.control_socket().descriptors(self.link.socket(), first, count);
        taken.map_err(|error| self.link.fail(error))?
    }
}
