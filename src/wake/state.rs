//! The values of a sleeper's state word, and its load by the waker.
//!
//! The low three bits are the state, the others the epoch of the sleep.

use crate::shm::PeerWords;
use crate::sync::{Edge, Ordering, compiler_fence};

/// Awake. The waker fences before it loads the state.
pub(super) const AWAKE: u64 = 0;
/// Awake for so long that it interrupts the waker's CPU before it next sleeps. The waker does not fence.
pub(crate) const HOT: u64 = 4;
/// Asleep on the bell.
pub(super) const PARKED: u64 = 1;
/// Asleep on the link's socket.
pub(super) const ARMED: u64 = 2;
/// A bit beside [`PARKED`]: the waker rings for the first part of a long message.
pub(super) const EAGER: u64 = 4;
/// The sleeper has ended.
pub(crate) const GONE: u64 = 3;

/// Loads and returns the state word at `at`, after everything that the caller made visible before.
#[inline(always)]
pub(super) fn load(peer: &impl PeerWords, at: usize) -> u64 {
    // A hot sleeper interrupts this CPU before its next last look. The interrupt is the barrier.
    compiler_fence(Ordering::SeqCst);
    #[cfg(all(test, slipring_loom))]
    crate::wake::interrupts::point();
    if peer.load(at) == HOT {
        return HOT;
    }
    // The first load may have been early. Pairs with before_last_look: if the sleeper's last look
    // misses the store, the second load finds it asleep.
    Edge::Wake.barrier();
    peer.load(at)
}

/// Returns whether the side with the state word at `at` sleeps, after the caller has made something visible to it.
#[inline(always)]
pub(crate) fn is_asleep(peer: &impl PeerWords, at: usize) -> bool {
    is_asleep_word(load(peer, at))
}

/// Returns whether a state word says that its side sleeps.
pub(crate) fn is_asleep_word(state: u64) -> bool {
    matches!(state & 3, PARKED | ARMED)
}

/// Returns whether a state word says that its side has ended.
pub(crate) fn is_gone(state: u64) -> bool {
    state == GONE
}
