//! A sender that is about to sleep on the link's socket, until there is room.

use std::time::Instant;

use crate::channel::sender::Sender;
use crate::error::Result;
use crate::link::control_socket::ROOM_WAKES;
use crate::patience::after;
use crate::wake::before_last_look;

impl Sender {
    /// Reads the socket, and announces to the peer that this half sleeps on it until there is room. The caller checks for
    /// room once more. Returns whether a wake-up for the receiving half was read, which may sleep on the same socket.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        let link = &*self.link;
        let mut control_socket = link.control_socket();
        let taken = if link.by_descriptor() {
            control_socket.want_room();
            control_socket.take_for_room(&link.socket)
        } else {
            control_socket.take(&link.socket)
        };
        taken.map_err(|error| link.fail(error))?;
        control_socket.room_woken();
        control_socket.expect(ROOM_WAKES);
        let data_woken = control_socket.is_data_woken();
        before_last_look(self.room.arm(link));
        Ok(data_woken)
    }

    /// Publishes that this half sleeps on the socket. The caller issues the barrier and checks once more.
    pub(crate) fn doze(&mut self) -> bool {
        self.link.control_socket().expect(ROOM_WAKES);
        self.room.arm(&self.link)
    }

    /// Returns the deadline of an operation that starts now and waits for
    /// [`Options::send_timeout`](crate::Options::send_timeout).
    #[doc(hidden)]
    pub fn default_deadline(&self) -> Instant {
        after(self.session.env.options().send_timeout)
    }

    /// Returns whether the link has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    /// Publishes that this half is awake.
    pub(crate) fn rouse(&mut self) {
        self.room.disarm(&self.link);
    }
}
