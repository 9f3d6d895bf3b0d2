//! The readiness of one link or subscriber, for an event loop that polls many.

use crate::shm::{PeerMapping, PeerWords};

/// The word in which the header of a link's next record will appear, or the state of a topic's next slot.
///
/// An event loop keeps one for each link, next to each other, so that a poll of all links touches no other state.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    peer: PeerMapping,
    word: usize,
    /// The least value that makes it ready.
    least: u64,
}

impl Watch {
    /// Returns a watch of the word at `header`, in bytes from the start of the peer's segment. Any header makes it ready.
    pub(crate) fn new(peer: PeerMapping, header: usize) -> Self {
        Self::at_least(peer, header, 1)
    }

    /// Returns a watch of the word at `word`, in bytes from the start of the peer's segment. It is ready from the value `least`
    /// on.
    pub(crate) fn at_least(peer: PeerMapping, word: usize, least: u64) -> Self {
        Self { peer, word, least }
    }

    /// Moves the watch to the word at `header`, in bytes from the start of the peer's segment `ring`.
    #[inline(always)]
    pub(crate) fn move_to(&mut self, ring: &PeerMapping, header: usize) {
        if !self.peer.is(ring) {
            self.peer = ring.clone();
        }
        self.word = header;
    }

    /// Returns whether the word makes it ready. The receiver checks its value later.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.peer.load(self.word) >= self.least
    }
}
