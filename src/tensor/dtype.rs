//! Data types.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result, TensorFault};

/// What an element of a tensor is. The names are those of the KServe v2 protocol, which Triton speaks;
/// the numbers those of Triton's `TRITONSERVER_DataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
}

impl DType {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 14] = [
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
    ];

    /// Bytes of one element. `None` for [`Bytes`](Self::Bytes), whose elements have any length.
    #[inline(always)]
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }

    /// The name in the KServe v2 protocol, such as `FP32`.
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
        }
    }

    /// The number that stands for it in a tensor's description.
    #[inline(always)]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The data type with this number.
    ///
    /// # Errors
    ///
    /// [`TensorFault::DataTypeCode`]
    #[inline(always)]
    pub const fn from_code(code: u8) -> Result<Self, TensorFault> {
        match code {
            1..=14 => Ok(Self::ALL[code as usize - 1]),
            _ => Err(TensorFault::DataTypeCode { code }),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// By the name in the KServe v2 protocol, in capitals.
impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or(TensorFault::DataTypeName.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_type_survives_its_code_and_its_name() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Ok(dtype));
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        }
        for code in [0, 15, 16, 255] {
            assert_eq!(DType::from_code(code), Err(TensorFault::DataTypeCode { code }));
        }
        for name in ["", "fp32", "STRING", "FP8", "FP32 "] {
            assert!(name.parse::<DType>().is_err(), "{name:?}");
        }
    }
}
