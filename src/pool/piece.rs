//! The memory of one block, and where it lies.

use std::sync::Weak;

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
    /// Its pool, which owns it. In the block, so that no count of uses changes as the block moves.
    owner: Weak<dyn Owner>,
}

impl Piece {
    pub(super) fn new(home: BlockHome, area: Area, owner: Weak<dyn Owner>) -> Self {
        Self { home, area, owner }
    }

    /// Returns its pool.
    #[inline(always)]
    pub(super) fn owner(&self) -> &Weak<dyn Owner> {
        &self.owner
    }
}

/// What blocks belong to and go back to.
pub(super) trait Owner: Send + Sync {
    /// Takes back a block. `is_unused`: no peer has read it.
    fn put_back(&self, piece: BoxedPiece, is_unused: bool);
}

/// Gives a block back to its pool, if that is still there. `is_unused`: no peer has read it.
pub(super) fn give_back(piece: BoxedPiece, is_unused: bool) {
    // A forked child has only a copy of the pool and must not wait for its lock.
    if piece.area.generation().is_current()
        && let Some(owner) = piece.owner.upgrade()
    {
        owner.put_back(piece, is_unused);
    }
}
