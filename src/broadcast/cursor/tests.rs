//! Unit tests of `broadcast::cursor`.

use super::*;

#[test]
fn every_skips_nothing() {
    let cursor = Cursor::new(Policy::Every, 16, 5);
    assert_eq!(cursor.skips_to(1000), None);
    assert!(!cursor.is_lossy());
}

#[test]
fn newest_keeps_the_last_ones() {
    let mut cursor = Cursor::new(Policy::Newest(3), 16, 5);
    for newest in [0, 4, 5, 7] {
        assert_eq!(cursor.skips_to(newest), None, "{newest}");
    }
    assert_eq!(cursor.skips_to(8), Some(6));
    cursor.skip_to(6);
    assert_eq!(cursor.take(), (6, 1));
    assert_eq!(cursor.take(), (7, 0));
}

#[test]
fn latest_goes_to_the_last_one() {
    let mut cursor = Cursor::new(Policy::Latest, 16, 5);
    assert_eq!(cursor.skips_to(4), None);
    assert_eq!(cursor.skips_to(5), None);
    assert_eq!(cursor.skips_to(9), Some(9));
    cursor.skip_to(9);
    assert_eq!(cursor.take(), (9, 4));
}

#[test]
fn after_an_overrun_it_leaves_room_before_the_writer() {
    let cursor = Cursor::new(Policy::Every, 16, 5);
    assert_eq!(cursor.after_overrun(100), 89);
    assert_eq!(Cursor::new(Policy::Newest(2), 16, 5).after_overrun(100), 99);
    // The publisher's word may be late, or a lie.
    for newest in [0, 4, u64::MAX] {
        assert!(cursor.after_overrun(newest) > 5);
    }
}

#[test]
fn the_position_is_told_by_eighths_or_when_asked() {
    let mut cursor = Cursor::new(Policy::Every, 16, 1);
    assert_eq!(cursor.tell(true), Some(1));
    assert_eq!(cursor.tell(true), None);
    cursor.take();
    assert_eq!(cursor.tell(false), None);
    assert_eq!(cursor.tell(true), Some(2));
    cursor.take();
    cursor.take();
    assert_eq!(cursor.tell(false), Some(4));
}
