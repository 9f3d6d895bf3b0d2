//! Sends that are done at once or not at all, for a caller across a border: C. Each finds that nothing rare is due, and
//! then is a handful of loads and stores without a call. What is not done at once the usual functions do.

use std::ptr::NonNull;

use crate::channel::sender::Sender;
use crate::error::Result;
use crate::ring::{Header, Kind, PlainRoom};
use crate::wake::HOT;

/// What became of a message that was to be published at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtOnce {
    /// Nothing was done.
    No,
    /// The message is published, and the receiver is awake.
    Done,
    /// The message is published, and [`Sender::announce_it`] is due.
    Due,
}

impl Sender {
    /// Finds room for a message of `len` bytes right behind the last record.
    #[inline(always)]
    fn room_at_once(&self, len: usize) -> Option<PlainRoom> {
        let is_usual = len <= self.inline_max
            && self.generation.is_current()
            && self.link.is_alive()
            && !self.gone;
        if is_usual { self.producer.plain_room(len as u32) } else { None }
    }

    /// Returns room for a message of `len` bytes, as [`reserve`](Self::reserve) does.
    /// [`publish_at_once`](Self::publish_at_once) publishes it, and so does a second `reserve` of as many bytes: it returns the
    /// same room, with the bytes that stand there.
    #[doc(hidden)]
    #[inline(always)]
    pub fn reserve_at_once(&mut self, len: usize) -> Option<NonNull<u8>> {
        let room = self.room_at_once(len)?;
        self.ring.find(room.offset, len)
    }

    /// Publishes the message of `len` bytes for which [`reserve_at_once`](Self::reserve_at_once) has returned room.
    #[doc(hidden)]
    #[inline(always)]
    pub fn publish_at_once(&mut self, len: usize) -> AtOnce {
        match self.room_at_once(len) {
            Some(room) => self.finish_at_once(room, len),
            None => AtOnce::No,
        }
    }

    /// Sends a message of up to 64 bytes.
    #[doc(hidden)]
    #[inline(always)]
    pub fn send_at_once(&mut self, message: &[u8]) -> AtOnce {
        match self.room_at_once(message.len()) {
            Some(room) if self.ring.put_short(room.offset, message) => {
                self.finish_at_once(room, message.len())
            }
            _ => AtOnce::No,
        }
    }

    #[inline(always)]
    fn finish_at_once(&mut self, room: PlainRoom, len: usize) -> AtOnce {
        self.producer.publish_plain(Header::new(Kind::Message, len as u32), room.next);
        self.count(len);
        let state = self.show();
        if state == HOT || self.data.is_attended(state) { AtOnce::Done } else { AtOnce::Due }
    }

    /// Wakes the receiver if it sleeps, after [`AtOnce::Due`].
    ///
    /// # Errors
    ///
    /// As [`Reservation::publish`](crate::Reservation::publish).
    #[doc(hidden)]
    #[cold]
    pub fn announce_it(&mut self) -> Result<()> {
        self.announce()
    }
}
