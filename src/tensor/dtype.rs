//! Data types.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result, TensorFault};
use crate::tensor::codec;
use crate::tensor::shape::Shape;

/// The data type of a tensor's elements. The names are those of the KServe v2 protocol, which Triton speaks.
/// The numbers are those of Triton's `TRITONSERVER_DataType`. Both lack fp8, which follows with numbers and names of this
/// crate.
///
/// Its size in memory is no promise.
///
/// # Examples
///
/// ```
/// use slipring::DType;
///
/// assert_eq!("FP32".parse::<DType>()?, DType::Fp32);
/// assert_eq!(DType::Fp32.size(), Some(4));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
// A whole word: a move of a shorter field of a tensor waits for its store.
#[repr(usize)]
pub enum DType {
    /// One byte: 1 is true, 0 is false.
    Bool = 1,
    /// `u8`.
    Uint8 = 2,
    /// `u16`.
    Uint16 = 3,
    /// `u32`.
    Uint32 = 4,
    /// `u64`.
    Uint64 = 5,
    /// `i8`.
    Int8 = 6,
    /// `i16`.
    Int16 = 7,
    /// `i32`.
    Int32 = 8,
    /// `i64`.
    Int64 = 9,
    /// IEEE 754 binary16.
    Fp16 = 10,
    /// `f32`.
    Fp32 = 11,
    /// `f64`.
    Fp64 = 12,
    /// A `u32` length and as many bytes.
    Bytes = 13,
    /// The upper half of an `f32`.
    Bf16 = 14,
    /// fp8 with 4 bits of exponent and 3 of mantissa, without infinities: `float8_e4m3fn`. Its elements are one byte each, which
    /// no Rust type decodes.
    Fp8E4m3fn = 15,
    /// fp8 with 5 bits of exponent and 2 of mantissa: `float8_e5m2`. Its elements are the upper halves of those of FP16.
    Fp8E5m2 = 16,
}

impl DType {
    /// All data types, in the order of their codes.
    pub const ALL: [Self; 16] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
        Self::Bf16,
        Self::Fp8E4m3fn,
        Self::Fp8E5m2,
    ];

    /// Returns the bytes of one element. Returns `None` for [`Bytes`](Self::Bytes), whose elements have any
    /// length.
    #[inline(always)]
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 | Self::Fp8E4m3fn | Self::Fp8E5m2 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }

    /// Returns the name in the KServe v2 protocol, such as `FP32`, or `FP8_E4M3FN` and `FP8_E5M2`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
            Self::Bf16 => "BF16",
            Self::Fp8E4m3fn => "FP8_E4M3FN",
            Self::Fp8E5m2 => "FP8_E5M2",
        }
    }

    /// Returns the data type's number in a tensor's description.
    #[inline(always)]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Checks that `bytes` are a whole tensor of this data type and shape and nothing else.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::{DType, Shape};
    ///
    /// let shape = Shape::from([2]);
    /// assert!(DType::Bool.check(&shape, &[1, 0]).is_ok());
    /// let error = DType::Bool.check(&shape, &[1, 7]).unwrap_err();
    /// assert_eq!(error.to_string(), "element 1 is 7, in BOOL it is 0 or 1");
    /// ```
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Overflow`]: a tensor of this shape needs more bytes than the address space has.
    /// - [`TensorFault::Len`]: there are more or fewer bytes than the shape needs.
    /// - [`TensorFault::Bool`]: an element of BOOL is neither 0 nor 1.
    /// - [`TensorFault::ElementLength`], [`TensorFault::Element`]: the bytes end within a BYTES element.
    /// - [`TensorFault::ElementCount`], [`TensorFault::Trailing`]: there are fewer BYTES elements than the shape
    ///   says, or bytes follow the last one.
    pub fn check(self, shape: &Shape, bytes: &[u8]) -> Result<()> {
        Ok(codec::check_tensor(self, shape, bytes)?)
    }

    /// Returns the data type with this number.
    ///
    /// # Errors
    ///
    /// [`TensorFault::DataTypeCode`]: no data type has this number.
    #[inline(always)]
    pub const fn from_code(code: u8) -> Result<Self, TensorFault> {
        match code {
            1..=16 => Ok(Self::ALL[code as usize - 1]),
            _ => Err(TensorFault::DataTypeCode { code }),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parses the [`name`](DType::name), in capitals.
impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or(TensorFault::DataTypeName.into())
    }
}

#[cfg(test)]
mod tests;
