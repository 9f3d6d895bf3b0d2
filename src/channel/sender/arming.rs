//! A sender that is about to sleep on the link's socket, until there is room.

use std::time::Instant;

use crate::channel::sender::Sender;
use crate::error::Result;
use crate::patience::after;
use crate::ring::Header;
use crate::status::{Awaited, State};
use crate::wake::before_last_look;

/// The room that an armed sender waits for.
#[derive(Debug, Default)]
pub(crate) struct WantedRoom {
    /// Room in the ring for a record with a payload of so many bytes.
    ring: Option<u64>,
    /// A block, a loan slot, or the announcement of a segment.
    pool: bool,
}

impl WantedRoom {
    #[inline(always)]
    fn is_any(&self) -> bool {
        self.ring.is_some() || self.pool
    }
}

impl Sender {
    /// Arms as [`arm`](Self::arm) does, until the sender [finds](Self::found) room for this record.
    pub(crate) fn arm_for_ring(&mut self, header: Header) -> Result<()> {
        self.wanted.ring = self.wanted.ring.max(Some(header.len()));
        self.arm().map(drop)
    }

    /// Arms as [`arm`](Self::arm) does, until the sender [finds](Self::found) room in the pool.
    pub(crate) fn arm_for_pool(&mut self) -> Result<()> {
        self.wanted.pool = true;
        self.arm()?;
        self.room.status().wait(State::Armed, Awaited::Memory);
        Ok(())
    }

    /// Notes that the sender found room for a record, and for its block if it is `pooled`. A sender that found all the room that
    /// it had armed for is awake. Less room does not disarm it: its caller may sleep until there is room for the other message.
    #[inline(always)]
    pub(crate) fn found(&mut self, header: Header, pooled: bool) {
        if self.wanted.is_any() {
            self.found_some(header.len(), pooled);
        }
    }

    #[cold]
    fn found_some(&mut self, len: u64, pooled: bool) {
        self.wanted.ring = self.wanted.ring.filter(|wanted| *wanted > len);
        self.wanted.pool &= !pooled;
        if !self.wanted.is_any() {
            self.rouse();
        }
    }

    /// Reads the socket, and announces to the peer that this half sleeps on it until there is room. The caller checks for
    /// room once more. Returns whether a wake-up for the receiving half was read, which may sleep on the same socket.
    pub(crate) fn arm(&mut self) -> Result<bool> {
        let link = &*self.link;
        let mut control_socket = link.control_socket();
        let taken = if link.by_descriptor() {
            control_socket.take_for_room(link.socket())
        } else {
            control_socket.take(link.socket())
        };
        taken.map_err(|error| link.fail(error))?;
        control_socket.room_woken();
        let data_woken = control_socket.is_data_woken();
        before_last_look(self.room.arm(link, Awaited::Room));
        Ok(data_woken)
    }

    /// Publishes that this half sleeps on the socket. The caller issues the barrier and checks once more.
    pub(crate) fn doze(&mut self) -> bool {
        self.room.arm(&self.link, Awaited::Room)
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
        self.wanted = WantedRoom::default();
        self.room.disarm(&self.link);
    }
}
