//! A size class: the blocks of one length, and which free one is handed out next.
//!
//! Cache lines that a receiver has just read are slow to write: its core still holds them. A block that rests for a
//! while is faster to write, until so many blocks rotate that they no longer fit into the cache. So the free blocks of a
//! class rotate, oldest first, within a fixed number of bytes, the pool's footprint, and neighbors are not handed out one
//! after the other. `docs/tuning.md` has the measurements.

use std::collections::VecDeque;

use crate::pool::piece::BoxedPiece;

/// The smallest block in bytes: one page on most machines.
pub(super) const SMALLEST: u64 = 4096;

/// Bytes of a new segment, unless one block is longer. The first message then does not wait until the kernel has cleared
/// the whole footprint, which takes about 250 µs a MiB (`Options::prefault`).
const SEGMENT: u64 = 1 << 20;

/// The fewest blocks that rotate, if more than one does. Source: streams of 1 MiB go at 23 GB/s with two blocks, 48 with
/// three, and 55, the rate of the bare ring, with four (`docs/lab/2026-11-23-pool-footprint.md`).
const FEW: u64 = 4;

/// The longest blocks of which two rotate where no more fit into the footprint, in bytes: the block of the next message is then
/// free before the peer has returned the one before. An untouched round trip of 16 MiB takes 1.4 times as long as one of 8 bytes,
/// and with a single block 2.6 times. Longer ones stay alone, for the memory that a second one takes.
const PAIRED: u64 = 16 << 20;

/// The most blocks of a class that rotate. One borrower holds no more loans than this.
const MOST: u64 = 1024;

/// Returns the length of the blocks that serve `len` bytes. An octave has four classes, so at most a fifth of a block is
/// unused. Returns `None` if the length exceeds 2⁶².
pub(super) fn block_len(len: u64) -> Option<u64> {
    if len <= SMALLEST {
        return Some(SMALLEST);
    }
    if len > 1 << 62 {
        return None;
    }
    let octave = 1u64 << (63 - (len - 1).leading_zeros());
    // The step is a power of two; the mask spares the division that the compiler would emit.
    let step = (octave / 4).max(SMALLEST);
    Some((len + (step - 1)) & !(step - 1))
}

/// Returns how many blocks rotate: as many as fit into `footprint` bytes, but at least [`FEW`], which a stream needs. Of
/// blocks longer than half of the footprint there are two, and one if they are longer than [`PAIRED`].
pub(super) fn rotation(block_len: u64, footprint: u64) -> u64 {
    match block_len {
        len if len <= footprint / 2 => (footprint / len).clamp(FEW, MOST),
        len if len <= PAIRED => 2,
        _ => 1,
    }
}

/// The blocks of one length.
pub(super) struct Class {
    /// Length of each block in bytes.
    block_len: u64,
    /// How many blocks rotate.
    rotation: u64,
    /// Free blocks that rotate: fresh ones first, then the others, unused for longest first.
    rotating: VecDeque<BoxedPiece>,
    /// Free blocks that do not rotate.
    spare: Vec<BoxedPiece>,
    /// Blocks of the class, free or not.
    blocks: u64,
    /// Blocks at the front of `rotating` that no peer has read since they were entered there.
    fresh: u64,
}

impl Class {
    /// Returns an empty class whose blocks rotate within `footprint` bytes.
    pub(super) fn new(block_len: u64, footprint: u64) -> Self {
        Self {
            block_len,
            rotation: rotation(block_len, footprint),
            rotating: VecDeque::new(),
            spare: Vec::new(),
            blocks: 0,
            fresh: 0,
        }
    }

    /// Lets the blocks rotate within `footprint` bytes from now on.
    pub(super) fn set_footprint(&mut self, footprint: u64) {
        self.rotation = rotation(self.block_len, footprint);
    }

    /// Returns the length of the class's blocks in bytes.
    pub(super) fn block_len(&self) -> u64 {
        self.block_len
    }

    /// Returns how many blocks a new segment of the class holds.
    pub(super) fn blocks_a_segment(&self) -> u64 {
        (SEGMENT / self.block_len).max(1)
    }

    /// Returns whether a new block is better than any free one: the rotation is not full, and each free block was read by
    /// a peer.
    pub(super) fn wants_block(&self) -> bool {
        self.blocks < self.rotation && self.fresh == 0
    }

    /// Takes a free block of the rotation: a fresh one, else the one unused for longest.
    pub(super) fn take(&mut self) -> Option<BoxedPiece> {
        if self.active() < self.rotation
            && let Some(piece) = self.spare.pop()
        {
            return Some(piece);
        }
        // A new segment held more blocks than the rotation lacked, or the footprint has become smaller.
        while self.active() > self.rotation && self.rotating.len() > 1 {
            let piece = self.pop();
            self.spare.extend(piece);
        }
        self.pop()
    }

    /// Takes any free block. It may lie outside of the rotation.
    pub(super) fn take_any(&mut self) -> Option<BoxedPiece> {
        self.take().or_else(|| self.spare.pop())
    }

    /// Enters a free block that a peer may have read.
    pub(super) fn insert(&mut self, piece: BoxedPiece) {
        if self.active() <= self.rotation {
            self.rotating.push_back(piece);
        } else {
            self.spare.push(piece);
        }
    }

    /// Enters a free block that no peer has read.
    pub(super) fn insert_fresh(&mut self, piece: BoxedPiece) {
        self.rotating.push_front(piece);
        self.fresh += 1;
    }

    /// Enters the blocks of a new segment: first every second one, then those between. A core that reads a block to its end
    /// prefetches lines behind it. In the block that is written next they would have to come back.
    pub(super) fn add_segment(&mut self, pieces: impl Iterator<Item = BoxedPiece>) {
        let (even, odd): (Vec<_>, Vec<_>) = pieces.enumerate().partition(|(nth, _)| nth % 2 == 0);
        for (_, piece) in even.into_iter().chain(odd).rev() {
            self.blocks += 1;
            self.insert_fresh(piece);
        }
    }

    /// Drops the blocks of a segment, all of which are free.
    pub(super) fn remove_segment(&mut self, number: u32) {
        let free = self.rotating.len() + self.spare.len();
        self.rotating.retain(|piece| piece.home.segment != number);
        self.spare.retain(|piece| piece.home.segment != number);
        self.blocks -= (free - self.rotating.len() - self.spare.len()) as u64;
        self.fresh = 0;
    }

    /// Returns how many blocks are in use or rotate.
    fn active(&self) -> u64 {
        self.blocks - self.spare.len() as u64
    }

    fn pop(&mut self) -> Option<BoxedPiece> {
        self.fresh = self.fresh.saturating_sub(1);
        self.rotating.pop_front()
    }
}

#[cfg(test)]
mod tests;
