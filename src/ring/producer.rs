//! The writer's end of a ring: headers and clearing, over any memory that has words.

use crate::error::Fault;
use crate::ring::cursor::{Full, HEADER, LINE, ProducerCursor, lead};
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

/// A batch under construction: records packed at multiples of 8, the first header stored last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchSlot {
    start: u64,
    /// Where the next record would start.
    end: u64,
    /// The first record's header, 0 before there is one.
    first: u64,
    /// Position and header of the newest record after the first, not stored before it is known
    /// whether more follow. The header is 0 where there is none.
    newest: (u64, u64),
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
    fn payload(&self, position: u64, lead: u64) -> usize {
        (position & self.mask) as usize + lead as usize
    }

    /// Bytes that are free, after a look at what the reader has published.
    pub(crate) fn refresh(&mut self) -> Result<u64, Fault> {
        let position = self.peer.load(self.position);
        // Pairs with Consumer::publish: the reader has finished with every byte before `position`.
        Edge::Reuse.acquire();
        self.cursor.admit(position)?;
        Ok(self.cursor.free())
    }

    /// Room for a record with `len` payload bytes: where the payload goes, in bytes from the start
    /// of the data section. It may run into the mirror. The room stays until the next publication.
    ///
    /// # Errors
    ///
    /// The outer error is the peer's fault, the inner one says that there is no room now.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, len: u64) -> Result<Result<usize, Full>, Fault> {
        if self.cursor.fits(len).is_err() {
            self.refresh()?;
            if let Err(full) = self.cursor.fits(len) {
                return Ok(Err(full));
            }
        }
        Ok(Ok(self.payload(self.cursor.head(), lead(len, false))))
    }

    /// Where the payload of a reserved record goes if it has only `len` bytes.
    pub(crate) fn shorten(&self, len: u64) -> usize {
        self.payload(self.cursor.head(), lead(len, false))
    }

    /// Makes a record visible; room for it was reserved, and its payload written there.
    #[inline(always)]
    pub(crate) fn publish(&mut self, header: Header) {
        let bytes = ProducerCursor::extent(header.len());
        self.store_first(self.cursor.head(), header.to_word(), bytes);
    }

    /// Starts a batch.
    #[inline(always)]
    pub(crate) fn batch(&self) -> BatchSlot {
        let start = self.cursor.head();
        BatchSlot { start, end: start, first: 0, newest: (0, 0), count: 0 }
    }

    /// Adds a record to a batch, and tells where its payload goes.
    ///
    /// # Errors
    ///
    /// As for [`Self::reserve`]; a batch that got an error is as it was.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        batch: &mut BatchSlot,
        header: Header,
    ) -> Result<Result<usize, Full>, Fault> {
        let position = batch.end;
        let is_first = batch.count == 0;
        let lead = lead(header.len(), !is_first);
        let end = position.wrapping_add((lead + header.len()).next_multiple_of(HEADER));
        let needed = end.wrapping_sub(batch.start).next_multiple_of(LINE);
        if needed > self.cursor.free() {
            let free = self.refresh()?;
            if needed > free {
                return Ok(Err(Full { free, needed }));
            }
        }
        if is_first {
            batch.first = header.to_word();
        } else {
            let more = header.with_more().to_word() & !header.to_word();
            self.settle(batch, more);
            batch.newest = (position, header.to_word());
        }
        batch.end = end;
        batch.count += 1;
        Ok(Ok(self.payload(position, lead)))
    }

    /// Stores the newest record's header, `more` added to it.
    #[inline(always)]
    fn settle(&self, batch: &mut BatchSlot, more: u64) {
        match batch.newest {
            (_, 0) => batch.first |= more,
            (position, word) => {
                self.own.store(self.word(position), word | more, Ordering::Relaxed);
            }
        }
    }

    /// Makes all records of a batch visible at once. There is at least one.
    #[inline(always)]
    pub(crate) fn publish_batch(&mut self, mut batch: BatchSlot) {
        debug_assert_eq!(batch.start, self.cursor.head());
        self.settle(&mut batch, 0);
        let bytes = batch.end.wrapping_sub(batch.start).next_multiple_of(LINE);
        self.store_first(batch.start, batch.first, bytes);
    }

    /// Publishes the closing record. There is always room for it, once.
    pub(crate) fn close(&mut self) {
        let position = self.cursor.head();
        self.store_first(position, Header::new(Kind::Close, 0).to_word(), LINE);
    }

    /// The publication: clears the next header, stores this one.
    #[inline(always)]
    fn store_first(&mut self, position: u64, word: u64, bytes: u64) {
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
