//! The memory of one block, and where it lies.

use crate::shm::Area;

/// Which block of which segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHome {
    /// Index of the segment in the pool's table.
    pub(super) index: usize,
    /// The segment's number, never used twice.
    pub(super) segment: u32,
    /// Index of the class in the pool's table.
    pub(super) class: usize,
    /// Start in the segment, in bytes.
    pub(super) offset: u64,
}

/// A block's memory as it moves between the tables: one word.
pub(super) type BoxedPiece = Box<Piece>;

/// The memory of one block.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) home: BlockHome,
    pub(super) area: Area,
}
