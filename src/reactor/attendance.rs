//! Whether somebody turns a loop that several threads have: said by whoever leads, without a lock; looked at by a
//! watcher, which sleeps as long as there is nothing to see.
//!
//! ```text
//!   leader                            watcher
//!   turns += 1 (odd: left alone)      asleep = true
//!   light barrier                     heavy barrier
//!   asleep? ── yes: wakes it          turns changed? ── yes: does not sleep
//! ```
//!
//! Either the leader sees that the watcher sleeps, or the watcher sees that the loop was left.

use crate::sync::Edge;
use crate::sync::{AtomicBool, AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct Attendance {
    /// How often the loop was taken or left: odd while nobody turns it. Written by one thread at a time: whoever has
    /// the loop, or took it.
    turns: AtomicU32,
    asleep: AtomicBool,
}

impl Attendance {
    /// Nobody turns the loop yet.
    pub(crate) fn new() -> Self {
        Self { turns: AtomicU32::new(1), asleep: AtomicBool::new(false) }
    }

    fn turn(&self) {
        let turns = self.turns.load(Ordering::Relaxed);
        self.turns.store(turns.wrapping_add(1), Ordering::Relaxed);
    }

    /// The caller turns the loop from now on.
    #[inline]
    pub(crate) fn take(&self) {
        self.turn();
    }

    /// The loop is left alone. True: the watcher sleeps.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        self.turn();
        Edge::Wake.barrier();
        self.asleep.load(Ordering::Relaxed)
    }

    /// How it stands: to be compared with a later look.
    pub(crate) fn look(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Whether nobody turned the loop then.
    pub(crate) fn is_left(look: u32) -> bool {
        look % 2 == 1
    }

    /// The watcher is about to sleep, unless something has changed since that look. Then the answer is no.
    pub(crate) fn doze(&self, look: u32) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        Edge::Park.barrier();
        self.look() == look
    }

    /// The watcher is awake.
    pub(crate) fn rise(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
