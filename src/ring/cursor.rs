//! The positions of records: the arithmetic of both ends of a ring, without memory.

use crate::error::Fault;
use crate::ring::header::Header;

/// The length of a cache line in bytes, to which records that stand alone are rounded. Part of the wire
/// format.
pub(crate) const LINE: u64 = 64;

/// The length of a header in bytes.
pub(crate) const HEADER: u64 = 8;

/// Ring bytes that no message may use: the line of the next header, and the line of the writer's last record in
/// this ring.
const RESERVED: u64 = 2 * LINE;

/// The longest payload that shares its header's line.
pub(crate) const SHORT: u64 = LINE - HEADER;

/// The longest payload that follows its header directly in a record that stands alone.
pub(crate) const BESIDE: u64 = 512;

/// How many records of a stream a reader lets the writer get ahead.
const AHEAD: u64 = 32;

/// Farther than any position in the ring.
const NEVER: u64 = 1 << 62;

/// Returns the longest payload that fits into an empty ring of `capacity` bytes.
pub(crate) fn largest_payload(capacity: u64) -> u64 {
    capacity - RESERVED - LINE
}

/// Returns the ring bytes that one batch may use.
pub(crate) fn batch_limit(capacity: u64) -> u64 {
    capacity - RESERVED
}

/// Returns the bytes from the header to the payload. A short payload follows at once and moves with its
/// header. A long one starts in the next line: otherwise the reader that polls the header would take the line
/// from the writer that fills it. In a batch the reader polls only the first header.
#[inline(always)]
fn lead(header: Header, in_batch: bool) -> u64 {
    if header.len() <= SHORT || header.is_tight() || in_batch { HEADER } else { LINE }
}

/// Returns the position of the first record in a ring of `capacity` bytes that takes the place of one that ends at
/// `end`: the start of the ring.
fn first_in(capacity: u64, end: u64) -> u64 {
    end.wrapping_add(capacity - 1) & !(capacity - 1)
}

/// Returns the start of the record after the one at `position`.
#[inline(always)]
fn next(position: u64, header: Header, in_batch: bool) -> u64 {
    align(position.wrapping_add(lead(header, in_batch) + header.len()), header)
}

/// Returns the start of the record after one with this header that ends at `end`.
#[inline(always)]
fn align(end: u64, header: Header) -> u64 {
    let unit = if header.is_tight() || header.more() { HEADER } else { LINE };
    end.wrapping_add(unit - 1) & !(unit - 1)
}

/// Returns what [`lead`] returns, for a plain message of `len` bytes that stands alone.
#[inline(always)]
pub(super) fn plain_lead(len: u64) -> u64 {
    if len <= BESIDE { HEADER } else { LINE }
}

/// Returns what [`next`] returns, for a plain message of `len` bytes that stands alone.
#[inline(always)]
fn next_plain(position: u64, len: u64) -> u64 {
    let unit = if len > SHORT && len <= BESIDE { HEADER } else { LINE };
    position.wrapping_add(plain_lead(len) + len + unit - 1) & !(unit - 1)
}

/// The ring has no room now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    /// Free ring bytes, according to the reader's published position.
    pub(crate) free: u64,
    /// Ring bytes that the record needs.
    pub(crate) needed: u64,
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct ProducerCursor {
    capacity: u64,
    /// The start of the next record.
    head: u64,
    /// The reader's position as last read.
    tail: u64,
    /// The distance in bytes from `head` to a later word that is known to be zero, or 0. It stays the same
    /// while records of one length follow each other, and then is not stored.
    clear: u64,
    /// What the reader has yet to read of the ring before this one.
    left: Option<Left>,
}

/// The part of a ring that its writer has left and its reader has not.
#[derive(Debug)]
struct Left {
    /// The reader's position as last read.
    tail: u64,
    /// The end of the last record.
    end: u64,
}

