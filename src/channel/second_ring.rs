//! The second ring of a sender, before the sender moves there.

use std::os::fd::OwnedFd;

use crate::error::Result;
use crate::shm::{Area, Backing, Mapping, Segment};

/// A ring to which a sender may move, in a segment of its own.
pub(crate) struct SecondRing {
    /// Its length in bytes.
    capacity: u64,
    made: Option<MadeRing>,
}

/// The mapping of a ring, its bytes, and the descriptor for the peer.
pub(crate) type MadeRing = (Mapping, Area, OwnedFd);

impl SecondRing {
    /// Returns the ring that a Hello has told of, if its length is not 0.
    pub(crate) fn due(capacity: u64) -> Option<Box<Self>> {
        (capacity > 0).then(|| Box::new(Self { capacity, made: None }))
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the ring, made now or before.
    pub(crate) fn make(&mut self, backing: Backing) -> Result<&MadeRing> {
        let made = match self.made.take() {
            Some(made) => made,
            None => {
                let lens = (self.capacity as usize, 0);
                Segment::create("slipring.ring", lens, backing)?.into_parts(0)
            }
        };
        Ok(self.made.insert(made))
    }

    /// Takes the ring that was made.
    pub(crate) fn take(self) -> Option<MadeRing> {
        self.made
    }
}
