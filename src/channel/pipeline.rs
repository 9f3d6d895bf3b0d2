//! Long messages that are copied out while they are still being copied in.
//!
//! One after the other, the two copies take twice as long. So whoever copies a long message into the pool writes its
//! descriptor where the next record's payload will stand, and tells, piece by piece, how much of it is there; whoever
//! waits for a copy takes that already. The record alone makes it a message: what was copied counts if the record
//! names the same loan, and is forgotten otherwise.

use crate::channel::loan_descriptor::LoanDescriptor;
use crate::shm::{OwnWords, PeerWords};
use crate::sync::Edge;

/// Bytes from one telling to the next. Source: `trip-copied` of `bench-rivals`; `docs/performance.md` has figures.
pub(super) const PIECE: usize = 16 << 10;

/// Shorter messages are copied at once.
pub(super) const LONG: usize = 2 * PIECE;

/// Bytes that are copied between two looks at the clock: some 50 µs.
pub(super) const STEP: usize = 256 << 10;

/// Set where an id stands in front of the descriptor. Bytes that are told of are a multiple of 64.
pub(super) const BEHIND_ID: u64 = 1;

/// Tells that so many bytes of the next message are there, of one with an id or without; 0: nothing is told.
#[inline(always)]
pub(crate) fn tell(own: &impl OwnWords, word: usize, told: u64) {
    // Pairs with `told`: the descriptor, and these bytes.
    own.store(word, told, Edge::Fill.store());
}

/// What the peer tells.
#[inline(always)]
pub(crate) fn told(peer: &impl PeerWords, word: usize) -> u64 {
    let told = peer.load(word);
    // Pairs with `tell`; and the record in front of the one that is told of is there, if there was one.
    Edge::Follow.acquire();
    told
}

/// Of what whoever waits wants a copy: of messages without an id, of those with one, or of none.
pub(crate) type Wanted = Option<u64>;
pub(crate) const MESSAGES: Wanted = Some(0);
pub(crate) const REQUESTS: Wanted = Some(BEHIND_ID);

/// What is copied of a message before it is one.
#[derive(Debug, Default)]
pub(crate) struct CopyAhead {
    pub(super) wanted: Wanted,
    /// Where it goes.
    pub(super) buffer: Vec<u8>,
    /// The message that it is of.
    pub(super) descriptor: Option<LoanDescriptor>,
    /// Bytes of it that are there.
    pub(super) copied: usize,
    /// What the peer told last.
    pub(super) told: u64,
}
