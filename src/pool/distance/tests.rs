//! Unit tests of `pool::distance`.

use super::*;

#[test]
fn one_fast_load_is_near_and_many_slow_ones_are_far() {
    let mut distance = Distance::default();
    let mut note = |nanos| {
        let changed = distance.note(Duration::from_nanos(nanos));
        changed.then_some(distance.is_far())
    };
    for _ in 0..100 {
        for took in [1_000_000, 160, 160, 40] {
            assert_eq!(note(took), None);
        }
    }
    assert_eq!((0..20).filter_map(|_| note(140)).collect::<Vec<_>>(), [true]);
    assert_eq!((0..20).filter_map(|_| note(40)).collect::<Vec<_>>(), [false]);
}
