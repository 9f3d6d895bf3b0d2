//! Unit tests of `cuda::space`.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn ranges_never_meet_and_all_come_back(
        acts in proptest::collection::vec((any::<bool>(), 1u64..40, any::<usize>()), 1..200),
    ) {
        let len = 64 * ALIGNMENT;
        let mut space = Space::new(len);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (take, blocks, which) in acts {
            if take {
                let wanted = blocks * ALIGNMENT;
                let Some(start) = space.take(wanted) else { continue };
                prop_assert!(start + wanted <= len);
                for (other, length) in &taken {
                    prop_assert!(start + wanted <= *other || other + length <= start);
                }
                taken.push((start, wanted));
            } else if !taken.is_empty() {
                let (start, length) = taken.swap_remove(which % taken.len());
                space.put(start, length);
            }
            let used: u64 = taken.iter().map(|(_, length)| length).sum();
            prop_assert_eq!(space.free.values().sum::<u64>(), len - used);
        }
        for (start, length) in taken {
            space.put(start, length);
        }
        prop_assert!(space.is_idle());
    }
}

#[test]
fn a_range_is_taken_where_it_leaves_the_least() {
    let mut space = Space::new(10 * ALIGNMENT);
    let [a, b, c] = [4, 1, 2].map(|blocks| space.take(blocks * ALIGNMENT).unwrap());
    assert_eq!((a, b, c), (0, 4 * ALIGNMENT, 5 * ALIGNMENT));
    space.put(a, 4 * ALIGNMENT);
    // Three are left at the end, four at the start.
    assert_eq!(space.take(3 * ALIGNMENT), Some(7 * ALIGNMENT));
    assert_eq!(space.take(5 * ALIGNMENT), None);
}
