//! The payload of the message that a subscriber has taken last: a copy, or the slot itself.
//!
//! A payload in its slot is right as long as the slot's state says that the message is there. The writer marks the slot before it
//! stores the next payload.

use crate::broadcast::layout::PAYLOAD;
use crate::error::{ErrorKind, Result, memory};
use crate::shm::{Bytes, PeerMapping, PeerWords};
use crate::sync::Edge;

/// The least bytes of the buffer.
const SHORT: usize = 256;

/// A payload.
#[derive(Debug)]
pub(super) struct Payload {
    /// Copies of payloads.
    buffer: Vec<u8>,
    /// The payload's bytes in the buffer, or in the topic.
    start: usize,
    end: usize,
    /// It is not copied.
    in_slot: bool,
    topic: PeerMapping,
}

impl Payload {
    /// Returns the payload of no message yet.
    pub(super) fn new(topic: PeerMapping) -> Self {
        Self { buffer: Vec::new(), start: 0, end: 0, in_slot: false, topic }
    }

    /// Returns room for a copy of so many bytes, which the publisher chooses.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`]
    #[inline(always)]
    pub(super) fn room(&mut self, len: usize) -> Result<&mut [u8]> {
        if len > self.buffer.len() {
            // Room for the description of a tensor, whatever the message is.
            self.grow(len.max(SHORT))?;
        }
        Ok(&mut self.buffer[..len])
    }

    #[cold]
    fn grow(&mut self, len: usize) -> Result<()> {
        let more = len - self.buffer.len();
        memory::reserve(&mut self.buffer, more)?;
        self.buffer.resize(len, 0);
        Ok(())
    }

    /// Returns the buffer of copies.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Notes where the payload lies in the buffer.
    #[inline(always)]
    pub(super) fn is_copied(&mut self, (start, end): (usize, usize)) {
        (self.start, self.end) = (start, end);
    }

    /// Notes where the payload lies in the topic, and its length.
    pub(super) fn is_in_slot(&mut self, (start, len): (usize, usize)) {
        (self.start, self.end, self.in_slot) = (start, start + len, true);
    }

    /// Returns whether the payload was in its slot, where it is not looked at any more. A forked child has no slots.
    #[inline(always)]
    pub(super) fn leave_slot(&mut self) -> bool {
        std::mem::take(&mut self.in_slot) && self.topic.generation().is_current()
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns the bytes of a message's payload.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    #[inline(always)]
    pub(super) fn bytes(&self, message: u64) -> Result<Bytes<'_>> {
        if self.in_slot {
            self.check(message)?;
            return Ok(self.topic.bytes(self.start, self.len()));
        }
        Ok(Bytes::of(&self.buffer[self.start..self.end]))
    }

    /// Copies the payload of a message to `to`, which has its length.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    #[inline(always)]
    pub(super) fn copy_to(&self, message: u64, to: &mut [u8]) -> Result<()> {
        if self.in_slot {
            self.check_slot(message)?;
            self.topic.bytes(self.start, self.len()).copy_to(to);
            return self.check_slot(message);
        }
        to.copy_from_slice(&self.buffer[self.start..self.end]);
        Ok(())
    }

    /// Checks that what was read before is the message.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::LoanRevoked`]: the publisher has overwritten it. It does not wait for this side any more.
    /// - [`ErrorKind::Forked`]: this process is a fork of the one that has received it.
    #[inline(always)]
    pub(super) fn check(&self, message: u64) -> Result<()> {
        if self.in_slot { self.check_slot(message) } else { Ok(()) }
    }

    fn check_slot(&self, message: u64) -> Result<()> {
        self.topic.generation().check()?;
        // Pairs with SlotWriter::begin: a load that saw later bytes is followed by one that sees the slot taken.
        Edge::Overrun.acquire();
        let state = self.topic.load(self.start - PAYLOAD as usize);
        if state == message << 1 { Ok(()) } else { Err(ErrorKind::LoanRevoked.into()) }
    }
}
