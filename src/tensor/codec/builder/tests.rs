//! Unit tests of `tensor::codec::builder`.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn a_length_that_is_no_u32_is_refused() {
    assert_eq!(length(7, u32::MAX as usize), Ok(u32::MAX));
    let too_long = TensorFault::ElementTooLong { index: 7, len: 1 << 32 };
    assert_eq!(length(7, 1 << 32), Err(too_long));
}

#[test]
fn a_sum_beyond_what_can_be_addressed_is_refused() {
    let most = isize::MAX as usize;
    assert_eq!(grown(most - 6, 0, 2), Ok(most));
    assert_eq!(grown(most - 6, 0, 3), Err(TensorFault::Overflow));
    assert_eq!(grown(usize::MAX, 0, 0), Err(TensorFault::Overflow));
}

proptest! {
    #[test]
    fn the_length_is_known_before(list in vec(vec(any::<u8>(), 0..40), 0..20)) {
        let bytes = BytesBuilder::encode(&list).unwrap();
        prop_assert_eq!(BytesBuilder::encoded_len(&list).unwrap(), bytes.len());
    }
}
