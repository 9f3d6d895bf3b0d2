//! Holds: the messages in a publisher's pool that a subscriber reads.
//!
//! 1. A hold is a word in the subscriber's segment, one of its loan slots: the number of the message, or 0.
//! 2. A message is held once, whatever number of tensors of it live. The drop of the last one gives the hold back.
//! 3. A hold may be given back by any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::handshake::layout;
use crate::link::session::Session;
use crate::shm::OwnWords;
use crate::sync::Edge;

/// The holds of one subscriber.
#[derive(Debug)]
pub(crate) struct HoldTable {
    session: Arc<Session>,
    /// For each hold, whether it is taken.
    taken: Box<[AtomicBool]>,
}

impl HoldTable {
    /// Returns a table of `limit` holds, at most as many as this side has loan slots.
    pub(crate) fn new(session: Arc<Session>, limit: u32) -> Arc<Self> {
        let taken = (0..limit).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self { session, taken })
    }

    /// Stores that this side holds a message. The caller looks once more whether the message is still there. Returns `None`
    /// if all holds are taken.
    pub(crate) fn take(self: &Arc<Self>, message: u64) -> Option<Hold> {
        // Acquire: the thread that gave the hold back has stored its word before.
        let is_free = |taken: &AtomicBool| !taken.swap(true, Ordering::Acquire);
        let index = self.taken.iter().position(is_free)?;
        let word = layout::RETURNS + 8 * index;
        store(self.session.link.own(), word, message);
        Some(Hold { table: self.clone(), index })
    }

    /// Returns how many holds there are.
    pub(crate) fn limit(&self) -> u32 {
        self.taken.len() as u32
    }

    /// Returns how many are taken.
    pub(crate) fn count(&self) -> usize {
        self.taken.iter().filter(|taken| taken.load(Ordering::Relaxed)).count()
    }
}

/// Stores a hold into a word that is 0 or was given back.
pub(crate) fn store(own: &impl OwnWords, word: usize, message: u64) {
    // Pairs with State::sweep: a publisher that finds this number, and not the 0 before it, knows that the loads of the
    // word's earlier message are done.
    own.store(word, message, Edge::Return.store());
}

/// A message that this side reads. The drop gives it back.
#[derive(Debug)]
pub(crate) struct Hold {
    table: Arc<HoldTable>,
    index: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Stores 0, and wakes a publisher that waits.
        self.table.session.return_loan(self.index as u32, 0);
        self.table.taken[self.index].store(false, Ordering::Release);
    }
}