/// The words that a publication stores besides the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clearing {
    /// The word to clear before the header is stored, if it is not known to be zero.
    pub(crate) before: Option<u64>,
    /// The word to clear after it, so that the next publication of the same size need not.
    pub(crate) after: Option<u64>,
}

impl ProducerCursor {
    /// Returns a cursor at `start`, a multiple of the capacity. All words of the ring are zero.
    pub(crate) fn new(capacity: u64, start: u64) -> Self {
        Self { capacity, head: start, tail: start, clear: 0, left: None }
    }

    /// Returns a cursor at the start of an empty ring of `capacity` bytes that takes the place of this one.
    pub(crate) fn moved_to(&self, capacity: u64) -> Self {
        let left = Left { tail: self.tail(), end: self.head };
        Self { left: Some(left), ..Self::new(capacity, first_in(capacity, self.head)) }
    }

    /// Returns the start of the next record.
    #[inline(always)]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Returns the reader's position as last read.
    pub(crate) fn tail(&self) -> u64 {
        self.left.as_ref().map_or(self.tail, |left| left.tail)
    }

    /// Returns the bytes for records from `head` on, according to the last known tail.
    #[inline(always)]
    pub(crate) fn free(&self) -> u64 {
        let used = self.head.wrapping_sub(self.tail);
        // The last record may use the reserve.
        (self.capacity - RESERVED).saturating_sub(used)
    }

    /// Returns the start of the record after the one at `position`.
    #[inline(always)]
    pub(crate) fn next(position: u64, header: Header, in_batch: bool) -> u64 {
        next(position, header, in_batch)
    }

    /// Returns the start of the record after one with this header that ends at `end`.
    #[inline(always)]
    pub(crate) fn align(end: u64, header: Header) -> u64 {
        align(end, header)
    }

    /// Returns the start of the payload of a record at `position`.
    #[inline(always)]
    pub(crate) fn payload(position: u64, header: Header, in_batch: bool) -> u64 {
        position.wrapping_add(lead(header, in_batch))
    }

    /// Returns the ring bytes of the records that a reader at this position, which is not checked, has not read. They are at
    /// most this ring and what was left of the one before.
    pub(crate) fn unread(&self, position: u64) -> u64 {
        let here = self.head.wrapping_sub(position);
        match &self.left {
            Some(left) if here > self.capacity => {
                let there = left.end.wrapping_sub(position);
                let most = left.end.wrapping_sub(left.tail);
                there.min(most) + self.head.wrapping_sub(first_in(self.capacity, left.end))
            }
            _ => here.min(self.capacity),
        }
    }

    /// Checks that the record fits at the head. Returns the start of the next one.
    #[inline(always)]
    pub(crate) fn fits(&self, header: Header) -> Result<u64, Full> {
        self.fits_in_batch(self.head, header, false)
    }

    /// Checks that a batch from the head on fits, with this record at `position` of it. Returns the start of
    /// the next record.
    #[inline(always)]
    pub(crate) fn fits_in_batch(
        &self,
        position: u64,
        header: Header,
        continues: bool,
    ) -> Result<u64, Full> {
        let next = next(position, header, continues);
        let (free, needed) = (self.free(), next.wrapping_sub(self.head));
        if needed <= free { Ok(next) } else { Err(Full { free, needed }) }
    }

    /// Returns the start of the record after a plain message of `len` bytes, if the message fits and the word there is known to be
    /// zero.
    #[inline(always)]
    pub(crate) fn fits_plain(&self, len: u64) -> Option<u64> {
        let next = next_plain(self.head, len);
        let used = next.wrapping_sub(self.tail);
        let is_clear = self.clear == next.wrapping_sub(self.head);
        (is_clear && used <= self.capacity - RESERVED).then_some(next)
    }

