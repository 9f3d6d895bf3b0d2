//! Unit tests of `tensor::codec::values`.

use super::*;
use crate::tensor::codec::check_tensor;
use crate::tensor::shape::Shape;
use half::{bf16, f16};
use proptest::collection::vec;
use proptest::prelude::*;

/// Values survive their bytes at each alignment and on either kind of host.
fn survive<T: Element>(values: &[T]) {
    let shape = Shape::from([values.len()]);
    for swap in [false, true] {
        for start in 0..3 {
            let mut bytes = vec![0xee; start];
            encode_with(values, &mut bytes, swap);
            assert_eq!(bytes[..start], vec![0xee; start]);
            let bytes = &bytes[start..];
            check_tensor(T::DTYPE, &shape, bytes).unwrap();
            let mut back = vec![T::new_zeroed(); values.len()];
            decode_with(bytes, &mut back, swap).unwrap();
            assert_eq!(back.as_bytes(), values.as_bytes(), "{}", T::DTYPE);
        }
    }
}

#[test]
fn bytes_are_little_endian() {
    let mut bytes = Vec::new();
    encode(&[0x0102u16], &mut bytes);
    encode(&[1.0f32], &mut bytes);
    encode(&[f16::ONE], &mut bytes);
    encode(&[bf16::ONE], &mut bytes);
    encode(&[true, false], &mut bytes);
    assert_eq!(bytes, [2, 1, 0, 0, 0x80, 0x3f, 0, 0x3c, 0x80, 0x3f, 1, 0]);
    assert_eq!(decode::<i64>(&[0xfe, 255, 255, 255, 255, 255, 255, 255]).unwrap(), [-2]);
}

#[test]
fn the_other_kind_of_host_turns_each_element_round() {
    let mut bytes = Vec::new();
    encode_with(&[0x01020304u32, 5], &mut bytes, true);
    let turned = [0x01020304u32.swap_bytes(), 5u32.swap_bytes()];
    assert_eq!(bytes, turned.as_bytes());
}

#[test]
fn wrong_bytes_are_refused_and_change_nothing() {
    let error = decode::<f32>(&[0; 7]).unwrap_err();
    assert_eq!(error.to_string(), "7 bytes, shape and data type need 4");
    let mut values = [true; 3];
    let error = decode_into(&[0, 0], &mut values).unwrap_err();
    assert_eq!(error.to_string(), "2 bytes, shape and data type need 3");
    let error = decode_into(&[0, 0, 2], &mut values).unwrap_err();
    assert_eq!(error.to_string(), "element 2 is 2, in BOOL it is 0 or 1");
    assert_eq!(values, [true; 3]);
}

proptest! {
    #[test]
    fn values_survive_their_bytes(words in vec(any::<u64>(), 0..40)) {
        fn cast<T: Element>(words: &[u64], to: impl Fn(u64) -> T) {
            survive(&words.iter().map(|word| to(*word)).collect::<Vec<T>>());
        }
        cast(&words, |word| word & 1 == 1);
        cast(&words, |word| word as u8);
        cast(&words, |word| word as u16);
        cast(&words, |word| word as u32);
        cast(&words, |word| word);
        cast(&words, |word| word as i8);
        cast(&words, |word| word as i16);
        cast(&words, |word| word as i32);
        cast(&words, |word| word as i64);
        cast(&words, |word| f16::from_bits(word as u16));
        cast(&words, |word| bf16::from_bits(word as u16));
        cast(&words, |word| f32::from_bits(word as u32));
        cast(&words, f64::from_bits);
    }
}
