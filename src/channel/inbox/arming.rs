//! Arming an inbox before its caller sleeps on the link's socket.

use crate::channel::inbox::{Flow, Inbox};
use crate::error::Result;
use crate::status::Awaited;
use crate::wake::before_last_look;

impl Inbox {
    /// Reads the socket, announces to the peer that this half sleeps on it, and checks the ring once more. Returns `true`
    /// if a record has come or the link is over.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        if self.flow == Flow::Held {
            return Ok(true);
        }
        let mut control_socket = self.link.control_socket();
        let taken = if self.link.by_descriptor() {
            control_socket.take_for_data(self.link.socket())
        } else {
            control_socket.take(self.link.socket())
        };
        let is_read = match taken {
            Ok(is_read) => is_read,
            Err(error) => {
                drop(control_socket);
                return Err(self.fail(error));
            }
        };
        // The peer sends one wake-up an epoch, which may be among the packets that are left.
        let woken = control_socket.data_woken() || !is_read;
        if self.flow != Flow::Armed || woken {
            self.flow = Flow::Armed;
            before_last_look(self.data.arm(&self.link, Awaited::Message));
        }
        drop(control_socket);
        Ok(self.is_ready())
    }

    /// Returns whether a record has come, a promised one is missing, or the link is over.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.flow == Flow::Held
            || self.consumer.is_ready()
            || self.consumer.is_cut()
            || !self.link.is_alive()
    }

    /// Publishes that this half is awake, if it was armed.
    pub(crate) fn disarm(&mut self) {
        if self.flow == Flow::Armed {
            self.flow = Flow::Open;
            self.data.disarm(&self.link);
        }
    }
}
