//! Where the next record of a link shows, for a loop that polls many links.

use crate::shm::{PeerMapping, PeerWords};

/// The word in which the next record will show, apart from everything else of its link: many of
/// them are looked at in turn.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    peer: PeerMapping,
    header: usize,
}

impl Watch {
    /// Returns a watch of the word at `header` of the peer's segment, in bytes.
    pub(crate) fn new(peer: PeerMapping, header: usize) -> Self {
        Self { peer, header }
    }

    /// Watches the word at `header` from now on.
    #[inline(always)]
    pub(crate) fn move_to(&mut self, header: usize) {
        self.header = header;
    }

    /// Whether something stands there, judged or not.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.peer.load(self.header) != 0
    }
}
