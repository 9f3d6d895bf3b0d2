//! Unit tests of `channel::long_copy`.

use super::*;
use crate::account::Limits;

#[test]
fn a_long_message_is_copied_a_slice_at_a_time_and_never_mixed_with_another() {
    let first: Vec<u8> = (0..3 * SLICE + 5).map(|at| at as u8).collect();
    let second: Vec<u8> = first.iter().map(|byte| !byte).collect();
    let mut copy = LongCopy::default();
    let account = Account::of_link((0, None), Limits::default());
    let mut go_on = |number, bytes: &[u8]| copy.go_on(number, Bytes::of(bytes), &account);
    assert!(go_on(7, &first).is_none());
    assert!(go_on(7, &first).is_none());
    // Somebody else has taken the first one.
    for _ in 0..3 {
        assert!(go_on(8, &second).is_none());
    }
    assert_eq!(go_on(8, &second).unwrap().unwrap().0, second);
    assert_eq!(go_on(9, b"short").unwrap().unwrap().0, b"short");
}
