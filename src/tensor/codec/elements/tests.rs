//! Unit tests of `tensor::codec::elements`.

use super::*;
use crate::tensor::codec::BytesBuilder;
use proptest::collection::vec;
use proptest::prelude::*;

/// The items, their errors as faults.
fn walk(bytes: &[u8]) -> Vec<Result<&[u8], TensorFault>> {
    let mut elements = BytesElements::new(bytes);
    std::iter::from_fn(|| elements.advance()).take(bytes.len() + 1).collect()
}

#[test]
fn a_length_that_lies_is_refused_where_it_stands() {
    for len in [2, 0x7fff_ffff, 0x8000_0000, 0xffff_fffb, 0xffff_fffc, u32::MAX] {
        let mut bytes = BytesBuilder::encode(["ab", ""]).unwrap();
        bytes.extend(len.to_le_bytes());
        bytes.push(b'x');
        let lie = TensorFault::Element { index: 2, at: 14, len: len.into(), left: 1 };
        assert_eq!(walk(&bytes), [Ok(&b"ab"[..]), Ok(b""), Err(lie)]);
        assert_eq!(check_elements(3, &bytes), Err(lie));
        assert_eq!(check_elements(4, &bytes), Err(lie));
    }
}

#[test]
fn lengths_whose_sum_wraps_are_refused_at_the_first() {
    let mut bytes = Vec::new();
    for len in [u32::MAX - 3, 0, u32::MAX - 3, 0] {
        bytes.extend(len.to_le_bytes());
    }
    let lie = TensorFault::Element { index: 0, at: 4, len: 0xffff_fffc, left: 12 };
    assert_eq!(walk(&bytes), [Err(lie)]);
    assert_eq!(check_elements(4, &bytes), Err(lie));
}

#[test]
fn more_and_fewer_elements_than_the_shape_says_are_refused() {
    let bytes = BytesBuilder::encode(["ab", "", "c"]).unwrap();
    assert_eq!(check_elements(3, &bytes), Ok(()));
    let more = TensorFault::Trailing { count: 2, at: 10, left: 5 };
    assert_eq!(check_elements(2, &bytes), Err(more));
    assert_eq!(more.to_string(), "2 elements of BYTES end at byte 10, 5 bytes are left");
    let fewer = TensorFault::ElementCount { count: 3, expected: 4 };
    assert_eq!(check_elements(4, &bytes), Err(fewer));
}

#[test]
fn hints_hold_and_do_not_trust_lengths() {
    let mut elements = BytesElements::new(&[255; 9]);
    assert_eq!(elements.size_hint(), (1, Some(3)));
    assert!(elements.next().unwrap().is_err());
    assert_eq!(elements.size_hint(), (0, Some(0)));
    assert!(elements.next().is_none());
}

proptest! {
    #[test]
    fn elements_survive_their_bytes(list in vec(vec(any::<u8>(), 0..40), 1..20)) {
        let bytes = BytesBuilder::encode(&list).unwrap();
        prop_assert_eq!(BytesElements::decode(&Shape::from([list.len()]), &bytes).unwrap(), list);
    }

    #[test]
    fn every_truncation_is_refused_where_the_bytes_end(
        list in vec(vec(any::<u8>(), 0..9), 1..9)
    ) {
        let bytes = BytesBuilder::encode(&list).unwrap();
        for end in 0..bytes.len() {
            // The whole elements before the end, and their end.
            let (mut index, mut at) = (0, 0);
            while at + 4 + list[index].len() <= end {
                at += 4 + list[index].len();
                index += 1;
            }
            let (left, expected) = ((end - at) as u64, list.len() as u64);
            let (len, index, at) = (list[index].len() as u64, index as u64, at as u64);
            let fault = match left {
                0 => TensorFault::ElementCount { count: index, expected },
                1..4 => TensorFault::ElementLength { index, at, left },
                _ => TensorFault::Element { index, at: at + 4, len, left: left - 4 },
            };
            prop_assert_eq!(check_elements(list.len(), &bytes[..end]), Err(fault));
        }
    }

    #[test]
    fn any_bytes_are_walked_within_their_hints(
        bytes in vec(prop_oneof![3 => 0u8..3, 1 => any::<u8>()], 0..100)
    ) {
        let items = walk(&bytes);
        let mut elements = BytesElements::new(&bytes);
        for (at, item) in items.iter().enumerate() {
            let (left, (lower, upper)) = (items.len() - at, elements.size_hint());
            prop_assert!(lower <= left && left <= upper.unwrap());
            prop_assert_eq!(elements.next().unwrap().is_ok(), item.is_ok());
            prop_assert!(item.is_ok() || left == 1, "an error is the last item");
        }
        prop_assert!(elements.next().is_none());
    }
}
