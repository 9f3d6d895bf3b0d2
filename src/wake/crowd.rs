//! The waking side of many sleepers that wait for the same thing.
//!
//! 1. One full fence serves all of them. While all are hot, there is none.
//! 2. Those that are parked sleep on one bell, so one system call wakes them. Those that are armed are called one by one.
//! 3. The waker wakes each epoch of a sleeper once.
//! 4. An impossible state word costs its sleeper the wake-up, and nobody else anything.

use crate::shm::PeerWords;
use crate::sync::{Edge, Ordering, compiler_fence};
use crate::wake::state;

/// The waking side of sleepers whose state words stand at one offset, each in its own segment.
#[derive(Debug)]
pub(crate) struct Crowd<P> {
    /// The offset of the state words, in bytes.
    state: usize,
    sleepers: Vec<(P, u64)>,
}

impl<P: PeerWords> Crowd<P> {
    /// Returns a crowd of nobody. The state words stand at `state`.
    pub(crate) fn new(state: usize) -> Self {
        Self { state, sleepers: Vec::new() }
    }

    /// Replaces the sleepers. None of them counts as attended to.
    pub(crate) fn replace(&mut self, segments: impl Iterator<Item = P>) {
        self.sleepers.clear();
        self.sleepers.extend(segments.map(|segment| (segment, state::AWAKE)));
    }

    /// Checks for sleepers, after the caller made something visible to all of them. Calls `call` with the index of each one
    /// to send a packet to. Returns whether the caller rings the bell. `None`: it does not, and all of them are hot.
    #[inline(always)]
    pub(crate) fn look(&mut self, call: impl FnMut(usize)) -> Option<bool> {
        // As in `state::load`, for all of them.
        compiler_fence(Ordering::SeqCst);
        #[cfg(all(test, slipring_loom))]
        crate::wake::interrupts::point();
        let at = self.state;
        if self.sleepers.iter().all(|(segment, _)| segment.load(at) == state::HOT) {
            return None;
        }
        // The first loads may have been early. Pairs with before_last_look: if a sleeper's last look misses what was made
        // visible, the second load finds it asleep.
        Edge::Wake.barrier();
        Some(self.attend(call))
    }

    fn attend(&mut self, mut call: impl FnMut(usize)) -> bool {
        let at = self.state;
        let mut rings = false;
        for (index, (segment, attended)) in self.sleepers.iter_mut().enumerate() {
            let state = segment.load(at);
            if state == *attended || state == state::HOT {
                continue;
            }
            *attended = state;
            match state & 3 {
                state::PARKED => rings = true,
                state::ARMED => call(index),
                _ => {}
            }
        }
        rings
    }
}
