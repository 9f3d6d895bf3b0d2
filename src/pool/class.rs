//! Size classes: which block length serves a request, and which free block is next.

use std::collections::VecDeque;

use crate::pool::loans::Lent;
use crate::pool::tuning::Tuning;

/// The smallest block in bytes: one page on most machines.
pub(super) const SMALLEST: u64 = 4096;

/// The length of the blocks that serve `len` bytes: four classes an octave, so that at most a fifth
/// of a block lies idle. `None` when there is none below 2⁶³.
pub(super) fn block_len(len: u64) -> Option<u64> {
    if len <= SMALLEST {
        return Some(SMALLEST);
    }
    if len > 1 << 62 {
        return None;
    }
    let octave = 1u64 << (63 - (len - 1).leading_zeros());
    // A power of two, which the compiler does not know.
    let step = (octave / 4).max(SMALLEST);
    Some((len + (step - 1)) & !(step - 1))
}

/// How many blocks of a class are walked through in turn. `footprint` is in bytes. Of blocks that are
/// long beside it the last one is used again. Source: `ping_pong`, `copy` and `tensor-fill` of 1 MiB near:
/// two in turn copy as fast as one and fill 1.4 × as fast, four fill as fast as two and copy slower.
pub(super) fn walk(block_len: u64, footprint: u64) -> u64 {
    if block_len > footprint / 2 {
        return 1;
    }
    (footprint / block_len).clamp(1, 1024)
}

/// How many blocks for `len` bytes one borrower may hold before it is waited for: twice the footprint.
pub(super) fn ahead(len: u64, footprint: u64) -> usize {
    let most = footprint.saturating_mul(2) / len.max(1);
    usize::try_from(most).unwrap_or(usize::MAX).max(2)
}

/// How many blocks a new segment of a class gets: about 1 MiB, so that the first message does not
/// wait for the kernel to clear the whole footprint.
pub(super) fn blocks_a_segment(block_len: u64) -> u64 {
    ((1 << 20) / block_len).max(1)
}

/// The blocks of one length.
pub(super) struct Class {
    /// Length of the class's blocks in bytes.
    pub(super) block_len: u64,
    /// Free blocks within the footprint: fresh ones first, then those unused for longest.
    pub(super) walked: VecDeque<Lent>,
    /// Free blocks beyond the footprint.
    pub(super) spare: Vec<Lent>,
    /// Blocks, free or not.
    pub(super) blocks: u64,
    /// Blocks at the front of `walked` that no peer has read since they came there.
    pub(super) fresh: u64,
    pub(super) tuning: Tuning,
}

impl Class {
    /// Blocks that are walked through: all but the spare ones.
    fn active(&self) -> u64 {
        self.blocks - self.spare.len() as u64
    }

    /// A free block within the footprint of `walk` blocks: one that no peer has just read, else the
    /// one unused for longest.
    pub(super) fn next(&mut self, walk: u64) -> Option<Lent> {
        if self.active() < walk
            && let Some(lent) = self.spare.pop()
        {
            return Some(lent);
        }
        // The footprint has become smaller.
        while self.active() > walk && self.walked.len() > 1 {
            let lent = self.pop();
            self.spare.extend(lent);
        }
        self.pop()
    }

    fn pop(&mut self) -> Option<Lent> {
        self.fresh = self.fresh.saturating_sub(1);
        self.walked.pop_front()
    }

    pub(super) fn insert(&mut self, lent: Lent, walk: u64) {
        if self.active() <= walk {
            self.walked.push_back(lent);
        } else {
            self.spare.push(lent);
        }
    }

    pub(super) fn insert_fresh(&mut self, lent: Lent) {
        self.walked.push_front(lent);
        self.fresh += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_its_request_and_wastes_little() {
        let mut len = 1u64;
        while len < 1 << 40 {
            for request in [len - 1, len, len + 1] {
                let block = block_len(request).unwrap();
                assert!(block >= request && block.is_multiple_of(SMALLEST));
                assert!(block <= SMALLEST || block - request <= (request / 4).max(SMALLEST));
            }
            len *= 2;
        }
        assert_eq!(block_len(1 << 20), Some(1 << 20));
        assert_eq!(block_len((1 << 20) + 1), Some((1 << 20) + (1 << 18)));
        assert_eq!(block_len(u64::MAX), None);
    }

    #[test]
    fn the_walk_is_bounded_and_never_empty() {
        assert_eq!(walk(64 << 10, 4 << 20), 64);
        assert_eq!(walk(1 << 20, 4 << 20), 4);
        assert_eq!(walk(2 << 20, 4 << 20), 2);
        assert_eq!(walk((2 << 20) + 4096, 4 << 20), 1);
        assert_eq!(walk(1 << 30, 4 << 20), 1);
        assert_eq!(walk(4096, 64 << 20), 1024);
    }
}
