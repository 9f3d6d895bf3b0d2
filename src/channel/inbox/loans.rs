//! Messages that lie in the peer's pool.

use crate::channel::inbox::{Inbox, RecordHead};
use crate::channel::loan_descriptor::{self as pooled, LoanDescriptor};
use crate::error::{Fault, Result};
use crate::ring::{Header, Record};

impl Inbox {
    /// Finds a pooled message in a cached segment at the ring's position. Returns `false` if there is none, and changes
    /// nothing then; [`rare_head`](Self::rare_head) finds the cause.
    #[inline(never)]
    pub(crate) fn find_pooled(&mut self) -> bool {
        let header = Header::POOLED_MESSAGE;
        let record = Record { header, offset: self.consumer.payload(header) };
        let Ok(descriptor) = self.descriptor(record, 0) else { return false };
        let cached = self.segments.current(&self.session, descriptor.segment);
        let is_found = cached
            .is_some_and(|cached| descriptor.range_in(cached.segment.len() as u64).is_ok())
            && self.link.check_loans().is_ok();
        if is_found {
            self.lent = Some(descriptor);
        }
        is_found
    }

    /// Returns the head of the borrowed message.
    #[inline(always)]
    pub(crate) fn pooled_head(&self, Record { header, offset }: Record) -> RecordHead {
        // Read from its field: a value in a `Result` would pass through memory.
        RecordHead { header, offset, len: self.lent.as_ref().map_or(0, |lent| lent.len as usize) }
    }

    /// Returns a private copy of the descriptor behind `envelope` bytes of a record's payload, checked without its segment.
    #[inline(always)]
    pub(crate) fn descriptor(
        &self,
        record: Record,
        envelope: usize,
    ) -> Result<LoanDescriptor, Fault> {
        let terms = self.link.terms();
        let words = self.ring.bytes(record.offset + envelope, pooled::LEN).words();
        let words = words.ok_or(Fault::RecordHeader { header: record.header.to_word() })?;
        let descriptor = LoanDescriptor::of_words(words);
        descriptor.check(terms.max_message, terms.own.loan_slots)?;
        Ok(descriptor)
    }

    /// Borrows a range of the peer's pool.
    ///
    /// # Errors
    ///
    /// - [`LoanRevoked`](crate::ErrorKind::LoanRevoked): the peer has taken it back. The caller shows nothing of it.
    /// - The peer lies about it, or this process cannot map it.
    #[inline(always)]
    pub(crate) fn borrow(&mut self, descriptor: LoanDescriptor) -> Result<()> {
        self.link.check_loans()?;
        let cached = self.segments.find(&self.session, descriptor.segment)?;
        descriptor.range_in(cached.segment.len() as u64)?;
        self.lent = Some(descriptor);
        Ok(())
    }

    /// Returns whether a segment of the peer's is known, or the socket holds no announcement of it. Reads the socket, and
    /// returns `false` if the socket rests before the segment has come.
    #[inline]
    pub(crate) fn is_at_hand(&self, segment: u32) -> Result<bool> {
        match self.segments.current(&self.session, segment) {
            Some(_) => Ok(true),
            None => self.fetch(segment),
        }
    }

    #[cold]
    fn fetch(&self, segment: u32) -> Result<bool> {
        self.link.control_socket().fetch(self.link.socket(), segment)
    }

    /// Allows one new segment to be read from the socket, if this one is not cached. A record names one segment.
    #[inline(always)]
    pub(crate) fn open_window_for(&mut self, segment: u32) {
        if self.segments.current(&self.session, segment).is_none() {
            self.link.control_socket().open_window();
        }
    }
}
