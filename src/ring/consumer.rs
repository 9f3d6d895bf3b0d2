//! The reader's end of a ring, over any memory that has words.

use core::ops::RangeInclusive;

use crate::error::Fault;
use crate::ring::cursor::{ConsumerCursor, LINE};
use crate::ring::header::{Header, Kind};
use crate::shm::{OwnWords, PeerRing, PeerWords};
use crate::sync::Edge;

/// Polls of a record ahead: about a fifth of a microsecond.
const POLLS_AHEAD: u32 = 128;

/// Reads records in the peer's memory `P` and publishes its position in this process's memory `O`.
#[derive(Debug)]
pub(crate) struct Consumer<O, P: PeerWords> {
    own: O,
    /// The words of the data section.
    peer: P::Ring,
    /// The start of the data section in the peer's segment, in bytes.
    data: usize,
    /// The offset of this end's position in `own`, in bytes.
    position: usize,
    mask: u64,
    cursor: ConsumerCursor,
}

/// A record that was peeked and not yet released.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// A private, checked copy of the header.
    pub(crate) header: Header,
    /// The start of the payload in the peer's segment, in bytes. The payload may run into the mirror.
    pub(crate) offset: usize,
}

impl<O: OwnWords, P: PeerWords> Consumer<O, P> {
    /// Returns an end at cursor `start` (0 except in tests) of a ring of `capacity` bytes, a power of two. Its
    /// data section starts at `data` of `peer`, and `position` is this end's word in `own`.
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

    /// Goes on in another ring of the writer's, after the record that says so. It has `capacity` bytes that start at `data` of
    /// `peer`.
    pub(crate) fn move_to(&mut self, peer: &P, data: usize, capacity: u64) {
        debug_assert!(capacity.is_power_of_two());
        self.peer = peer.ring(data, capacity);
        self.data = data;
        self.mask = capacity - 1;
        self.cursor = self.cursor.moved_to(capacity);
    }

    /// Returns the next record, if one is published. A second call returns the same one.
    ///
    /// # Errors
    ///
    /// The peer's bytes are impossible: see [`ConsumerCursor::judge`].
    #[inline(always)]
    pub(crate) fn peek(&self) -> Result<Option<Record>, Fault> {
        let word = self.word();
        // Pairs with Producer::publish: the payload, inner headers, and the cleared next header.
        Edge::Peek.acquire();
        let header = self.cursor.judge(word)?;
        Ok(header.map(|header| Record { header, offset: self.payload(header) }))
    }

    /// Returns the unchecked word at the position: 0 while no record is published there.
    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.peer.load(self.cursor.position())
    }

    /// In a stream, waits until the writer is some records ahead, for about a fifth of a microsecond at most. Else does nothing. What
    /// stands there is a hint: whoever reads on checks each record.
    ///
    /// A reader that follows a writer closely takes the lines that the writer is about to write: the processor loads records that
    /// are not there yet. The writer waits for each of them, a cache line's way there and back. The record ahead stands in a line
    /// that the writer does not write before.
    #[inline(always)]
    pub(crate) fn give_way(&mut self) {
        if self.cursor.is_streaming() {
            self.await_ahead();
        }
    }

    #[inline(never)]
    fn await_ahead(&mut self) {
        let ahead = self.cursor.ahead();
        for _ in 0..POLLS_AHEAD {
            if self.peer.load(ahead) != 0 {
                break;
            }
        }
        self.cursor.look_ahead_later();
    }

    /// Notes that no record is there.
    #[inline(always)]
    pub(crate) fn caught_up(&mut self) {
        self.cursor.look_ahead_later();
    }

    /// Loads the line after the header's ahead of a header whose payload lies there. The loaded value has no
    /// meaning.
    #[inline(always)]
    pub(crate) fn touch(&self) {
        std::hint::black_box(self.peer.load(self.cursor.position().wrapping_add(LINE)));
    }

    /// Returns the record of this header word, if it is a plain message of up to `max` bytes, at most the
    /// longest that fits into the ring. Returns `None` otherwise, and [`peek`](Self::peek) tells what it is.
    #[inline(always)]
    pub(crate) fn plain(&self, word: u64, max: u64) -> Option<Record> {
        // As in `peek`.
        Edge::Peek.acquire();
        let header = self.cursor.judge_plain(word, max)?;
        Some(Record { header, offset: self.payload(header) })
    }

    /// Returns the header in this word, if it is that of a [single tensor](Header::single_from_word) with a payload of one of
    /// these lengths, which fit into any ring. Returns `None` otherwise, and [`peek`](Self::peek) tells what it is.
    #[inline(always)]
    pub(crate) fn single(&self, word: u64, lens: RangeInclusive<usize>) -> Option<Header> {
        // As in `peek`.
        Edge::Peek.acquire();
        Header::single_from_word(word).filter(|header| lens.contains(&(header.len() as usize)))
    }

    /// Returns the start in the peer's segment of the payload of the record at the position, if it has this
    /// header.
    #[inline(always)]
    pub(crate) fn payload(&self, header: Header) -> usize {
        self.next_header() + self.cursor.lead(header) as usize
    }

    /// Returns the length of the ring in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the position: bytes of the ring that were given back since it was made.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.cursor.position()
    }

    /// Returns the ring bytes of the records in this ring that are published and not yet released. It visits each of them.
    pub(crate) fn unread(&self) -> u64 {
        let start = self.cursor.position();
        let mut cursor = self.cursor.clone();
        loop {
            let word = self.peer.load(cursor.position());
            // As in `peek`.
            Edge::Peek.acquire();
            let unread = cursor.position().wrapping_sub(start);
            match cursor.judge(word) {
                Ok(Some(header))
                    if unread <= self.mask
                        && !matches!(header.kind(), Kind::Close | Kind::Moved) =>
                {
                    cursor.release(header);
                }
                // The end, or a lie, which the receiver meets when it comes there.
                _ => return unread.min(self.mask + 1),
            }
        }
    }

    /// Returns whether a word stands at the position, checked or not. The cheapest poll.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.word() != 0
    }

    /// Returns whether the record that the previous one promised is missing: a fault, of which no header tells.
    pub(crate) fn is_cut(&self) -> bool {
        self.cursor.is_promised() && self.word() == 0
    }

    /// Returns the start of the next record's header in the peer's segment, in bytes.
    #[inline(always)]
    pub(crate) fn next_header(&self) -> usize {
        self.data + (self.cursor.position() & self.mask) as usize
    }

    /// Releases a record like the one before, unless the reader's position is due to be published then. Returns whether it did.
    #[inline(always)]
    pub(crate) fn release_quietly(&mut self, header: Header) -> bool {
        self.cursor.release_quietly(header)
    }

    /// Releases a record. Returns `true` if the reader's position was published.
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

    /// Publishes the reader's position. Returns `false` if the writer knew it.
    ///
    /// A reader that finds the ring empty must call this. Otherwise a writer that waits for room could wait
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
        // Pairs with Producer::refresh: this end's loads of every byte before `position` are done.
        self.own.store(self.position, position, Edge::Release.store());
    }
}
