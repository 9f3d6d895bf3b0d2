//! The slots of a topic: one writer, and any number of readers that it does not wait for.
//!
//! | writer | reader |
//! |---|---|
//! | store state = withdrawn, when the message before is published | load state: `2 · n` |
//! | **release fence** | **acquire fence** |
//! | store header and payload | load header and payload |
//! | store state = `2 · n`, **release** | **acquire fence** |
//! | | load state: still `2 · n` |
//!
//! 1. What a reader has copied between two loads of `2 · n` is message `n`. The states of a slot only rise, so a state
//!    that is the same twice was never another one in between.
//! 2. Payload in the pool is not copied into the slot. A reader *holds* the message: it stores the number into a word of its
//!    own, and loads the state once more behind a full barrier. The writer that takes the memory back stores `2 · n + 1`,
//!    and loads the words of all readers behind a full barrier. So one of the two sees the other.

use crate::broadcast::cursor::END;
use crate::broadcast::layout::{Geometry, HEADER, NEWEST, PAYLOAD};
use crate::shm::{OwnRing, OwnWords, PeerRing, PeerWords};
use crate::sync::{Edge, Ordering};

/// Returns the state of a slot that holds a message.
#[inline(always)]
fn published(message: u64) -> u64 {
    message << 1
}

/// Returns the state of a slot whose message is withdrawn.
#[inline(always)]
fn withdrawn(message: u64) -> u64 {
    message << 1 | 1
}

/// The writing end.
#[derive(Debug)]
pub(super) struct SlotWriter<O: OwnWords> {
    own: O,
    slots: O::Ring,
    geometry: Geometry,
    /// The number of the next message.
    next: u64,
}

impl<O: OwnWords> SlotWriter<O> {
    /// Returns the writer of a topic of which no slot was written.
    pub(super) fn new(own: O, geometry: Geometry) -> Self {
        let slots = own.ring(geometry.data(), geometry.data_len());
        Self { own, slots, geometry, next: 1 }
    }

    /// Returns the number of the next message.
    #[inline(always)]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Begins the next message, whose slot is marked. Returns the start of its payload, in bytes from the first slot.
    #[inline(always)]
    pub(super) fn begin(&self) -> usize {
        // Pairs with SlotReader::is_whole: a reader that loads what is stored next sees the slot as taken.
        Edge::Overwrite.release();
        (self.geometry.position(self.next) + PAYLOAD) as usize
    }

    /// Publishes the message that was begun.
    #[inline(always)]
    pub(super) fn publish(&mut self, header: u64) {
        let position = self.geometry.position(self.next);
        self.slots.store(position + HEADER, header, Ordering::Relaxed);
        // Pairs with SlotReader::look: header and payload.
        self.slots.store(position, published(self.next), Edge::Publish.store());
        // A hint: what it leads to is checked by the slot's own state.
        self.own.store(NEWEST, self.next, Ordering::Relaxed);
        self.next += 1;
        // The mark moves the line of the next message towards this core before it is needed. A reader that is so far behind goes
        // on with a later message.
        self.slots.store(self.geometry.position(self.next), self.mark(), Ordering::Relaxed);
    }

    /// Returns the state of the next message's slot: the message before it there is withdrawn.
    #[inline(always)]
    fn mark(&self) -> u64 {
        self.next.checked_sub(self.geometry.slots()).map_or(0, withdrawn)
    }

    /// Withdraws a message. Behind [`look_for_holders`](Self::look_for_holders) the caller finds every reader that holds it.
    pub(super) fn withdraw(&self, message: u64) {
        // A message that was overwritten since has been withdrawn before that.
        self.slots.store(self.geometry.position(message), withdrawn(message), Ordering::Relaxed);
    }

    /// Issues the barrier between the withdrawal of messages and the load of the readers' words.
    pub(super) fn look_for_holders(&self) {
        // Pairs with SlotReader::hold: if this side misses the hold, the reader finds the message withdrawn.
        Edge::Withdraw.barrier();
    }
}

/// What a reader finds where a message is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It is not published yet.
    Nothing,
    /// It is there, with this header.
    Message(u64),
    /// Its memory was taken back.
    Withdrawn,
    /// A later message is there.
    Overwritten,
}

/// The reading end.
#[derive(Debug)]
pub(super) struct SlotReader<P: PeerWords> {
    peer: P,
    slots: P::Ring,
    geometry: Geometry,
}

impl<P: PeerWords> SlotReader<P> {
    pub(super) fn new(peer: P, geometry: Geometry) -> Self {
        let slots = peer.ring(geometry.data(), geometry.data_len());
        Self { peer, slots, geometry }
    }

    /// Returns the memory of the topic.
    pub(super) fn words(&self) -> &P {
        &self.peer
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the number of the newest message, as of a moment ago.
    #[inline(always)]
    pub(super) fn newest(&self) -> u64 {
        self.peer.load(NEWEST).min(END)
    }

    /// Returns whether something is where a message is due: itself, or a sign that it is gone.
    #[inline(always)]
    pub(super) fn is_due(&self, message: u64) -> bool {
        self.slots.load(self.geometry.position(message)) >= published(message)
    }

    /// Returns the place of the state of a message's slot, in bytes from the start of the topic, and its least value once
    /// something [is there](Self::is_due).
    pub(super) fn due(&self, message: u64) -> (usize, u64) {
        (self.geometry.data() + self.geometry.position(message) as usize, published(message))
    }

    /// Returns what is where a message is due.
    #[inline(always)]
    pub(super) fn look(&self, message: u64) -> Look {
        let position = self.geometry.position(message);
        let state = self.slots.load(position);
        if state == published(message) {
            // Pairs with SlotWriter::publish: header and payload.
            Edge::Peek.acquire();
            Look::Message(self.slots.load(position + HEADER))
        } else if state < published(message) {
            Look::Nothing
        } else if state == withdrawn(message) {
            Look::Withdrawn
        } else {
            Look::Overwritten
        }
    }

    /// Returns the start of a message's payload, in bytes from the start of the topic.
    #[inline(always)]
    pub(super) fn payload(&self, message: u64) -> usize {
        self.geometry.data() + (self.geometry.position(message) + PAYLOAD) as usize
    }

    /// Returns whether all that was loaded of a message is the message.
    #[inline(always)]
    pub(super) fn is_whole(&self, message: u64) -> bool {
        // Pairs with SlotWriter::begin: a load that saw later bytes is followed by one that sees the slot taken.
        Edge::Overrun.acquire();
        self.slots.load(self.geometry.position(message)) == published(message)
    }

    /// Returns whether a hold counts that the caller has stored: the writer keeps the message's memory until the hold is
    /// given back.
    pub(super) fn is_held(&self, message: u64) -> bool {
        // Pairs with SlotWriter::look_for_holders: if the writer misses the hold, this load finds the message withdrawn.
        Edge::Hold.barrier();
        self.slots.load(self.geometry.position(message)) == published(message)
    }
}

/// Returns the first message for which the slot of the oldest message that keeps memory is needed.
pub(super) fn withdraw_at(oldest_kept: Option<u64>, capacity: u64) -> u64 {
    oldest_kept.map_or(u64::MAX, |oldest| oldest + capacity)
}
