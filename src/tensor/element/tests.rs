//! Unit tests of `tensor::element`.

use super::*;

#[test]
fn a_type_is_as_long_as_its_data_type() {
    fn check<T: Element>() {
        assert_eq!(T::DTYPE.size(), Some(size_of::<T>()), "{}", T::DTYPE);
    }
    check::<bool>();
    check::<u8>();
    check::<i16>();
    check::<f16>();
    check::<bf16>();
    check::<u32>();
    check::<f32>();
    check::<i64>();
    check::<f64>();
}

#[test]
fn a_bool_that_is_none_is_refused_where_it_stands() {
    assert_eq!(slice_of::<bool>(&[0, 1, 1]).unwrap(), [false, true, true]);
    let lie = TensorFault::Bool { index: 2, value: 2 };
    assert_eq!(slice_of::<bool>(&[0, 1, 2]), Err(lie));
    assert_eq!(slice_of_mut::<bool>(&mut [0, 1, 2]), None);
}

#[test]
fn a_wrong_bool_is_found_wherever_it_stands() {
    let mut bytes = [1; 3 * CHUNK - 1];
    assert_eq!(check_bools(&bytes), Ok(()));
    for at in (0..bytes.len()).rev() {
        bytes[at] = 128;
        let lie = TensorFault::Bool { index: at as u64, value: 128 };
        assert_eq!(check_bools(&bytes), Err(lie));
    }
}

#[test]
fn parts_of_elements_and_odd_addresses_are_refused() {
    let words = [0u32; 3];
    let bytes = words.as_bytes();
    assert_eq!(slice_of::<u32>(bytes).unwrap().len(), 3);
    assert_eq!(slice_of::<u32>(&bytes[..6]), Err(TensorFault::Len { len: 6, expected: 4 }));
    let odd = TensorFault::Alignment { alignment: 4 };
    assert_eq!(slice_of::<u32>(&bytes[1..5]), Err(odd));
    assert!(slice_of::<f64>(&[]).unwrap().is_empty());
}