    /// Takes over a position that the reader published.
    ///
    /// # Errors
    ///
    /// [`Fault::Position`]: it went backwards or past the head.
    pub(crate) fn admit(&mut self, position: u64) -> Result<(), Fault> {
        let advance = position.wrapping_sub(self.tail);
        let published = self.head.wrapping_sub(self.tail);
        if advance > published || !position.is_multiple_of(8) {
            return self.admit_left(position);
        }
        self.tail = position;
        if self.left.is_some() {
            self.left = None;
        }
        Ok(())
    }

    /// Takes over a position in the ring before this one.
    #[cold]
    fn admit_left(&mut self, position: u64) -> Result<(), Fault> {
        if let Some(left) = &mut self.left
            && position.wrapping_sub(left.tail) <= left.end.wrapping_sub(left.tail)
            && position.is_multiple_of(8)
        {
            left.tail = position;
            return Ok(());
        }
        Err(Fault::Position { position, tail: self.tail(), head: self.head })
    }

    /// Forgets that a word up to `next` is zero: bytes up to there will be written and perhaps never
    /// published.
    #[inline(always)]
    pub(crate) fn claim(&mut self, next: u64) {
        if self.clear != 0 && self.clear < next.wrapping_sub(self.head) {
            self.clear = 0;
        }
    }

    /// Moves the head to `next`, which [`Self::fits`] returned.
    #[inline(always)]
    pub(crate) fn advance(&mut self, next: u64) -> Clearing {
        let bytes = next.wrapping_sub(self.head);
        let before = if self.clear == bytes { None } else { Some(next) };
        self.head = next;
        let after = self.successor(bytes);
        let clear = if after.is_some() { bytes } else { 0 };
        if self.clear != clear {
            self.clear = clear;
        }
        Clearing { before, after }
    }

    /// Moves the head to `next`, which [`Self::fits_plain`] returned.
    #[inline(always)]
    pub(crate) fn advance_plain(&mut self, next: u64) -> Clearing {
        self.head = next;
        // The record has this length, or `fits_plain` would not have returned it.
        let after = self.successor(self.clear);
        if after.is_none() {
            self.clear = 0;
        }
        Clearing { before: None, after }
    }

    /// Returns the start of the successor of a record of `bytes` at the head, if that place is free.
    #[inline(always)]
    fn successor(&self, bytes: u64) -> Option<u64> {
        let after = self.head.wrapping_add(bytes);
        let in_use = after.wrapping_add(HEADER).wrapping_sub(self.tail);
        (in_use <= self.capacity).then_some(after)
    }

    /// Moves the head over the last record in this ring. There is always room for it, once.
    pub(crate) fn advance_to_end(&mut self, last: Header) -> Clearing {
        self.advance(next(self.head, last, false))
    }
}

/// The reader's end.
#[derive(Debug, Clone)]
pub(crate) struct ConsumerCursor {
    capacity: u64,
    /// The start of the next record.
    position: u64,
    /// The position that was last published.
    published: u64,
    /// Whether the previous record promised one here.
    promised: bool,
    /// The header word of the previous record, and the bytes of a record here that has the same one.
    last: u64,
    stride: u64,
    /// The bytes of [`AHEAD`] such records, and the position at which the reader looks so far ahead.
    ahead: u64,
    due: u64,
}

impl ConsumerCursor {
    /// Returns a cursor at `start`, a multiple of the capacity.
    pub(crate) fn new(capacity: u64, start: u64) -> Self {
        Self {
            capacity,
            position: start,
            published: start,
            promised: false,
            last: 0,
            stride: 0,
            ahead: NEVER,
            due: start.wrapping_add(NEVER),
        }
    }

    /// Returns a cursor at the start of a ring of `capacity` bytes that takes the place of this one.
    pub(crate) fn moved_to(&self, capacity: u64) -> Self {
        let start = first_in(capacity, self.position);
        Self { published: self.published, ..Self::new(capacity, start) }
    }

    /// Returns the start of the next record.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether the previous record promised one here.
    pub(crate) fn is_promised(&self) -> bool {
        self.promised
    }

