//! Where records lie: the arithmetic of both ends of a ring, without memory.

use crate::error::Fault;
use crate::ring::header::Header;

/// Bytes of a cache line, to which records that stand alone are rounded. Part of the wire format.
pub(crate) const LINE: u64 = 64;

/// Bytes of a header.
pub(crate) const HEADER: u64 = 8;

/// Ring bytes that no message may use: the line of the next header, and the line of the writer's
/// closing record.
const RESERVED: u64 = 2 * LINE;

/// The longest payload that shares its header's line.
const SHORT: u64 = LINE - HEADER;

/// The longest payload that fits into an empty ring of `capacity` bytes.
pub(crate) fn largest_payload(capacity: u64) -> u64 {
    capacity - RESERVED - LINE
}

/// Bytes from the header to the payload: a short one follows at once and moves with its header; a
/// longer one starts in the next line, or the reader that polls the header would take the line away
/// from the writer that fills it. In a batch only the first header is polled.
#[inline(always)]
pub(crate) fn lead(len: u64, in_batch: bool) -> u64 {
    if len <= SHORT || in_batch { HEADER } else { LINE }
}

/// Ring bytes that one batch may use.
pub(crate) fn batch_limit(capacity: u64) -> u64 {
    capacity - RESERVED
}

/// The ring has no room now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    /// Ring bytes that are free, as far as the reader's published position tells.
    pub(crate) free: u64,
    /// Ring bytes that the record needs.
    pub(crate) needed: u64,
}

/// Ring bytes of a record that stands alone: header and payload, rounded up to whole lines.
#[inline(always)]
fn extent(len: u64) -> u64 {
    (lead(len, false) + len).next_multiple_of(LINE)
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct ProducerCursor {
    capacity: u64,
    /// Where the next record starts.
    head: u64,
    /// The reader's position as last seen.
    tail: u64,
    /// A position beyond `head` whose word is known to be zero.
    clear: u64,
}

/// What publishing a record has to store besides the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clearing {
    /// The word to make zero before the header is stored, if it is not known to be.
    pub(crate) before: Option<u64>,
    /// The word to make zero after it, so that the next publication of the same size need not.
    pub(crate) after: Option<u64>,
}

impl ProducerCursor {
    /// A cursor at `start`, a multiple of the capacity; all words of the ring are zero.
    pub(crate) fn new(capacity: u64, start: u64) -> Self {
        Self { capacity, head: start, tail: start, clear: start }
    }

    /// Where the next record starts.
    #[inline(always)]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Bytes for records from `head` on, as far as the last known tail tells.
    #[inline(always)]
    pub(crate) fn free(&self) -> u64 {
        let used = self.head.wrapping_sub(self.tail);
        // A closing record may already use the reserve.
        (self.capacity - RESERVED).saturating_sub(used)
    }

    /// Whether a record with `len` payload bytes fits.
    #[inline(always)]
    pub(crate) fn fits(&self, len: u64) -> Result<(), Full> {
        let (free, needed) = (self.free(), extent(len));
        if needed <= free { Ok(()) } else { Err(Full { free, needed }) }
    }

    /// Takes in a position that the reader published.
    ///
    /// # Errors
    ///
    /// [`Fault::Position`]: it went backwards, or past the head.
    pub(crate) fn admit(&mut self, position: u64) -> Result<(), Fault> {
        let advance = position.wrapping_sub(self.tail);
        let published = self.head.wrapping_sub(self.tail);
        if advance > published || !position.is_multiple_of(8) {
            return Err(Fault::Position { position, tail: self.tail, head: self.head });
        }
        self.tail = position;
        Ok(())
    }

    /// Moves the head over `bytes` ring bytes, a multiple of the line that [`Self::free`] allows.
    #[inline(always)]
    pub(crate) fn advance(&mut self, bytes: u64) -> Clearing {
        let next = self.head.wrapping_add(bytes);
        let before = if self.clear == next { None } else { Some(next) };
        // The successor of a record of the same size, if that line is free already.
        let after = next.wrapping_add(bytes);
        let in_use = after.wrapping_add(LINE).wrapping_sub(self.tail);
        self.head = next;
        self.clear = if in_use <= self.capacity { after } else { next };
        Clearing { before, after: (self.clear == after).then_some(after) }
    }

    /// Ring bytes of a record that stands alone.
    #[inline(always)]
    pub(crate) fn extent(len: u64) -> u64 {
        extent(len)
    }
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct ConsumerCursor {
    capacity: u64,
    /// Where the next record starts.
    position: u64,
    /// The position as the writer was last told.
    published: u64,
    /// Whether the record before promised that one stands here.
    promised: bool,
}

impl ConsumerCursor {
    /// A cursor at `start`, a multiple of the capacity.
    pub(crate) fn new(capacity: u64, start: u64) -> Self {
        Self { capacity, position: start, published: start, promised: false }
    }

