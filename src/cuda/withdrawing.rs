//! Withdrawals that a peer's socket has not taken follow when the peer has read it.

use std::sync::{Arc, Weak};

use crate::channel::AnnouncedAllocations;
use crate::cuda::returner::{self, Next, Source, Watch};

/// The withdrawals for one peer.
struct Rest {
    peer: Weak<AnnouncedAllocations>,
}

impl Watch for Rest {
    fn look(&self) -> Next {
        match self.peer.upgrade() {
            Some(peer) if !peer.withdraw_rest() => Next::Event,
            _ => Next::Over,
        }
    }
}

/// Has the thread `slipring-loans` send what sockets have not taken. What it cannot watch now is tried at the next call.
pub(super) fn follow_up() {
    for peer in AnnouncedAllocations::unsent() {
        let rest = Arc::new(Rest { peer: Arc::downgrade(&peer) });
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
