//! The writer's end of a ring: headers and clearing, over any memory that has words.

use std::time::{Duration, Instant};

use crate::error::Fault;
use crate::ring::cursor::{Clearing, Full, ProducerCursor, plain_lead};
use crate::ring::header::{Header, Kind};
use crate::shm::{OwnRing, OwnWords, PeerWords};
use crate::sync::{Edge, Ordering, compiler_fence};

/// Bytes of the smallest page of any machine.
const SMALLEST_PAGE: usize = 4096;

/// Writes records into this process's memory `O` and reads the reader's position in the peer's memory `P`.
#[derive(Debug)]
pub(crate) struct Producer<O: OwnWords, P> {
    /// The words of the data section.
    own: O::Ring,
    peer: P,
    /// The offset of the reader's position in `peer`, in bytes.
    position: usize,
    mask: u64,
    cursor: ProducerCursor,
}

/// A batch under construction: records packed at multiples of 8, the first header stored last. It stays in its
/// place: a move would load it in wider pieces than it was stored in, which stalls.
#[derive(Debug, Default)]
pub(crate) struct BatchSlot {
    start: u64,
    /// The start of another record of the batch.
    packed: u64,
    /// The start of the record after the batch.
    end: u64,
    /// The first record's header, 0 while there is none.
    first: u64,
    /// Position and header of the newest record after the first. The header is stored when it is known whether
    /// more follow. It is 0 while there is none.
    newest: (u64, u64),
    count: u32,
}

/// Room for a plain message right behind the last record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainRoom {
    /// The start of the payload, in bytes from the start of the data section.
    pub(crate) offset: usize,
    /// The start of the next record.
    pub(crate) next: u64,
}

impl BatchSlot {
    /// Returns the number of records in this batch.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Moves this batch to the start of another ring. Its bytes lie there.
    fn move_to(&mut self, start: u64) {
        let by = start.wrapping_sub(self.start);
        self.start = start;
        self.packed = self.packed.wrapping_add(by);
        self.newest.0 = self.newest.0.wrapping_add(by);
        let (position, word, continues) = match self.newest {
            (_, 0) => (start, self.first, false),
            (position, word) => (position, word, true),
        };
        self.end = ProducerCursor::next(position, Header::of(word), continues);
    }
}

