//! Unit tests of `region::extent`.

use proptest::prelude::*;

use super::*;

/// Numbers near every edge, and random ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..20u64,
        u64::MAX - 20..=u64::MAX,
        (0..64u32).prop_map(|bit| 1 << bit),
        any::<u64>()
    ]
}

proptest! {
    #[test]
    fn a_range_is_accepted_exactly_if_it_lies_inside(
        offset in number(),
        len in number(),
        size in number(),
    ) {
        let (wide_end, wide_size) = (u128::from(offset) + u128::from(len), u128::from(size));
        let answer = Extent::new(offset, len).and_then(|extent| extent.inside(size));
        prop_assert_eq!(answer.is_ok(), wide_end <= wide_size);
        match answer {
            Ok(extent) => prop_assert_eq!(u128::from(extent.end()), wide_end),
            Err(RegionFault::Overflow { .. }) => prop_assert!(wide_end > u128::from(u64::MAX)),
            Err(RegionFault::Offset { .. }) => prop_assert!(offset > size),
            Err(fault) => prop_assert_eq!(fault, RegionFault::Range { offset, len, size }),
        }
    }

    #[test]
    fn a_part_lies_inside_of_its_whole(
        (start, whole) in (number(), number()),
        (offset, len) in (number(), number()),
    ) {
        let Ok(whole) = Extent::new(start, whole) else { return Ok(()) };
        let answer = whole.part(offset, len);
        let fits = u128::from(offset) + u128::from(len) <= u128::from(whole.len());
        prop_assert_eq!(answer.is_ok(), fits);
        if let Ok(part) = answer {
            prop_assert_eq!(part.offset() - whole.offset(), offset);
            prop_assert_eq!(part.len(), len);
            prop_assert!(part.end() <= whole.end());
        }
    }
}
