//! The room that a tensors record lacked: in the ring, or in what the peer may hold.

use crate::ring::Header;

/// What a record needs, by numbers. The tensors stay the same while they wait, so it does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LackingRoom {
    header: Header,
    loans: usize,
    bytes: u64,
}

impl LackingRoom {
    /// Returns the room for a record with this header and so many loans, of so many bytes together.
    pub(crate) fn new(header: Header, loans: usize, bytes: u64) -> Self {
        Self { header, loans, bytes }
    }

    /// Returns the header, the number of loans, and their bytes.
    pub(crate) fn parts(self) -> (Header, usize, u64) {
        (self.header, self.loans, self.bytes)
    }
}
