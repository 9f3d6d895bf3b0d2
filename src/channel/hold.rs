//! Holds: the messages in a publisher's pool that a subscriber reads.
//!
//! 1. A hold is a word in the subscriber's segment, one of its loan slots: the number of the message, or 0.
//! 2. A message is held once, in parts: one for each tensor of it, and one while it is opened. The drop of the last part gives
//!    the hold back.
//! 3. A part may be dropped by any thread.
//! 4. A message may always be held alone. Beside others it is held only if all of them keep within the limit of bytes.

use std::sync::Arc;

use crate::error::{ErrorKind, Result};
use crate::handshake::layout;
use crate::link::session::Session;
use crate::shm::OwnWords;
use crate::sync::Edge;

/// What this side may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldLimits {
    pub(crate) messages: u32,
    /// Bytes of all messages together, or 0 for any number.
    pub(crate) bytes: u64,
}

/// A part of a message that this side holds.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    session: &'a Arc<Session>,
    slot: u32,
    limit: u64,
}

impl<'a> Hold<'a> {
    /// Stores that this side holds a message. The caller looks once more whether the message is still there. Returns `None`
    /// if this side holds as many as it may.
    #[inline]
    pub(crate) fn take(
        session: &'a Arc<Session>,
        limits: HoldLimits,
        message: u64,
    ) -> Option<Self> {
        let slot = session.take_hold(limits.messages)?;
        store(session.link.own(), layout::RETURNS + 8 * slot as usize, message);
        Some(Self { session, slot, limit: limits.bytes })
    }

    /// Returns the number of another part, of `bytes`. The caller drops it with [`Session::drop_part`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::HoldBytes`]
    pub(super) fn split(&self, bytes: u64) -> Result<u32> {
        self.count(bytes)?;
        self.session.add_part(self.slot);
        Ok(self.slot)
    }

    /// Returns the number of this part, of `bytes`. The caller drops it with [`Session::drop_part`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::HoldBytes`]
    #[inline]
    pub(super) fn into_slot(self, bytes: u64) -> Result<u32> {
        self.count(bytes)?;
        let slot = self.slot;
        std::mem::forget(self);
        Ok(slot)
    }

    /// Counts bytes of the message.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::HoldBytes`]: with those of other holds they are more than the limit.
    #[inline]
    fn count(&self, bytes: u64) -> Result<()> {
        if self.limit == 0 {
            return Ok(());
        }
        let (needed, held) = self.session.count_held(self.slot, bytes);
        if held > 0 && held + needed > self.limit {
            return Err(ErrorKind::HoldBytes { needed, held, limit: self.limit }.into());
        }
        Ok(())
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