    /// Returns the bytes from the next record's header to its payload.
    #[inline(always)]
    pub(crate) fn lead(&self, header: Header) -> u64 {
        if header.is_line() { HEADER } else { lead(header, self.promised) }
    }

    /// Checks a word as a plain message of up to `max` bytes, at most the longest that fits into the ring.
    /// Returns `None` if it is another record or none.
    #[inline(always)]
    pub(crate) fn judge_plain(&self, word: u64, max: u64) -> Option<Header> {
        let header = Header::plain_from_word(word)?;
        (header.len() <= max).then_some(header)
    }

    /// Returns whether the last [`AHEAD`] records had one header, and followed each other without a pause.
    #[inline(always)]
    pub(crate) fn is_streaming(&self) -> bool {
        self.position.wrapping_sub(self.due) < NEVER
    }

    /// Returns the position of the last of the next [`AHEAD`] records, if all of them have one header.
    pub(crate) fn ahead(&self) -> u64 {
        self.position.wrapping_add(self.ahead - self.stride)
    }

    /// Puts off the look ahead: the reader has just looked, or has found no record.
    #[inline(always)]
    pub(crate) fn look_ahead_later(&mut self) {
        self.due = self.position.wrapping_add(self.ahead);
    }

    /// Checks the word at the position. Returns `None` if no record is published yet.
    ///
    /// # Errors
    ///
    /// - [`Fault::RecordHeader`], [`Fault::RecordLength`]: no record has this word.
    /// - [`Fault::RecordMissing`]: a batch ends without its last record.
    #[inline(always)]
    pub(crate) fn judge(&self, word: u64) -> Result<Option<Header>, Fault> {
        if word == 0 {
            return if self.promised { Err(Fault::RecordMissing) } else { Ok(None) };
        }
        let header = Header::from_word(word)?;
        if header.len() > largest_payload(self.capacity) {
            let len = header.len();
            return Err(Fault::RecordLength { len, capacity: self.capacity });
        }
        Ok(Some(header))
    }

    /// Releases the record at the position. Returns the position to publish if a good part of the ring waits
    /// to be released.
    #[inline(always)]
    pub(crate) fn release(&mut self, header: Header) -> Option<u64> {
        // After a record with the same header the position does not depend on the header's load, which takes as long as its
        // line comes from the writer's core. The processor predicts the branch, and loads the records that follow meanwhile.
        if header.to_word() == self.last {
            self.position = self.position.wrapping_add(self.stride);
        } else {
            self.pass(header);
        }
        let waiting = self.position.wrapping_sub(self.published);
        if waiting >= self.capacity / 8 { self.publish() } else { None }
    }

    /// Moves the position over a record whose header differs from that of the previous one.
    #[inline(never)]
    fn pass(&mut self, header: Header) {
        self.position = next(self.position, header, self.promised);
        self.promised = header.more();
        self.last = header.to_word();
        // The position is aligned as such a record leaves it.
        self.stride = next(0, header, self.promised);
        let fits = self.stride <= self.capacity / 8 / AHEAD;
        self.ahead = if fits { AHEAD * self.stride } else { NEVER };
        self.look_ahead_later();
    }

    /// Releases the record at the position if its header is that of the previous one, and no position is due to be published
    /// then. Returns whether it did.
    #[inline(always)]
    pub(crate) fn release_quietly(&mut self, header: Header) -> bool {
        let next = self.position.wrapping_add(self.stride);
        let is_quiet =
            header.to_word() == self.last && next.wrapping_sub(self.published) < self.capacity / 8;
        if is_quiet {
            self.position = next;
        }
        is_quiet
    }

    /// Returns the position to publish, if the writer does not know it.
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> Option<u64> {
        if self.published == self.position {
            return None;
        }
        self.published = self.position;
        Some(self.position)
    }
}

#[cfg(test)]
mod tests;
