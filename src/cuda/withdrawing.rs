//! Withdrawals that a peer's socket has not taken follow when the peer has read it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::channel::AnnouncedAllocations;
use crate::cuda::returner::{self, Next, Source, Watch};

/// The withdrawals for one peer.
struct Rest {
    peer: Weak<AnnouncedAllocations>,
    /// The next look is the second one after something has happened.
    looks_again: AtomicBool,
}

impl Watch for Rest {
    fn look(&self) -> Next {
        let Some(peer) = self.peer.upgrade() else { return Next::Over };
        if peer.withdraw_rest() {
            return Next::Over;
        }
        // The kernel wakes the thread just before it subtracts what the peer has read.
        match self.looks_again.fetch_xor(true, Ordering::Relaxed) {
            false => Next::Pause,
            true => Next::Event,
        }
    }
}

/// Has the thread `slipring-loans` send what sockets have not taken. What it cannot watch now is tried at the next call.
pub(super) fn follow_up() {
    for peer in AnnouncedAllocations::unsent() {
        let rest =
            Arc::new(Rest { peer: Arc::downgrade(&peer), looks_again: AtomicBool::default() });
        let own: Weak<Rest> = Arc::downgrade(&rest);
        let socket = match peer.socket() {
            Ok(Some(socket)) => socket,
            Ok(None) => continue,
            Err(_) => {
                peer.is_unsent();
                continue;
            }
        };
        match returner::watch(Some(Source::writable(socket)), own) {
            Some(watched) => peer.follow_by((rest, watched)),
            None => peer.is_unsent(),
        }
    }
}
