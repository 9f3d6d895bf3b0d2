//! A sender that is about to sleep on the link's socket, until there is room.

use std::time::Instant;

use crate::channel::sender::Sender;
use crate::error::Result;
use crate::handshake::packet::Reason;
use crate::patience::after;
use crate::wake::before_last_look;

/// The room that an armed sender waits for. Room in the pool is more than any room in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    /// Room for a record with a payload of so many bytes.
    Ring(u64),
    /// A block, a loan slot, or the announcement of a segment.
    Pool,
}

impl Sender {
    /// Arms as [`arm`](Self::arm) does, until the sender [finds](Self::found) this room.
    pub(crate) fn arm_for(&mut self, room: Room) -> Result<()> {
        self.wanted = self.wanted.max(Some(room));
        self.arm().map(drop)
    }

    /// Notes that a message found room. An armed sender that found at least the room that it waits for is awake. Less
    /// room does not disarm it: its caller may sleep until there is room for the longer message.
    #[inline(always)]
    pub(crate) fn found(&mut self, room: Room) {
        if self.wanted.is_some_and(|wanted| wanted <= room) {
            self.rouse();
        }
    }

    /// Notes that an armed sender found no room, and its caller may sleep.
    pub(crate) fn found_no_room(&self) {
        self.link.control_socket().found_nothing(Reason::Room);
    }

    /// Reads the socket, and announces to the peer that this half sleeps on it until there is room. The caller checks for
    /// room once more. Returns whether a wake-up for the receiving half was read, which may sleep on the same socket.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        let link = &*self.link;
        let mut control_socket = link.control_socket();
        let taken = if link.by_descriptor() {
            control_socket.take_for(Reason::Room, link.socket())
        } else {
            control_socket.take(link.socket())
        };
        taken.map_err(|error| link.fail(error))?;
        control_socket.room_woken();
        let data_woken = control_socket.is_data_woken();
        before_last_look(self.room.arm(link));
        Ok(data_woken)
    }

    /// Publishes that this half sleeps on the socket. The caller issues the barrier and checks once more.
    pub(crate) fn doze(&mut self) -> bool {
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

    /// Publishes that this half is awake, if it was armed.
    #[inline]
    pub(crate) fn rouse(&mut self) {
        self.wanted = None;
        self.room.disarm(&self.link);
    }
}
