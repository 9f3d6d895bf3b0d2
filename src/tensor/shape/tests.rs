//! Unit tests of `tensor::shape`.

use super::*;
use proptest::prelude::*;

#[test]
fn a_scalar_has_one_element_and_an_empty_dimension_none() {
    assert_eq!(Shape::from([]).elements().unwrap(), 1);
    assert_eq!(Shape::from([3, 0, 5]).elements().unwrap(), 0);
    assert_eq!(Shape::from([]).len(DType::Bytes), Ok(None));
    assert_eq!(Shape::from([0]).len(DType::Bytes), Ok(Some(0)));
}

#[test]
fn products_that_wrap_are_refused_also_behind_a_zero() {
    for dims in [vec![1 << 32, 1 << 32], vec![0, usize::MAX, 2], vec![usize::MAX, 0, 3]] {
        assert_eq!(Shape::of(&dims).unwrap().count(), Err(TensorFault::Overflow), "{dims:?}");
    }
    let shape = Shape::from([1 << 62]);
    assert_eq!(shape.len(DType::Uint8), Ok(Some(1 << 62)));
    assert_eq!(shape.len(DType::Uint16), Err(TensorFault::Overflow));
    assert_eq!(shape.len(DType::Fp64), Err(TensorFault::Overflow));
}

#[test]
fn a_shape_has_at_most_eight_dimensions() {
    assert_eq!(Shape::of(&[1; 8]).unwrap().rank(), 8);
    assert_eq!(Shape::of(&[1; 9]), Err(TensorFault::Rank { rank: 9, max: 8 }));
    assert!(Shape::try_from(&[1i64; 300][..]).is_err());
    let error = Shape::try_from(&[2i64, -1][..]).unwrap_err();
    assert_eq!(error.to_string(), "dimension 1 is -1");
}

proptest! {
    #[test]
    fn the_bytes_are_the_exact_product(dims in proptest::collection::vec(any::<usize>(), 0..9)) {
        let exact = dims.iter().try_fold(1u128, |product, dim| product.checked_mul(*dim as u128));
        let len = Shape::of(&dims).unwrap().len(DType::Fp32);
        match len {
            Ok(len) => prop_assert_eq!(len.unwrap() as u128, 4 * exact.unwrap_or(0)),
            Err(fault) => prop_assert_eq!(fault, TensorFault::Overflow),
        }
    }
}
