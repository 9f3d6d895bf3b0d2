//! Long messages that are copied out while they are still being copied in.
//!
//! One after the other, the two copies take twice as long. So whoever copies a long message into the pool writes its
//! descriptor where the next record's payload will stand, and tells, piece by piece, how much of it is there; whoever
//! waits for a copy takes that already. The record alone makes it a message: what was copied counts if the record
//! names the same loan, and is forgotten otherwise.

use std::time::Instant;

use crate::ring::{Header, Record};
use crate::shm::{OwnWords, PeerWords};
use crate::sync::Edge;
use crate::transport::control;
use crate::transport::envelope::Envelope;
use crate::transport::inbox::{Head, Inbox};
use crate::transport::pooled::Pooled;
use crate::transport::receiver::TryRecvError;
use crate::transport::sender::Sender;
use crate::transport::wait::Patience;

/// Bytes from one telling to the next. Source: `trip-copied` of `bench-rivals`; `docs/performance.md` has figures.
const PIECE: usize = 16 << 10;

/// Shorter messages are copied at once.
const LONG: usize = 2 * PIECE;

/// Bytes that are copied between two looks at the clock: some 50 µs.
const STEP: usize = 256 << 10;

/// Set where an id stands in front of the descriptor. Bytes that are told of are a multiple of 64.
const BEHIND_ID: u64 = 1;

/// Tells that so many bytes of the next message are there, of one with an id or without; 0: nothing is told.
#[inline(always)]
pub(super) fn tell(own: &impl OwnWords, word: usize, told: u64) {
    // Pairs with `told`: the descriptor, and these bytes.
    own.store(word, told, Edge::Fill.store());
}

/// What the peer tells.
#[inline(always)]
pub(super) fn told(peer: &impl PeerWords, word: usize) -> u64 {
    let told = peer.load(word);
    // Pairs with `tell`; and the record in front of the one that is told of is there, if there was one.
    Edge::Follow.acquire();
    told
}

impl Sender {
    /// Copies a message into the block that there is for it.
    pub(super) fn fill(&mut self, envelope: Envelope, message: &[u8]) {
        let tells = message.len() >= LONG && self.write_payload(envelope, message.len());
        if !tells {
            self.pooled.block.bytes_mut().copy_from_slice(message);
            return;
        }
        let behind = if envelope.id.is_some() { BEHIND_ID } else { 0 };
        let (mut filled, mut is_rung) = (0, false);
        for piece in message.chunks(PIECE) {
            let end = filled + piece.len();
            self.pooled.block.part_mut(filled, piece.len()).copy_from_slice(piece);
            filled = end;
            if filled < message.len() {
                tell(&self.link.own, control::FILLED, filled as u64 | behind);
                is_rung = is_rung || self.announce_ahead();
            }
        }
        // Before the record is published, and so before the next message's descriptor is written.
        tell(&self.link.own, control::FILLED, 0);
    }

    /// Wakes a receiver that sleeps and wants to know what is under way. False: there is none.
    fn announce_ahead(&mut self) -> bool {
        let link = &*self.link;
        let is_rung = self.data.look_ahead(&link.own, &link.peer);
        if is_rung {
            self.stats.wakes += 1;
            self.session.link.wake(self.data.bell());
        }
        is_rung
    }

    /// Writes the payload of the record to come where it will stand. False: there is no slot for the loan.
    fn write_payload(&mut self, envelope: Envelope, len: usize) -> bool {
        if self.promise.is_none() {
            self.promise = self.ask_promise();
        }
        let Some((promise, place)) = self.promise.as_ref().zip(self.pooled.block.place()) else {
            return false;
        };
        let descriptor = Pooled::new(&promise.loan(place), len as u64).to_words();
        self.ring.put_words(self.pooled.offset + envelope.len(), &descriptor);
        self.write_id(self.pooled.offset, envelope);
        true
    }
}

/// Of what whoever waits wants a copy: of messages without an id, of those with one, or of none.
pub(super) type Wanted = Option<u64>;
pub(super) const MESSAGES: Wanted = Some(0);
pub(super) const LETTERS: Wanted = Some(BEHIND_ID);

/// What is copied of a message before it is one.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    pub(super) wanted: Wanted,
    /// Where it goes.
    buffer: Vec<u8>,
    /// The message that it is of.
    descriptor: Option<Pooled>,
    /// Bytes of it that are there.
    copied: usize,
    /// What the peer told last.
    pub(super) told: u64,
}

