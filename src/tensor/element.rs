//! Rust types of elements.

use half::{bf16, f16};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::error::{Result, TensorFault};
use crate::shm::Bytes;
use crate::tensor::codec;
use crate::tensor::dtype::DType;

mod sealed {
    use crate::error::TensorFault;
    use crate::shm::Bytes;

    pub trait Sealed: Sized {
        /// Returns the bytes as elements. Only `bool` checks their values.
        fn slice(bytes: &[u8]) -> Option<&[Self]>;

        /// Returns the bytes as writable elements.
        fn slice_mut(bytes: &mut [u8]) -> Option<&mut [Self]>;

        /// Copies bytes to `to`, which has as many, and checks them.
        fn copy(from: Bytes<'_>, to: &mut [Self]) -> Result<(), TensorFault>;
    }
}

/// A Rust type of a tensor's elements: an integer, `f32`, `f64`, `half::f16`, `half::bf16`, or `bool`, whose
/// bytes are checked.
pub trait Element:
    Copy
    + Send
    + Sync
    + TryFromBytes
    + FromZeros
    + IntoBytes
    + Immutable
    + KnownLayout
    + sealed::Sealed
    + 'static
{
    /// The data type of the elements.
    const DTYPE: DType;

    /// Appends the bytes of `values` to `to`: row-major, little-endian.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::tensor::Element;
    ///
    /// let mut bytes = Vec::new();
    /// i16::encode(&[1, -2], &mut bytes);
    /// assert_eq!(bytes, [1, 0, 0xfe, 0xff]);
    /// assert_eq!(i16::decode(&bytes)?, [1, -2]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    fn encode(values: &[Self], to: &mut Vec<u8>) {
        codec::encode(values, to);
    }

    /// Returns the values in `bytes`, which may start at any address.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`]: the bytes are no whole number of elements.
    /// - [`TensorFault::Bool`]: an element of BOOL is neither 0 nor 1.
    fn decode(bytes: &[u8]) -> Result<Vec<Self>> {
        codec::decode(bytes)
    }

    /// Returns the bytes as elements, without a copy. Returns `None` if the bytes are not aligned, are no whole
    /// number of elements, or hold an impossible one.
    fn slice_of(bytes: &[u8]) -> Option<&[Self]> {
        <Self as sealed::Sealed>::slice(bytes)
    }

    /// Copies bytes, which may start at any address, to `to`. On an error `to` is unchanged.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`]: the bytes are more or fewer than `to` takes.
    /// - [`TensorFault::Bool`]: an element of BOOL is neither 0 nor 1.
    fn copy_from_bytes(bytes: &[u8], to: &mut [Self]) -> Result<()> {
        Ok(codec::decode_into(bytes, to)?)
    }
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident,)*) => {
        $(
            impl sealed::Sealed for $rust {
                #[inline(always)]
                fn slice(bytes: &[u8]) -> Option<&[Self]> {
                    <[Self]>::ref_from_bytes(bytes).ok()
                }

                #[inline(always)]
                fn slice_mut(bytes: &mut [u8]) -> Option<&mut [Self]> {
                    <[Self]>::mut_from_bytes(bytes).ok()
                }

                fn copy(from: Bytes<'_>, to: &mut [Self]) -> Result<(), TensorFault> {
                    from.copy_to(<[Self] as IntoBytes>::as_mut_bytes(to));
                    Ok(())
                }
            }

            impl Element for $rust {
                const DTYPE: DType = DType::$dtype;
            }
        )*
    };
}

impl sealed::Sealed for bool {
    fn slice(bytes: &[u8]) -> Option<&[Self]> {
        <[Self]>::try_ref_from_bytes(bytes).ok()
    }

    fn slice_mut(bytes: &mut [u8]) -> Option<&mut [Self]> {
        <[Self]>::try_mut_from_bytes(bytes).ok()
    }

