//! Unit tests of `shm::mapping`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::shm::{Backing, Segment};

#[test]
fn words_outside_of_a_mapping_are_refused() {
    let page = page_size();
    let segment = Segment::create(page, page, Backing::default()).unwrap();
    let (mapping, _area, _descriptor) = segment.into_parts(64);
    let is_refused = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
    let last = page - 8;
    OwnWords::store(&mapping, last, 7, Ordering::Relaxed);
    assert_eq!(PeerWords::load(&mapping, last), 7);
    for offset in [4, last + 1, last + 7, page, page + 8, usize::MAX - 7] {
        assert!(is_refused(&|| assert_eq!(PeerWords::load(&mapping, offset), 0)), "{offset}");
    }
    let ring = |start: usize, len: usize| OwnWords::ring(&mapping, start, len as u64);
    for (start, len) in [
        (0, 2 * page),
        (page / 2 + 8, page / 2),
        (page, 8),
        (4, 8),
        (0, 24),
        (0, 4),
        (0, 0),
        (usize::MAX - 7, 8),
    ] {
        assert!(is_refused(&|| drop(ring(start, len))), "{len} from {start}");
    }
    // Every position maps to a word of the ring.
    let half = ring(page / 2, page / 2);
    for (position, offset) in [(0, page / 2), (8 + page / 2, page / 2 + 8), (usize::MAX, last)] {
        half.store(position as u64, position as u64, Ordering::Relaxed);
        assert_eq!(PeerWords::load(&mapping, offset), position as u64);
    }
    let word = OwnWords::ring(&mapping, last, 8);
    word.store(64, 9, Ordering::Relaxed);
    assert_eq!(PeerWords::load(&mapping, last), 9);
}
