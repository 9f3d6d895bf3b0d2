//! The state word of a sleeper.

use crate::shm::PeerWords;
use crate::sync::{Edge, Ordering, compiler_fence};

/// Awake. The waker fences before it loads the state.
pub(super) const AWAKE: u64 = 0;
/// Awake for so long that it interrupts the waker's CPU before it next sleeps. The waker does not fence.
pub(super) const HOT: u64 = 4;
/// Asleep on the bell.
pub(super) const PARKED: u64 = 1;
/// Asleep on the link's socket.
pub(super) const ARMED: u64 = 2;
/// Beside [`PARKED`]: to be rung for a long message that is being written.
pub(super) const EAGER: u64 = 4;
/// Never looks again.
pub(super) const GONE: u64 = 3;

/// Loads the state word at `at`, ordered behind what the caller has made visible before.
#[inline(always)]
pub(super) fn load(peer: &impl PeerWords, at: usize) -> u64 {
    // A sleeper that we find hot interrupts this CPU before its next last look. That is the barrier.
    compiler_fence(Ordering::SeqCst);
    #[cfg(all(test, slipring_loom))]
    crate::wake::interrupts::point();
    if peer.load(at) == HOT {
        return HOT;
    }
    // The first load may have been early. Pairs with before_last_look: a sleeper whose last look misses our store is
    // seen asleep by the second load.
    Edge::Wake.barrier();
    peer.load(at)
}

/// Returns whether the side with the state word at `at` sleeps, after the caller has made something visible to it.
#[inline(always)]
pub(crate) fn is_asleep(peer: &impl PeerWords, at: usize) -> bool {
    matches!(load(peer, at) & 3, PARKED | ARMED)
}

/// Returns whether a state word says that its side never looks again.
pub(crate) fn is_gone(state: u64) -> bool {
    state == GONE
}
