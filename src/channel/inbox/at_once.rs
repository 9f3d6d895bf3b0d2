//! Receives that are done at once or not at all, for a caller across a border: C. Each finds that nothing rare is due, and
//! then is a handful of loads and stores without a call. What is not done at once the usual functions do.

use crate::channel::inbox::receiver::Receiver;
use crate::channel::inbox::{Flow, Inbox, RecordHead};
use crate::error::Result;
use crate::ring::{LINE, Record};
use crate::shm::Bytes;

impl Receiver {
    /// Returns the next message in place, if it is a plain one in the ring. It stays the next one, as after
    /// [`peek`](Self::peek).
    #[doc(hidden)]
    #[inline(always)]
    pub fn peek_at_once(&mut self) -> Option<Bytes<'_>> {
        if self.backlog.has_unasked() {
            return None;
        }
        let head = self.inbox.plain_at_once()?;
        self.inbox.hold(head);
        self.inbox.ring.find(head.offset, head.len)
    }

    /// Releases the message that [`peek_at_once`](Self::peek_at_once) returned last, and nothing else has been done since.
    /// Returns whether it is done. [`release_it`](Self::release_it) always does it.
    #[doc(hidden)]
    #[inline(always)]
    pub fn release_at_once(&mut self) -> bool {
        let inbox = &mut self.inbox;
        let head = inbox.held;
        let is_held = inbox.flow == Flow::Held && inbox.generation.is_current();
        let is_released = is_held && inbox.release_at_once(&head);
        if is_released {
            inbox.flow = Flow::Open;
        }
        is_released
    }

    /// Releases the message that [`peek_at_once`](Self::peek_at_once) returned last.
    ///
    /// # Errors
    ///
    /// As [`Received::release`](crate::Received::release).
    #[doc(hidden)]
    #[cold]
    pub fn release_it(&mut self) -> Result<()> {
        let head = self.inbox.held;
        self.release(&head)
    }

    /// Copies the next message to the front of `buffer`, if it is a plain one in the ring of up to 64 bytes that fits.
    /// Returns its length in bytes.
    #[doc(hidden)]
    #[inline(always)]
    pub fn receive_at_once(&mut self, buffer: &mut [u8]) -> Option<usize> {
        if !self.backlog.is_empty() {
            return None;
        }
        let inbox = &mut self.inbox;
        let head = inbox.plain_at_once()?;
        let is_there = inbox.ring.find(head.offset, head.len).is_some();
        let fits = head.len <= buffer.len() && head.len <= LINE as usize;
        // The writer does not learn of this release, so the bytes stay.
        if !is_there || !fits || !inbox.release_at_once(&head) {
            return None;
        }
        let bytes = inbox.ring.find(head.offset, head.len)?;
        bytes.copy_to(&mut buffer[..head.len]);
        Some(head.len)
    }
}

impl Inbox {
    /// As [`plain`](Self::plain), for a message that is in the ring now.
    #[inline(always)]
    fn plain_at_once(&self) -> Option<RecordHead> {
        if !self.generation.is_current() || self.flow != Flow::Open || self.lent.is_some() {
            return None;
        }
        let Record { header, offset } =
            self.consumer.plain(self.consumer.word(), self.plain_max)?;
        Some(RecordHead { header, offset, len: header.len() as usize })
    }

    /// Releases a plain message like the one before, unless the position is due to be published. Returns whether it did.
    #[inline(always)]
    fn release_at_once(&mut self, head: &RecordHead) -> bool {
        let is_released = self.consumer.release_quietly(head.header);
        if is_released {
            self.count(head);
            self.pass(head.header);
        }
        is_released
    }
}
