//! Size classes: which block length serves a request.

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
    let step = octave / 4;
    Some(len.next_multiple_of(step.max(SMALLEST)))
}

/// How many blocks of a class are walked through in turn. `footprint` is in bytes.
pub(super) fn walk(block_len: u64, footprint: u64) -> u64 {
    (footprint / block_len).clamp(1, 1024)
}

/// How many blocks a new segment of a class gets: about 1 MiB, so that the first message does not
/// wait for the kernel to clear the whole footprint.
pub(super) fn blocks_a_segment(block_len: u64) -> u64 {
    ((1 << 20) / block_len).max(1)
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
        assert_eq!(walk(1 << 30, 4 << 20), 1);
        assert_eq!(walk(4096, 64 << 20), 1024);
    }
}
