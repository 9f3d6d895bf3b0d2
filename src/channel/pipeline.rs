//! The pipelined copy: the receiver copies a long message out of the pool while the sender still copies it in.
//!
//! ```text
//!   sender     descriptor │ piece 1 │ piece 2 │ … │ piece n │ told = 0 │ publish
//!   told                  0         16 KiB    …
//!   receiver              (polls)   │ copies piece 1 │ copies piece 2 │ …      │ takes the record, copies the rest
//! ```
//!
//! Both copies overlap, so a long message takes about as long as one of them.
//!
//! 1. The sender writes the descriptor where the next record's payload will stand, and writes the word [`told`] after
//!    each piece: the bytes that are complete, and [`BEHIND_ID`].
//! 2. Only the record makes a message. The receiver keeps the bytes that it copied ahead if the record names the same
//!    loan. Otherwise it discards them, and frees their memory: an announcement alone costs none.
//! 3. The word is 0 whenever a record is published, so it never tells of a message that the ring already holds.

use crate::channel::loan_descriptor::LoanDescriptor;
use crate::shm::{OwnWords, PeerWords};
use crate::sync::Edge;

/// Bytes of a piece: the sender writes the word after each one. Source: `trip-copied` of `bench-rivals`; `docs/performance.md` has figures.
pub(super) const PIECE: usize = 16 << 10;

/// The shortest message that is pipelined, in bytes. A shorter one is copied as a whole.
pub(super) const LONG: usize = 2 * PIECE;

/// Bytes that the receiver copies between two checks of its deadline: about 50 µs.
pub(super) const STEP: usize = 256 << 10;

/// The bit of the word which says that an id stands in front of the descriptor. The count of bytes is a multiple of
/// 64, so the bit is free.
pub(super) const BEHIND_ID: u64 = 1;

/// Writes the word: `told` is the count of complete bytes of the next message, with [`BEHIND_ID`] where an id stands
/// in front of its descriptor. 0: no message is under way.
#[inline(always)]
pub(crate) fn tell(own: &impl OwnWords, word: usize, told: u64) {
    // Pairs with `told`: the descriptor and the counted bytes become visible.
    own.store(word, told, Edge::Fill.store());
}

/// Returns the peer's word.
#[inline(always)]
pub(crate) fn told(peer: &impl PeerWords, word: usize) -> u64 {
    let told = peer.load(word);
    // Pairs with `tell`: the descriptor and the counted bytes are visible, and so is each record in front of them.
    Edge::Follow.acquire();
    told
}

/// The messages of which a waiting receiver wants a copy: those without an id, those with one, or none.
pub(crate) type Wanted = Option<u64>;
pub(crate) const MESSAGES: Wanted = Some(0);
pub(crate) const REQUESTS: Wanted = Some(BEHIND_ID);

/// The bytes that a waiting receiver has copied of a message whose record is not published yet.
#[derive(Debug, Default)]
pub(crate) struct CopyAhead {
    pub(super) wanted: Wanted,
    /// The longest message of which it wants a copy, in bytes.
    room: usize,
    /// The buffer that they go to.
    pub(super) buffer: Vec<u8>,
    /// The descriptor of the message.
    pub(super) descriptor: Option<LoanDescriptor>,
    /// The count of bytes that are copied.
    pub(super) copied: usize,
    /// The peer's word at the last copy.
    pub(super) told: u64,
}

impl CopyAhead {
    /// Begins a wait for a message of up to `room` bytes, whose copy goes to `buffer`.
    pub(super) fn new((wanted, room): (Wanted, usize), buffer: Vec<u8>) -> Self {
        Self { wanted, room, buffer, ..Self::default() }
    }

    /// Returns whether a message of `len` bytes is copied ahead.
    pub(super) fn admits(&self, len: usize) -> bool {
        len <= self.room
    }
}
