//! The block of a sender's next message, laid ready beforehand.
//!
//! Why: a message through the pool costs its sender the pool's lock, a search for a block and a pass over the returned
//! loans. While the receiver reads the last message, the sender has time for that: it takes back what was returned and
//! puts the block of its next message here, where one swap of a pointer takes it. Untouched round trips of 8 KiB went from
//! 1,300 to 790 ns and of 1 MiB from 1,800 to 890 ns on Sapphire Rapids, CPUs far
//! (`bench-rivals --measure trip-untouched`; `docs/tuning.md`). A pool that runs short of memory takes the block back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::atomic::AtomicCell;

use crate::pool::class;
use crate::pool::piece::BoxedPiece;

/// The cell that holds the ready block until the sender takes it, or the pool takes it back.
#[derive(Clone)]
pub(crate) struct Ready(Arc<AtomicCell<Option<BoxedPiece>>>);

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").finish_non_exhaustive()
    }
}

impl Ready {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicCell::new(None)))
    }

    #[inline(always)]
    pub(super) fn take(&self) -> Option<BoxedPiece> {
        self.0.take()
    }

    /// Puts a block there. Returns the one that was there before.
    pub(super) fn put(&self, piece: BoxedPiece) -> Option<BoxedPiece> {
        self.0.swap(Some(piece))
    }
}

/// A block that lies ready for the next tensor of this process, whichever thread allocates it.
#[derive(Clone, Default)]
pub(super) struct Loose(Arc<LooseCell>);

#[derive(Default)]
struct LooseCell {
    /// The length of the block that was put there last. A caller who needs another one leaves it there.
    block_len: AtomicU64,
    piece: AtomicCell<Option<BoxedPiece>>,
}

impl Loose {
    /// Takes the block, most likely one of this length.
    #[inline(always)]
    pub(super) fn take(&self, block_len: u64) -> Option<BoxedPiece> {
        // Relaxed: the block itself says how long it is.
        if self.0.block_len.load(Ordering::Relaxed) == block_len { self.take_any() } else { None }
    }

    /// Takes the block, whatever its length.
    #[inline(always)]
    pub(super) fn take_any(&self) -> Option<BoxedPiece> {
        self.0.piece.take()
    }

    /// Puts a block there. Returns the one that was there before.
    pub(super) fn put(&self, piece: BoxedPiece) -> Option<BoxedPiece> {
        self.0.block_len.store(piece.area.len() as u64, Ordering::Relaxed);
        self.0.piece.swap(Some(piece))
    }
}

/// The length of the block that was put ready, as its sender remembers it. The pool may have taken the block back since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared {
    block_len: u64,
}

impl Prepared {
    pub(super) fn new(block_len: u64) -> Self {
        Self { block_len }
    }

    /// Returns the block's length in bytes.
    #[inline(always)]
    pub(crate) fn block_len(&self) -> u64 {
        self.block_len
    }

    /// Returns whether the block serves `len` bytes.
    #[inline(always)]
    pub(crate) fn is_for(&self, len: usize) -> bool {
        class::block_len(len as u64) == Some(self.block_len)
    }
}

#[cfg(test)]
mod tests;
