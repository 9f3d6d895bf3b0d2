//! Unit tests of `transport::allowance`.

use super::*;
use std::time::Duration;

#[test]
fn a_user_gets_its_allowance_back_with_time_and_another_has_its_own() {
    let (mut allowance, start) = (Allowance::default(), Instant::now());
    for _ in 0..4 {
        assert!(allowance.take_at(1, 1 << 30, start));
    }
    assert!(!allowance.take_at(1, 1 << 30, start));
    assert!(allowance.take_at(2, 1 << 30, start));
    assert!(allowance.take(1, 1 << 20));
    let later = start + Duration::from_millis(260);
    assert!(allowance.take_at(1, 1 << 30, later));
    assert!(!allowance.take_at(1, 1 << 30, later));
    // The other user has all of its allowance back, and no entry.
    assert_eq!(allowance.used.len(), 1);
}
