//! Unit tests of `tensor::codec::check`.

use super::*;
use crate::tensor::codec::{BytesBuilder, BytesElements};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Data types with dimensions and the bytes of a tensor of both.
fn tensors() -> impl Strategy<Value = (DType, Vec<usize>, Vec<u8>)> {
    (select(&DType::ALL), vec(0usize..5, 0..5)).prop_flat_map(|(dtype, dims)| {
        let count = dims.iter().product::<usize>();
        let bytes = match dtype {
            DType::Bool => vec(0u8..=1, count).boxed(),
            DType::Bytes => {
                let elements = vec(vec(any::<u8>(), 0..9), count);
                elements.prop_map(|elements| BytesBuilder::encode(elements).unwrap()).boxed()
            }
            _ => vec(any::<u8>(), count * dtype.size().unwrap()).boxed(),
        };
        (Just(dtype), Just(dims), bytes)
    })
}

#[test]
fn a_scalar_is_one_element_and_an_empty_tensor_none() {
    let scalar = Shape::from([]);
    assert_eq!(check_tensor(DType::Fp64, &scalar, &[0; 8]), Ok(()));
    assert_eq!(check_tensor(DType::Bytes, &scalar, &[1, 0, 0, 0, b'x']), Ok(()));
    let empty = Shape::from([4, 0]);
    for dtype in DType::ALL {
        assert_eq!(check_tensor(dtype, &empty, &[]), Ok(()), "{dtype}");
        let long = TensorFault::Len { len: 1, expected: 0 };
        assert_eq!(check_tensor(dtype, &empty, &[0]), Err(long), "{dtype}");
    }
}

#[test]
fn a_shape_that_no_bytes_can_have_is_refused() {
    for shape in [Shape::from([usize::MAX, 2]), Shape::from([0, usize::MAX, 2])] {
        for dtype in DType::ALL {
            let overflow = Err(TensorFault::Overflow);
            assert_eq!(check_tensor(dtype, &shape, &[]), overflow, "{dtype} {shape}");
        }
    }
    let many = Shape::from([usize::MAX]);
    let few = TensorFault::ElementCount { count: 1, expected: u64::MAX };
    assert_eq!(check_tensor(DType::Bytes, &many, &[0; 4]), Err(few));
}

proptest! {
    #[test]
    fn a_tensor_is_one_and_with_a_byte_more_or_less_is_none(
        (dtype, dims, mut bytes) in tensors()
    ) {
        let shape = Shape::new(&dims).unwrap();
        prop_assert_eq!(check_tensor(dtype, &shape, &bytes), Ok(()));
        bytes.push(0);
        prop_assert!(check_tensor(dtype, &shape, &bytes).is_err());
        if bytes.len() > 1 {
            bytes.truncate(bytes.len() - 2);
            prop_assert!(check_tensor(dtype, &shape, &bytes).is_err());
        }
    }

    #[test]
    fn any_bytes_are_judged(
        dtype in select(&DType::ALL),
        dims in vec(any::<usize>(), 0..9),
        bytes in vec(any::<u8>(), 0..200),
    ) {
        let _ = check_tensor(dtype, &Shape::new(&dims).unwrap(), &bytes);
    }

    #[test]
    fn bytes_that_pass_can_be_decoded_and_others_cannot(
        count in 0usize..5,
        bytes in vec(prop_oneof![8 => Just(0u8), 2 => 1u8..4], 0..24),
    ) {
        let shape = Shape::from([count]);
        let judged = check_tensor(DType::Bytes, &shape, &bytes).is_ok();
        let decoded = BytesElements::decode(&shape, &bytes);
        prop_assert_eq!(judged, decoded.is_ok());
        if let Ok(elements) = decoded {
            prop_assert_eq!(elements.len(), count);
            prop_assert_eq!(BytesBuilder::encode(elements).unwrap(), bytes);
        }
    }
}