    /// Where the next record starts.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes from the next record's header to its payload.
    #[inline(always)]
    pub(crate) fn lead(&self, header: Header) -> u64 {
        lead(header.len(), self.promised)
    }

    /// Judges the word at the position. `None`: no record yet.
    ///
    /// # Errors
    ///
    /// - [`Fault::RecordHeader`], [`Fault::RecordLength`]: no record can look like this.
    /// - [`Fault::RecordMissing`]: a batch ends in nothing.
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

    /// Gives the record at the position back. `Some`: the position to publish now, because a good
    /// part of the ring waits to be given back.
    #[inline(always)]
    pub(crate) fn release(&mut self, header: Header) -> Option<u64> {
        let len = header.len();
        let end = self.position.wrapping_add(lead(len, self.promised) + len);
        let unit = if header.more() { HEADER } else { LINE };
        self.position = end.wrapping_add(unit - 1) & !(unit - 1);
        self.promised = header.more();
        let waiting = self.position.wrapping_sub(self.published);
        if waiting >= self.capacity / 8 { self.publish() } else { None }
    }

    /// The position to publish, if the writer does not know it.
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
mod tests {
    use super::*;
    use crate::ring::Kind;

    const CAPACITY: u64 = 4096;

    #[test]
    fn a_ring_keeps_a_line_for_the_next_header_and_one_for_closing() {
        let mut cursor = ProducerCursor::new(CAPACITY, 0);
        let mut records = 0;
        while cursor.fits(56).is_ok() {
            cursor.advance(LINE);
            records += 1;
        }
        assert_eq!(records, CAPACITY / LINE - 2);
        assert_eq!(cursor.fits(56), Err(Full { free: 0, needed: 64 }));
        cursor.admit(LINE).unwrap();
        assert_eq!(cursor.fits(56), Ok(()));
    }

    #[test]
    fn cursors_pass_2_to_the_32_and_wrap_at_2_to_the_64() {
        for start in [(1u64 << 32) - CAPACITY, 0u64.wrapping_sub(CAPACITY)] {
            let mut writer = ProducerCursor::new(CAPACITY, start);
            let mut reader = ConsumerCursor::new(CAPACITY, start);
            for round in 0..1000u64 {
                let len = round * 37 % 900;
                writer.fits(len).unwrap();
                writer.advance(extent(len));
                reader.release(Header::new(Kind::Message, len as u32));
                assert_eq!(reader.position(), writer.head());
                writer.admit(reader.position()).unwrap();
            }
        }
    }

    #[test]
    fn a_position_that_goes_back_or_past_the_head_is_a_fault() {
        for start in [0, 1 << 32, 0u64.wrapping_sub(CAPACITY)] {
            let mut writer = ProducerCursor::new(CAPACITY, start);
            writer.advance(128);
            writer.admit(start.wrapping_add(64)).unwrap();
            let lies = [0, 56, 65, 129, 192, 4096, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
            for lie in lies {
                let position = start.wrapping_add(lie);
                assert!(writer.admit(position).is_err(), "{position:#x} from {start:#x}");
            }
            writer.admit(start.wrapping_add(128)).unwrap();
        }
    }

    #[test]
    fn a_length_past_the_ring_is_a_fault() {
        let reader = ConsumerCursor::new(CAPACITY, 0);
        for len in [CAPACITY - 191, CAPACITY, 1 << 31, u64::from(u32::MAX)] {
            let word = Header::new(Kind::Message, len as u32).to_word();
            assert_eq!(reader.judge(word), Err(Fault::RecordLength { len, capacity: CAPACITY }));
        }
        assert!(
            reader.judge(Header::new(Kind::Message, (CAPACITY - 192) as u32).to_word()).is_ok()
        );
    }

    #[test]
    fn a_batch_that_ends_in_nothing_is_a_fault() {
        let mut reader = ConsumerCursor::new(CAPACITY, 0);
        assert_eq!(reader.judge(0), Ok(None));
        reader.release(Header::new(Kind::Message, 5).with_more());
        assert_eq!(reader.position(), 16);
        assert_eq!(reader.judge(0), Err(Fault::RecordMissing));
        reader.release(Header::new(Kind::Message, 5));
        assert_eq!(reader.position(), 64);
        assert_eq!(reader.judge(0), Ok(None));
    }

    #[test]
    fn the_word_after_a_record_is_cleared_once() {
        let mut writer = ProducerCursor::new(CAPACITY, 0);
        assert_eq!(writer.advance(64), Clearing { before: Some(64), after: Some(128) });
        assert_eq!(writer.advance(64), Clearing { before: None, after: Some(192) });
        assert_eq!(writer.advance(128), Clearing { before: Some(256), after: Some(384) });
        // Beyond what the reader has given back, nothing is cleared ahead.
        let rest = CAPACITY - 256 - 128;
        assert_eq!(writer.advance(rest), Clearing { before: Some(CAPACITY - 128), after: None });
    }
}
