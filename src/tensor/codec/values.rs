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
mod tests;