impl Inbox {
    /// As [`head`](Self::head), for somebody who wants a copy in `buffer`. Gives, too, how many bytes of it are there
    /// already.
    pub(super) fn head_ahead(
        &mut self,
        patience: Patience,
        wanted: Wanted,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(Head, usize)>, TryRecvError> {
        if wanted.is_none() || matches!(patience, Patience::None) || !self.data.may_poll() {
            return Ok(self.rare_head(patience)?.map(|head| (head, 0)));
        }
        *self.ahead = Ahead { wanted, buffer: std::mem::take(buffer), ..Ahead::default() };
        self.data.set_eager(true);
        let head = self.rare_head(patience);
        self.data.set_eager(false);
        let ahead = std::mem::take(&mut *self.ahead);
        *buffer = ahead.buffer;
        let counts = matches!(head, Ok(Some(_))) && self.lent.is_some();
        let copied = if counts && self.lent == ahead.descriptor { ahead.copied } else { 0 };
        if copied < ahead.copied {
            buffer.clear();
        }
        Ok(head?.map(|head| (head, copied)))
    }

    /// The same for somebody who has not looked yet.
    pub(super) fn letter_head(
        &mut self,
        patience: Patience,
        wanted: Wanted,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(Head, usize)>, TryRecvError> {
        if self.look(patience).is_some_and(|word| word != 0) {
            return Ok(self.rare_head(patience)?.map(|head| (head, 0)));
        }
        self.head_ahead(patience, wanted, buffer)
    }

    /// Copies what the peer tells of, while nothing stands at the ring's position. Where nothing comes of it, or time
    /// is up, nothing more is copied ahead in this wait.
    #[cold]
    pub(super) fn copy_ahead(&mut self, patience: Patience) {
        let told = told(&self.link.peer, control::FILLED);
        self.ahead.told = told;
        let before = self.ahead.copied;
        loop {
            if self.consumer.is_ready() {
                // What is told may be of another record.
                return;
            }
            let Some(is_all) = self.copy_step(told) else { break };
            if matches!(patience, Patience::Until(deadline) if Instant::now() >= deadline) {
                break;
            }
            if is_all {
                return self.data.comes();
            }
        }
        self.ahead.wanted = None;
        if self.ahead.copied == before {
            self.data.set_eager(false);
        }
    }

    /// Copies some of what is told of: whether that was all of it. `None`: there is nothing of it to copy.
    fn copy_step(&mut self, told: u64) -> Option<bool> {
        if self.ahead.wanted != Some(told & BEHIND_ID) {
            return None;
        }
        if self.ahead.descriptor.is_none() {
            let header = Header::POOLED_MESSAGE;
            let record = Record { header, offset: self.consumer.payload(header) };
            // What cannot be is found out when it is a message.
            self.ahead.descriptor = self.descriptor(record, 8 * (told & BEHIND_ID) as usize).ok();
        }
        let Self { ahead, lenders, session, .. } = self;
        let descriptor = ahead.descriptor.as_ref()?;
        let lender = lenders.current(session, descriptor.segment)?;
        let (offset, len) = descriptor.range_in(lender.segment.len() as u64).ok()?;
        let all = usize::try_from(told & !63).unwrap_or(len).min(len);
        let end = all.min(ahead.copied + STEP);
        if end <= ahead.copied {
            return None;
        }
        if ahead.buffer.len() != len {
            // No more is touched than is copied.
            ahead.buffer.truncate(len);
            ahead.buffer.reserve_exact(len - ahead.buffer.len());
            ahead.buffer.resize(end.max(ahead.buffer.len()), 0);
        }
        let out = &mut ahead.buffer[ahead.copied..end];
        lender.segment.mapping().bytes(offset + ahead.copied, out.len()).copy_to(out);
        ahead.copied = end;
        Some(end == all)
    }

    /// Copies the rest of the message at the ring's position, and gives its record back. Gives its length in bytes.
    #[inline(always)]
    pub(super) fn copy_rest(&mut self, head: &Head, message: &mut Vec<u8>, copied: usize) -> usize {
        if message.len() != head.len {
            message.resize(head.len, 0);
        }
        let rest = self.bytes(head).slice(copied, head.len - copied);
        rest.copy_to(&mut message[copied..]);
        self.release(head);
        head.len
    }
}
