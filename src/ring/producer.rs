//! The writer's end of a ring: headers and clearing, over any memory that has words.

use crate::error::Fault;
use crate::ring::cursor::{Full, HEADER, LINE, ProducerCursor};
use crate::ring::header::{Header, Kind};
use crate::shm::{OwnWords, PeerWords};
use crate::sync::{Edge, Ordering, compiler_fence};

/// Writes records into memory `O` of ours and reads the reader's position in memory `P` of theirs.
#[derive(Debug)]
pub(crate) struct Producer<O, P> {
    own: O,
    peer: P,
    /// Start of the data section in `own`, in bytes.
    data: usize,
    /// The reader's position in `peer`, in bytes.
    position: usize,
    mask: u64,
    cursor: ProducerCursor,
}

/// Room for one record that stands alone: reserved, not yet published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    position: u64,
    /// Start of the payload in the data section, in bytes; it may run into the mirror.
    pub(crate) offset: usize,
}

/// A batch under construction: records packed at multiples of 8, the first header stored last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchSlot {
    start: u64,
    /// Where the next record would start.
    end: u64,
    first: u64,
    /// Position and header of the newest record, not stored before it is known whether more follow.
    newest: Option<(u64, Header)>,
    count: u32,
}

impl BatchSlot {
    /// Records in this batch.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

impl<O: OwnWords, P: PeerWords> Producer<O, P> {
    /// An end at cursor `start` (0 but in tests) of a ring of `capacity` bytes, a power of two,
    /// whose data section starts at `data` of `own`; `position` is the reader's word in `peer`.
    pub(crate) fn new(
        own: O,
        peer: P,
        data: usize,
        position: usize,
        capacity: u64,
        start: u64,
    ) -> Self {
        debug_assert!(capacity.is_power_of_two());
        let cursor = ProducerCursor::new(capacity, start);
        Self { own, peer, data, position, mask: capacity - 1, cursor }
    }

    #[inline(always)]
    fn word(&self, position: u64) -> usize {
        self.data + (position & self.mask) as usize
    }

    #[inline(always)]
    fn payload(&self, position: u64) -> usize {
        (position & self.mask) as usize + HEADER as usize
    }

    /// Bytes that are free, after a look at what the reader has published.
    pub(crate) fn refresh(&mut self) -> Result<u64, Fault> {
        let position = self.peer.load(self.position);
        // Pairs with Consumer::publish: the reader has finished with every byte before `position`.
        Edge::Reuse.acquire();
        self.cursor.admit(position)?;
        Ok(self.cursor.free())
    }

    /// Room for a record with `len` payload bytes.
    ///
    /// # Errors
    ///
    /// The outer error is the peer's fault, the inner one says that there is no room now.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, len: u64) -> Result<Result<Slot, Full>, Fault> {
        if self.cursor.fits(len).is_err() {
            self.refresh()?;
            if let Err(full) = self.cursor.fits(len) {
                return Ok(Err(full));
            }
        }
        let position = self.cursor.head();
        Ok(Ok(Slot { position, offset: self.payload(position) }))
    }

    /// Makes a record visible; its payload was written to the slot.
    #[inline(always)]
    pub(crate) fn publish(&mut self, slot: Slot, header: Header) {
        debug_assert_eq!(slot.position, self.cursor.head());
        let bytes = ProducerCursor::extent(u64::from(header.len));
        self.store_first(slot.position, header, bytes);
    }

    /// Starts a batch.
    pub(crate) fn batch(&self) -> BatchSlot {
        let start = self.cursor.head();
        BatchSlot { start, end: start, first: 0, newest: None, count: 0 }
    }

    /// Adds a record with `len` payload bytes to a batch, and tells where the payload goes.
    ///
    /// # Errors
    ///
    /// As for [`Self::reserve`]; a batch that got an error is as it was.
    pub(crate) fn push(
        &mut self,
        batch: &mut BatchSlot,
        mut header: Header,
    ) -> Result<Result<usize, Full>, Fault> {
        let position = batch.end;
        let end = position.wrapping_add((HEADER + u64::from(header.len)).next_multiple_of(HEADER));
        let needed = end.wrapping_sub(batch.start).next_multiple_of(LINE);
        if needed > self.cursor.free() {
            let free = self.refresh()?;
            if needed > free {
                return Ok(Err(Full { free, needed }));
            }
        }
        header.more = false;
        if let Some(newest) = batch.newest.replace((position, header)) {
            self.settle(batch, newest, true);
        }
        batch.end = end;
        batch.count += 1;
        Ok(Ok(self.payload(position)))
    }

    /// Makes all records of a batch visible at once.
    pub(crate) fn publish_batch(&mut self, mut batch: BatchSlot) {
        debug_assert_eq!(batch.start, self.cursor.head());
        let Some(newest) = batch.newest.take() else { return };
        self.settle(&mut batch, newest, false);
        let bytes = batch.end.wrapping_sub(batch.start).next_multiple_of(LINE);
        self.store_first_word(batch.start, batch.first, bytes);
    }

    /// Stores a batch member's header, or keeps it if it is the first.
    fn settle(&self, batch: &mut BatchSlot, (position, mut header): (u64, Header), more: bool) {
        header.more = more;
        if position == batch.start {
            batch.first = header.to_word();
        } else {
            self.own.store(self.word(position), header.to_word(), Ordering::Relaxed);
        }
    }

    /// Publishes the closing record. There is always room for it, once.
    pub(crate) fn close(&mut self) {
        let position = self.cursor.head();
        self.store_first(position, Header::new(Kind::Close, 0), LINE);
    }

    #[inline(always)]
    fn store_first(&mut self, position: u64, header: Header, bytes: u64) {
        self.store_first_word(position, header.to_word(), bytes);
    }

    /// The publication: clears the next header, stores this one.
    #[inline(always)]
    fn store_first_word(&mut self, position: u64, word: u64, bytes: u64) {
        let clearing = self.cursor.advance(bytes);
        if let Some(next) = clearing.before {
            self.own.store(self.word(next), 0, Ordering::Relaxed);
        }
        // Pairs with Consumer::peek: the payload, inner headers, and the cleared next header.
        self.own.store(self.word(position), word, Edge::Publish.store());
        if let Some(after) = clearing.after {
            // Moves the line towards this core before it is needed. It becomes visible with the
            // next publication, whose reader is the first that can look at it.
            self.own.store(self.word(after), 0, Ordering::Relaxed);
            // The next payload may reach the same bytes through the mirror, which the compiler
            // takes for other memory: it must not sink this store below those.
            compiler_fence(Ordering::SeqCst);
        }
    }
}
