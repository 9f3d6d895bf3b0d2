//! Descriptors of the user's, which a sender passes over the link's socket.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::channel::sender::Sender;
use crate::error::{ErrorKind, Result};
use crate::handshake::packet::{MOST, Packet};
use crate::handshake::socket;
use crate::handshake::untrusted::UntrustedFd;

impl Sender {
    /// Sends descriptors, for a record that follows to name. Gives the number of the first one; the others
    /// count on from there. Waits for room on the socket until `deadline`.
    ///
    /// After an error some may have been sent. The next record that names any drops those before.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TimedOut`]: the peer has not looked at its socket for long.
    /// - [`ErrorKind::DescriptorLimit`]: too many of this user's are on their way.
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`].
    #[doc(hidden)]
    pub fn pass(&mut self, fds: &[BorrowedFd<'_>], deadline: Instant) -> Result<u64> {
        self.check()?;
        let start = Instant::now();
        let number = self.passed;
        for fds in fds.chunks(MOST) {
            let packet = Packet::Descriptors { first: self.passed, count: fds.len() as u32 };
            while !self.link.post(&packet, fds)? {
                if !socket::wait_writable(&self.link.socket, deadline)? {
                    return Err(ErrorKind::TimedOut { after: start.elapsed() }.into());
                }
            }
            self.passed += fds.len() as u64;
        }
        Ok(number)
    }

    /// Descriptors that were sent.
    #[doc(hidden)]
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// From now on up to `limit` descriptors of the peer's may wait to be taken.
    #[doc(hidden)]
    pub fn admit_descriptors(&self, limit: usize) {
        self.link.control_socket().admit_descriptors(limit);
    }

    /// Takes descriptors that a record of the peer's names; those before them are dropped.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fault`]: there are none of these numbers. The connection is over.
    /// - [`ErrorKind::DescriptorLimit`]: this process had no room for one of them. The others are closed.
    #[doc(hidden)]
    pub fn take_descriptors(&self, first: u64, count: usize) -> Result<Vec<UntrustedFd>> {
        let taken = self.link.control_socket().descriptors(&self.link.socket, first, count);
        taken.map_err(|error| match error.kind() {
            ErrorKind::DescriptorLimit { .. } => error,
            _ => self.link.fail(error),
        })
    }
}
