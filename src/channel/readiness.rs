//! The readiness of one link, for an event loop that polls many.

use crate::shm::{PeerMapping, PeerWords};

/// The word in which the header of a link's next record will appear.
///
/// An event loop keeps one for each link, next to each other, so that a poll of all links touches no other state.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    peer: PeerMapping,
    header: usize,
}

impl Watch {
    /// Returns a watch of the word at `header`, in bytes from the start of the peer's segment.
    pub(crate) fn new(peer: PeerMapping, header: usize) -> Self {
        Self { peer, header }
    }

    /// Moves the watch to the word at `header`, in bytes from the start of the peer's segment.
    #[inline(always)]
    pub(crate) fn move_to(&mut self, header: usize) {
        self.header = header;
    }

    /// Returns whether the word is not zero. The receiver checks its value later.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.peer.load(self.header) != 0
    }
}
