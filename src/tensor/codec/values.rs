//! Encoding and decoding elements that have a Rust type.
//!
//! On a little-endian host the bytes of a value are its encoding, so each direction is one copy.

use zerocopy::IntoBytes;

use crate::error::{Result, TensorFault};
use crate::tensor::copies::zeros;
use crate::tensor::element::{Element, check_bytes};

/// Whether the host stores the bytes of a value in the opposite order.
const SWAP: bool = cfg!(target_endian = "big");

/// The longest element in bytes.
const LONGEST: usize = 8;

/// Appends the bytes of `values` to `to`.
pub(crate) fn encode<T: Element>(values: &[T], to: &mut Vec<u8>) {
    encode_with(values, to, SWAP);
}

/// Returns the values in `bytes`, which may start at any address.
pub(crate) fn decode<T: Element>(bytes: &[u8]) -> Result<Vec<T>> {
    let mut values = zeros(bytes.len() / size_of::<T>())?;
    decode_into(bytes, &mut values)?;
    Ok(values)
}

/// Writes the values in `bytes` to `to`, or leaves it unchanged if they are other ones or more or fewer.
pub(crate) fn decode_into<T: Element>(bytes: &[u8], to: &mut [T]) -> Result<(), TensorFault> {
    decode_with(bytes, to, SWAP)
}

fn encode_with<T: Element>(values: &[T], to: &mut Vec<u8>, swap: bool) {
    let start = to.len();
    to.extend_from_slice(values.as_bytes());
    if swap {
        to[start..].chunks_exact_mut(size_of::<T>()).for_each(<[u8]>::reverse);
    }
}

#[inline]
fn decode_with<T: Element>(bytes: &[u8], to: &mut [T], swap: bool) -> Result<(), TensorFault> {
    let (len, expected) = (bytes.len() as u64, size_of_val(to) as u64);
    if len != expected {
        return Err(TensorFault::Len { len, expected });
    }
    check_bytes::<T>(bytes)?;
    for (to, from) in to.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
        let value = if swap {
            let mut native = [0; LONGEST];
            let native = &mut native[..size_of::<T>()];
            native.copy_from_slice(from);
            native.reverse();
            T::try_read_from_bytes(native).ok()
        } else {
            T::try_read_from_bytes(from).ok()
        };
        // `check_bytes` has checked each element.
        if let Some(value) = value {
            *to = value;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
}
