//! What this process keeps in one loan slot: a loan, or a held message in one or more parts.
//!
//! 1. One thread takes a slot that is free. Any thread drops a part, and the thread that drops the last one frees the slot.
//! 2. The thread that drops the last part comes after all loads of the others, so what it stores then is true of all of them.
//! 3. The thread that takes a slot comes after what was stored before the slot was free.

use std::sync::atomic::AtomicU64;

use crate::sync::{AtomicU32, Edge, Ordering};

/// The bit of a slot that is not free. The others count parts.
const TAKEN: u32 = 1 << 31;

/// The parts of what is kept in one slot.
#[derive(Debug)]
pub(crate) struct Parts {
    state: AtomicU32,
    /// The bytes of a held message that were counted. Only the thread that takes the slot counts.
    bytes: AtomicU64,
}

impl Parts {
    /// Returns a free slot.
    pub(crate) fn new() -> Self {
        Self { state: AtomicU32::new(0), bytes: AtomicU64::new(0) }
    }

    /// Returns whether nothing is kept in the slot.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        // Pairs with free.
        self.state.load(Edge::Part.load()) == 0
    }

    /// Keeps one part in the slot, which is free.
    #[inline]
    pub(crate) fn take(&self) {
        self.state.store(TAKEN | 1, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Adds a part. The caller has one.
    #[inline]
    pub(crate) fn add(&self) {
        self.state.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a part. Returns whether it was the last one: then the caller [frees](Self::free) the slot.
    #[inline]
    pub(crate) fn drop_one(&self) -> bool {
        // Nobody adds a part without one. Pairs with the store of this function.
        self.state.load(Edge::Part.load()) == TAKEN | 1
            || self.state.fetch_sub(1, Edge::Part.both()) == TAKEN | 1
    }

    /// Counts bytes of the message. Returns all that were counted.
    pub(crate) fn count(&self, bytes: u64) -> u64 {
        let counted = self.bytes().saturating_add(bytes);
        self.bytes.store(counted, Ordering::Relaxed);
        counted
    }

    /// Returns the bytes of the message that were counted.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Frees the slot.
    #[inline]
    pub(crate) fn free(&self) {
        // Pairs with is_free.
        self.state.store(0, Edge::Part.store());
    }
}

#[cfg(all(test, slipring_loom))]
mod models;
