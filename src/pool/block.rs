//! A block that is being written.

use crate::pool::piece::{BoxedPiece, give_back};
use crate::pool::ready::{Prepared, Ready};
use crate::pool::shared::SharedBlock;
use crate::pool::tables::LockedTables;
use crate::shm::SegmentMemory;
use crate::sync::Edge;

/// A block that only this process knows of. Dropping it gives it back to the pool.
#[derive(Debug)]
pub(crate) struct Block {
    /// `None` once the block is on loan.
    piece: Option<BoxedPiece>,
    len: usize,
}

impl Block {
    pub(super) fn new(piece: BoxedPiece, len: usize) -> Self {
        Self { piece: Some(piece), len }
    }

    /// Returns a block without memory.
    pub(crate) fn empty() -> Self {
        Self { piece: None, len: 0 }
    }

    /// Refills an empty block with the ready one, for `len` bytes. Returns whether one was still there.
    #[inline(always)]
    pub(crate) fn take_ready(&mut self, ready: &Ready, prepared: Prepared, len: usize) -> bool {
        debug_assert!(self.piece.is_none() && prepared.is_for(len));
        self.piece = ready.take();
        self.len = len;
        if self.piece.is_some() {
            // As in `Tables::count_out`, by the thread that writes to the block.
            Edge::Retake.release();
        }
        self.piece.is_some()
    }

    /// Returns whether it has memory: it is neither on loan nor given back.
    #[inline(always)]
    pub(crate) fn is_held(&self) -> bool {
        self.piece.is_some()
    }

    /// Returns the block to the pool, unless it is on loan.
    #[inline]
    pub(crate) fn put_back(&mut self) {
        if let Some(piece) = self.piece.take() {
            give_back(piece, true);
        }
    }

    /// Takes the memory out, to lend it.
    pub(super) fn take(&mut self) -> Option<BoxedPiece> {
        self.piece.take()
    }

    /// Returns the index of its class, unless it is on loan.
    pub(super) fn class(&self) -> Option<usize> {
        self.piece.as_ref().map(|piece| piece.home.class)
    }

    /// Returns its segment's number, and its start there in bytes; `None` once it is on loan.
    #[inline(always)]
    pub(crate) fn place(&self) -> Option<(u32, u64)> {
        self.piece.as_ref().map(|piece| (piece.home.segment, piece.home.offset))
    }

    /// Returns the bytes that it counts while it is on loan; 0 once it is.
    #[inline(always)]
    pub(crate) fn block_len(&self) -> u64 {
        self.piece.as_ref().map_or(0, |piece| piece.area.len() as u64)
    }

    /// Returns how many bytes were asked for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory of its segment, unless it is on loan.
    pub(crate) fn memory(&self) -> Option<SegmentMemory> {
        self.piece.as_ref().map(|piece| SegmentMemory::own(&piece.area))
    }

    /// Returns the number of its segment.
    #[inline]
    pub(crate) fn segment(&self) -> u32 {
        self.piece.as_ref().map_or(u32::MAX, |piece| piece.home.segment)
    }

    /// Returns the bytes that were asked for, to write them.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        match &mut self.piece {
            Some(piece) => piece.area.bytes_mut(0, len),
            None => &mut [],
        }
    }

    /// Returns `len` of them from `start` on. No mutable reference may cover what a peer already reads.
    ///
    /// # Panics
    ///
    /// If the range exceeds what was asked for.
    pub(crate) fn part_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start <= self.len && len <= self.len - start, "part of the block");
        match &mut self.piece {
            Some(piece) => piece.area.bytes_mut(start, len),
            None => &mut [],
        }
    }

    /// Ends the writing, so that several borrowers can have the block.
    pub(crate) fn share(mut self) -> Option<SharedBlock> {
        let piece = self.piece.take()?;
        Some(SharedBlock::new(piece, self.len))
    }

    /// Returns whether it belongs to the pool with these tables, or has no memory.
    #[inline]
    pub(super) fn is_of(&self, tables: &LockedTables) -> bool {
        self.piece.as_ref().is_none_or(|piece| tables.owns(piece))
    }

    /// Returns the bytes that were asked for.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.piece {
            Some(piece) => piece.area.bytes(0, self.len),
            None => &[],
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.put_back();
    }
}