impl<O: OwnWords, P: PeerWords> Producer<O, P> {
    /// Returns an end at cursor `start` (0 except in tests) of a ring of `capacity` bytes, a power of two. Its
    /// data section starts at `data` of `own`, and `position` is the reader's word in `peer`.
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
        Self { own: own.ring(data, capacity), peer, position, mask: capacity - 1, cursor }
    }

    /// Returns the start of a record's payload, in bytes from the start of the data section.
    #[inline(always)]
    fn payload(&self, position: u64, header: Header, continues: bool) -> usize {
        let lead = ProducerCursor::payload(position, header, continues).wrapping_sub(position);
        (position & self.mask) as usize + lead as usize
    }

    /// Reads the reader's position and returns the free bytes.
    pub(crate) fn refresh(&mut self) -> Result<u64, Fault> {
        let position = self.peer.load(self.position);
        // Pairs with Consumer::publish: the reader has finished with every byte before `position`.
        Edge::Reuse.acquire();
        self.cursor.admit(position)?;
        Ok(self.cursor.free())
    }

    /// Reads and returns the reader's position, in bytes since creation.
    pub(crate) fn read(&mut self) -> Result<u64, Fault> {
        self.refresh()?;
        Ok(self.cursor.tail())
    }

    /// Returns how long the reader's position takes to come, or `None` if it has not changed: then it did not come from
    /// the reader's core.
    pub(crate) fn time_position(&mut self) -> Result<Option<Duration>, Fault> {
        // Another line of the same page: the time of a page walk is no distance.
        std::hint::black_box(self.peer.load(self.position & !(SMALLEST_PAGE - 1)));
        let (before, start) = (self.cursor.tail(), Instant::now());
        let after = self.read()?;
        let took = start.elapsed();
        Ok((after != before).then_some(took))
    }

    /// Returns the length of the ring in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the ring bytes of the records that the reader has not read.
    pub(crate) fn unread(&self) -> u64 {
        self.cursor.unread(self.peer.load(self.position))
    }

    /// Returns the start of the next record, in bytes since creation.
    pub(crate) fn written(&self) -> u64 {
        self.cursor.head()
    }

    /// Reserves room for a record. Returns the start of its payload, in bytes from the start of the data
    /// section. The payload may run into the mirror. The room stays reserved until the next publication.
    ///
    /// # Errors
    ///
    /// The outer error is the peer's fault. The inner one says that there is no room now.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, header: Header) -> Result<Result<usize, Full>, Fault> {
        let next = match self.cursor.fits(header) {
            Ok(next) => next,
            Err(_) => {
                self.refresh()?;
                match self.cursor.fits(header) {
                    Ok(next) => next,
                    Err(full) => return Ok(Err(full)),
                }
            }
        };
        self.cursor.claim(next);
        // A dropped batch may have stored headers here, and the payload may reach the same bytes through the
        // mirror: see `store`.
        compiler_fence(Ordering::SeqCst);
        Ok(Ok(self.place(header)))
    }

    /// Returns the start of the payload of a record for which there is room.
    #[inline(always)]
    pub(crate) fn place(&self, header: Header) -> usize {
        self.payload(self.cursor.head(), header, false)
    }

    /// Publishes a record. Room for it, or for the one that it was [shortened](Header::shortened) from, is
    /// reserved, and its payload is written.
    #[inline(always)]
    pub(crate) fn publish(&mut self, header: Header) {
        let position = self.cursor.head();
        let fits = self.cursor.fits(header);
        debug_assert!(fits.is_ok(), "room was reserved");
        if let Ok(next) = fits {
            let clearing = self.cursor.advance(next);
            self.store(position, header.to_word(), clearing);
        }
    }

    /// Returns room for a plain message of `len` bytes. Returns `None` if there is none that is free of further work: see
    /// [`Self::reserve`].
    #[inline(always)]
    pub(crate) fn plain_room(&self, len: u32) -> Option<PlainRoom> {
        // As in `reserve`. Nothing is claimed: no later call takes a word before the next header to be zero.
        compiler_fence(Ordering::SeqCst);
        let next = self.cursor.fits_plain(len.into())?;
        let offset = (self.cursor.head() & self.mask) as usize + plain_lead(len.into()) as usize;
        Some(PlainRoom { offset, next })
    }

    /// Publishes a plain message. The last call of [`Self::plain_room`] returned `next` as the start of the next
    /// record.
    #[inline(always)]
    pub(crate) fn publish_plain(&mut self, header: Header, next: u64) {
        debug_assert_eq!(self.cursor.fits_plain(header.len()), Some(next), "room was found");
        debug_assert_eq!(self.cursor.fits(header), Ok(next), "the same as for any record");
        let position = self.cursor.head();
        let clearing = self.cursor.advance_plain(next);
        self.store(position, header.to_word(), clearing);
    }

    /// Starts a batch.
    #[inline(always)]
    pub(crate) fn start(&self, batch: &mut BatchSlot) {
        let start = self.cursor.head();
        batch.start = start;
        batch.packed = start;
        batch.end = start;
        batch.newest.1 = 0;
        batch.count = 0;
    }

    /// Returns where the bytes of a batch lie that is neither empty nor published: their start in the data section, and their
    /// length.
    pub(crate) fn find_batch(&self, batch: &BatchSlot) -> Option<(usize, usize)> {
        // As in `reserve`: the caller may reach its headers through the mirror.
        compiler_fence(Ordering::SeqCst);
        let is_open = batch.count > 0 && batch.start == self.cursor.head();
        let len = batch.packed.wrapping_sub(batch.start) as usize;
        is_open.then_some(((batch.start & self.mask) as usize, len))
    }

    /// Continues a batch whose bytes were copied to the start of the ring to which this end has [moved](Self::move_to).
    pub(crate) fn resume(&self, batch: &mut BatchSlot) {
        batch.move_to(self.cursor.head());
    }

    /// Adds a record to a batch. Returns the start of its payload.
    ///
    /// # Errors
    ///
    /// As [`Self::reserve`]. An error leaves the batch unchanged.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        batch: &mut BatchSlot,
        header: Header,
    ) -> Result<Result<usize, Full>, Fault> {
        if batch.newest.1 == header.to_word()
            && let Some(offset) = self.push_alike(batch, header)
        {
            return Ok(Ok(offset));
        }
        let position = batch.packed;
        let continues = batch.count > 0;
        let end = match self.cursor.fits_in_batch(position, header, continues) {
            Ok(end) => end,
            Err(_) => {
                self.refresh()?;
                match self.cursor.fits_in_batch(position, header, continues) {
                    Ok(end) => end,
                    Err(full) => return Ok(Err(full)),
                }
            }
        };
        if continues {
            let more = header.with_more().to_word() & !header.to_word();
            self.settle(batch, more);
            batch.newest = (position, header.to_word());
        } else {
            batch.first = header.to_word();
        }
        self.cursor.claim(end);
        batch.end = end;
        batch.packed = ProducerCursor::next(position, header.with_more(), continues);
        batch.count += 1;
        Ok(Ok(self.payload(position, header, continues)))
    }

    /// Adds a record with the header of the newest one, if there is room. Returns the start of its payload.
    #[inline(always)]
    fn push_alike(&mut self, batch: &mut BatchSlot, header: Header) -> Option<usize> {
        let (before, position) = (batch.newest.0, batch.packed);
        let packed = position.wrapping_add(position.wrapping_sub(before));
        let end = ProducerCursor::align(packed, header);
        if end.wrapping_sub(self.cursor.head()) > self.cursor.free() {
            return None;
        }
        self.own.store(before, header.with_more().to_word(), Ordering::Relaxed);
        self.cursor.claim(end);
        batch.newest.0 = position;
        batch.packed = packed;
        batch.end = end;
        batch.count += 1;
        Some(self.payload(position, header, true))
    }

    /// Stores the newest record's header with `more` added.
    #[inline(always)]
    fn settle(&self, batch: &mut BatchSlot, more: u64) {
        match batch.newest {
            (_, 0) => batch.first |= more,
            (position, word) => {
                self.own.store(position, word | more, Ordering::Relaxed);
            }
        }
    }

    /// Publishes all records of a batch at once. There is at least one.
    #[inline(always)]
    pub(crate) fn publish_batch(&mut self, batch: &mut BatchSlot) {
        debug_assert_eq!(batch.start, self.cursor.head());
        self.settle(batch, 0);
        let clearing = self.cursor.advance(batch.end);
        self.store(batch.start, batch.first, clearing);
    }

    /// Publishes the closing record. There is always room for it, once.
    pub(crate) fn close(&mut self) {
        self.publish_last(Header::new(Kind::Close, 0));
    }

    /// Tells the reader that the next record lies in another ring, and goes on there. The other ring has `capacity` bytes, all
    /// zero, that start at `data` of `own`. Nothing is reserved.
    pub(crate) fn move_to(&mut self, own: &O, data: usize, capacity: u64) {
        debug_assert!(capacity.is_power_of_two());
        self.publish_last(Header::MOVED);
        self.own = own.ring(data, capacity);
        self.mask = capacity - 1;
        self.cursor = self.cursor.moved_to(capacity);
    }

    /// Publishes the last record in this ring.
    fn publish_last(&mut self, last: Header) {
        let position = self.cursor.head();
        let clearing = self.cursor.advance_to_end(last);
        self.store(position, last.to_word(), clearing);
    }

    /// Clears the next header and stores this one: the publication.
    #[inline(always)]
    fn store(&self, position: u64, word: u64, clearing: Clearing) {
        if let Some(next) = clearing.before {
            // As below: payload that was written and then cut off stays before this store.
            compiler_fence(Ordering::SeqCst);
            self.own.store(next, 0, Ordering::Relaxed);
        }
        // Pairs with Consumer::peek: the payload, inner headers, and the cleared next header.
        self.own.store(position, word, Edge::Publish.store());
        if let Some(after) = clearing.after {
            // The store moves the line towards this core before it is needed. It becomes visible with the next
            // publication, whose reader is the first that can load it.
            self.own.store(after, 0, Ordering::Relaxed);
            // The next payload may reach the same bytes through the mirror, which the compiler takes for other
            // memory: it must not sink this store below those.
            compiler_fence(Ordering::SeqCst);
        }
    }
}
