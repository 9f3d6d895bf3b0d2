//! A block with several readers: on loan to more than one borrower, or on loan and still read here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pool::piece::{BlockHome, BoxedPiece, give_back};
use crate::pool::tables::LockedTables;
use crate::shm::SegmentMemory;

/// The memory of a block that nobody writes any more. The last of its users, here or a borrower, gives it back to the
/// pool.
#[derive(Debug)]
pub(super) struct SharedPiece {
    /// `None` once the pool has it back.
    piece: Option<BoxedPiece>,
    home: BlockHome,
    /// Whether a borrower ended before it returned this.
    lost: AtomicBool,
}

impl SharedPiece {
    /// Records that a borrower ended before it returned this.
    pub(super) fn lose(&self) {
        // Relaxed: the reader of the flag has seen the borrower's use end first, under the pool's lock.
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Returns the block's length in bytes.
    #[inline(always)]
    pub(super) fn block_len(&self) -> u64 {
        self.piece.as_ref().map_or(0, |piece| piece.area.len() as u64)
    }

    pub(super) fn home(&self) -> BlockHome {
        self.home
    }

    /// Returns the memory to a caller that holds the pool's lock.
    pub(super) fn into_piece(mut self) -> Option<BoxedPiece> {
        self.piece.take()
    }
}

impl Drop for SharedPiece {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            give_back(piece, false);
        }
    }
}

/// Who uses a shared block beside the one who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// A borrower holds it, or this process reads it.
    Others,
    /// Every borrower has returned it.
    Nobody,
    /// Nobody holds it, and at least one borrower ended while it held it.
    Lost,
}

/// One use of a shared block.
#[derive(Debug, Clone)]
pub(crate) struct SharedBlock {
    shared: Arc<SharedPiece>,
    len: usize,
}

impl SharedBlock {
    pub(super) fn new(piece: BoxedPiece, len: usize) -> Self {
        let (home, lost) = (piece.home, AtomicBool::new(false));
        Self { shared: Arc::new(SharedPiece { piece: Some(piece), home, lost }), len }
    }

    pub(super) fn shared(&self) -> &Arc<SharedPiece> {
        &self.shared
    }

    /// Returns the number of the block's segment.
    pub(crate) fn segment(&self) -> u32 {
        self.shared.home.segment
    }

    /// Returns who else uses it, as of the last [`Pool::look_at`](crate::pool::Pool::look_at).
    pub(crate) fn users(&mut self) -> Users {
        match Arc::get_mut(&mut self.shared).map(|shared| *shared.lost.get_mut()) {
            None => Users::Others,
            Some(true) => Users::Lost,
            Some(false) => Users::Nobody,
        }
    }

    /// Returns whether it belongs to the pool with these tables.
    #[inline]
    pub(super) fn is_of(&self, tables: &LockedTables) -> bool {
        self.shared.piece.as_ref().is_some_and(|piece| tables.owns(piece))
    }

    /// Returns its segment's number, and its start there in bytes.
    #[inline(always)]
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.shared.home.segment, self.shared.home.offset)
    }

    /// Returns the bytes that each of its loans counts.
    #[inline(always)]
    pub(crate) fn block_len(&self) -> u64 {
        self.shared.block_len()
    }

    /// Returns the memory of its segment.
    pub(crate) fn memory(&self) -> Option<SegmentMemory> {
        self.shared.piece.as_ref().map(|piece| SegmentMemory::own(&piece.area))
    }

    /// Returns how many bytes were asked for.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes that were asked for.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.shared.piece.as_ref().map_or(&[], |piece| piece.area.bytes(0, self.len))
    }
}
