//! The reader's end of a ring, over any memory that has words.

use crate::error::Fault;
use crate::ring::cursor::{ConsumerCursor, LINE};
use crate::ring::header::Header;
use crate::shm::{OwnWords, PeerRing, PeerWords};
use crate::sync::Edge;

/// Reads records in memory `P` of the peer and publishes its position in memory `O` of ours.
#[derive(Debug)]
pub(crate) struct Consumer<O, P: PeerWords> {
    own: O,
    /// The data section.
    peer: P::Ring,
    /// Where it starts in the peer's segment, in bytes.
    data: usize,
    /// Our position in `own`, in bytes.
    position: usize,
    mask: u64,
    cursor: ConsumerCursor,
}

/// A record that was seen and not yet released.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// A private, judged copy of the header.
    pub(crate) header: Header,
    /// Start of the payload in the peer's segment, in bytes; it may run into the mirror.
    pub(crate) offset: usize,
}

impl<O: OwnWords, P: PeerWords> Consumer<O, P> {
    /// An end at cursor `start` (0 but in tests) of a ring of `capacity` bytes, a power of two,
    /// whose data section starts at `data` of `peer`; `position` is our word in `own`.
    pub(crate) fn new(
        own: O,
        peer: P,
        data: usize,
        position: usize,
        capacity: u64,
        start: u64,
    ) -> Self {
        debug_assert!(capacity.is_power_of_two());
        let cursor = ConsumerCursor::new(capacity, start);
        let peer = peer.ring(data, capacity);
        Self { own, peer, data, position, mask: capacity - 1, cursor }
    }

    /// The next record, if one is published. Looking again gives the same one.
    ///
    /// # Errors
    ///
    /// What the peer wrote cannot be; see [`ConsumerCursor::judge`].
    #[inline(always)]
    pub(crate) fn peek(&self) -> Result<Option<Record>, Fault> {
        let word = self.word();
        // Pairs with Producer::publish: the payload, inner headers, and the cleared next header.
        Edge::Peek.acquire();
        let header = self.cursor.judge(word)?;
        Ok(header.map(|header| Record { header, offset: self.payload(header) }))
    }

    /// The word at the position, not judged: 0 while nothing is published there.
    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.peer.load(self.cursor.position())
    }

    /// Brings the line behind the header's, as a header is about to come whose payload lies there. What is loaded
    /// means nothing yet.
    #[inline(always)]
    pub(crate) fn touch(&self) {
        std::hint::black_box(self.peer.load(self.cursor.position().wrapping_add(LINE)));
    }

    /// The record that such a word is the header of, if it is a plain message of up to `max` bytes, at
    /// most what fits into the ring. `None`: [`peek`](Self::peek) says what it is.
    #[inline(always)]
    pub(crate) fn plain(&self, word: u64, max: u64) -> Option<Record> {
        // As in `peek`.
        Edge::Peek.acquire();
        let header = self.cursor.judge_plain(word, max)?;
        Some(Record { header, offset: self.payload(header) })
    }

    /// Where the payload of the record at the position lies, if it has this header, in the peer's segment.
    #[inline(always)]
    pub(crate) fn payload(&self, header: Header) -> usize {
        self.next_header() + self.cursor.lead(header) as usize
    }

    /// Returns the position: bytes of the ring that were given back since it was made.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.cursor.position()
    }

    /// Whether something stands at the position, judged or not. The cheapest look.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.word() != 0
    }

    /// Where the next record's header will stand in the peer's segment, in bytes.
    #[inline(always)]
    pub(crate) fn next_header(&self) -> usize {
        self.data + (self.cursor.position() & self.mask) as usize
    }

    /// Gives a record back. True: the writer was told how far the reader is.
    #[inline(always)]
    pub(crate) fn release(&mut self, header: Header) -> bool {
        match self.cursor.release(header) {
            Some(position) => {
                self.store_position(position);
                true
            }
            None => false,
        }
    }

    /// Tells the writer how far the reader is. False: it knew.
    ///
    /// Whoever finds the ring empty must do this: a writer that waits for room could otherwise wait
    /// for a reader that waits for the writer.
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> bool {
        match self.cursor.publish() {
            Some(position) => {
                self.store_position(position);
                true
            }
            None => false,
        }
    }

    #[inline(always)]
    fn store_position(&self, position: u64) {
        // Pairs with Producer::refresh: our loads of every byte before `position` are done.
        self.own.store(self.position, position, Edge::Release.store());
    }
}
