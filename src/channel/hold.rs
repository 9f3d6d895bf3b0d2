//! Holds: the messages in a publisher's pool that a subscriber reads.
//!
//! 1. A hold is a word in the subscriber's segment, one of its loan slots: the number of the message, or 0.
//! 2. A message is held once, in parts: one for each tensor of it, and one while it is opened. The drop of the last part gives
//!    the hold back.
//! 3. A part may be dropped by any thread.

use std::sync::Arc;

use crate::handshake::layout;
use crate::link::session::Session;
use crate::shm::OwnWords;
use crate::sync::Edge;

/// A part of a message that this side holds.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    session: &'a Arc<Session>,
    slot: u32,
}

impl<'a> Hold<'a> {
    /// Stores that this side holds a message. The caller looks once more whether the message is still there. Returns `None`
    /// if this side has `limit` holds.
    #[inline]
    pub(crate) fn take(session: &'a Arc<Session>, limit: u32, message: u64) -> Option<Self> {
        let slot = session.take_hold(limit)?;
        store(session.link.own(), layout::RETURNS + 8 * slot as usize, message);
        Some(Self { session, slot })
    }

    /// Returns the number of another part, which the caller drops with [`Session::drop_part`].
    pub(super) fn split(&self) -> u32 {
        self.session.add_part(self.slot);
        self.slot
    }

    /// Returns the number of this part, which the caller drops with [`Session::drop_part`].
    #[inline]
    pub(super) fn into_slot(self) -> u32 {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }
}

/// Drops the part.
impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.session.drop_part(self.slot);
    }
}

/// Stores a hold into a word that is 0 or was given back.
#[inline]
pub(crate) fn store(own: &impl OwnWords, word: usize, message: u64) {
    // Pairs with State::sweep: a publisher that finds this number, and not the 0 before it, knows that the loads of the
    // word's earlier message are done.
    own.store(word, message, Edge::Return.store());
}