    fn copy(from: Bytes<'_>, to: &mut [Self]) -> Result<(), TensorFault> {
        let mut bytes = [0; CHUNK];
        for (index, to) in to.chunks_mut(CHUNK).enumerate() {
            let bytes = &mut bytes[..to.len()];
            from.slice(index * CHUNK, to.len()).copy_to(bytes);
            to.copy_from_slice(slice_of(bytes).map_err(|fault| match fault {
                TensorFault::Bool { index: at, value } => {
                    TensorFault::Bool { index: (index * CHUNK) as u64 + at, value }
                }
                other => other,
            })?);
        }
        Ok(())
    }
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
}

elements! {
    u8 => Uint8,
    u16 => Uint16,
    u32 => Uint32,
    u64 => Uint64,
    i8 => Int8,
    i16 => Int16,
    i32 => Int32,
    i64 => Int64,
    f16 => Fp16,
    bf16 => Bf16,
    f32 => Fp32,
    f64 => Fp64,
}

/// Copies bytes to as many elements.
pub(crate) fn copy<T: Element>(from: Bytes<'_>, to: &mut [T]) -> Result<(), TensorFault> {
    let (len, expected) = (size_of_val(to) as u64, from.len() as u64);
    if len != expected {
        return Err(TensorFault::Len { len, expected });
    }
    T::copy(from, to)
}

/// Checks that a tensor of data type `is` has elements of type `T`.
#[inline(always)]
pub(crate) fn check<T: Element>(is: DType) -> Result<(), TensorFault> {
    if is == T::DTYPE {
        return Ok(());
    }
    Err(TensorFault::DataType { is: is.name(), wanted: T::DTYPE.name() })
}

/// Returns bytes that nobody changes as elements.
pub(crate) fn slice_of<T: Element>(bytes: &[u8]) -> Result<&[T], TensorFault> {
    if bytes.is_empty() {
        return Ok(&[]);
    }
    T::slice(bytes).ok_or_else(|| explain::<T>(bytes))
}

/// Returns bytes as writable elements, or `None` where [`slice_of`] returns a fault.
#[inline(always)]
pub(crate) fn slice_of_mut<T: Element>(bytes: &mut [u8]) -> Option<&mut [T]> {
    if bytes.is_empty() { Some(&mut []) } else { T::slice_mut(bytes) }
}

fn explain<T: Element>(bytes: &[u8]) -> TensorFault {
    check_bytes::<T>(bytes).err().unwrap_or(TensorFault::Alignment { alignment: align_of::<T>() })
}

/// Checks that the bytes are whole elements and that each is possible.
pub(crate) fn check_bytes<T: Element>(bytes: &[u8]) -> Result<(), TensorFault> {
    let (len, size) = (bytes.len() as u64, size_of::<T>() as u64);
    if !len.is_multiple_of(size) {
        return Err(TensorFault::Len { len, expected: len / size * size });
    }
    if T::DTYPE == DType::Bool {
        check_bools(bytes)?;
    }
    Ok(())
}

/// Bytes of a BOOL tensor that are checked at a time: four cache lines, enough for vector instructions.
const CHUNK: usize = 256;

/// Checks that each byte is 0 or 1.
pub(crate) fn check_bools(bytes: &[u8]) -> Result<(), TensorFault> {
    // A search that may stop at any byte checks one byte at a time, so this one stops at chunks.
    let wrong = |chunk: &[u8]| chunk.iter().fold(0, |all, byte| all | byte) > 1;
    let Some(chunk) = bytes.chunks(CHUNK).position(wrong) else { return Ok(()) };
    let at = chunk * CHUNK;
    match bytes[at..].iter().position(|byte| *byte > 1) {
        None => Ok(()),
        Some(behind) => {
            Err(TensorFault::Bool { index: (at + behind) as u64, value: bytes[at + behind] })
        }
    }
}

#[cfg(test)]
mod tests;
