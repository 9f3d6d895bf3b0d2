//! Unit tests of `cuda::words`.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn each_range_has_a_word_of_its_own_behind_all_ranges(
        len in (1u64 << 21)..(1 << 40),
        (first, second) in (any::<u64>(), any::<u64>()),
    ) {
        let len = len / (2 << 20) * (2 << 20);
        let room = room(len);
        prop_assert!(room.is_multiple_of(ALIGNMENT) && room > len / 66 * 64 - ALIGNMENT);
        let ranges = room / ALIGNMENT;
        let (first, second) = (first % ranges * ALIGNMENT, second % ranges * ALIGNMENT);
        let (one, other) = (word_of(len, first), word_of(len, second));
        prop_assert!(one >= room && one.is_multiple_of(WORD) && one + WORD <= len);
        prop_assert_eq!(one == other, first == second);
    }

    #[test]
    fn a_chunk_is_long_enough_for_a_range_and_its_words(len in 0u64..(1 << 40)) {
        let whole = whole(len).unwrap();
        prop_assert!(room(whole) >= len.max(1));
        // Longer chunks have no less room.
        prop_assert!(room(whole.next_multiple_of(2 << 20)) >= len);
    }
}

#[test]
fn a_range_that_no_number_holds_has_no_chunk() {
    assert_eq!(whole(u64::MAX), None);
    assert_eq!((whole(0), whole(1), whole(513)), (Some(520), Some(520), Some(1040)));
}

#[test]
fn a_word_tells_whether_its_writer_or_a_reader_has_written_it() {
    for value in [1, 2, 1 << 40, i64::MAX as u64, u64::MAX - 1] {
        assert_eq!(found(value - 1, value), Found::Less);
        assert_eq!(found(value, value), Found::Value);
        // The value of a later range in the same place.
        assert_eq!(found(value.wrapping_add(1 << 40), value), Found::Value);
        assert_eq!(found(value.wrapping_add(UNWRITTEN), value), Found::Unwritten);
        // The driver lets a stream go on that awaits the value.
        assert!(value.wrapping_add(UNWRITTEN).wrapping_sub(value) as i64 >= 0);
    }
    assert_eq!(found(0, 1), Found::Less);
}
