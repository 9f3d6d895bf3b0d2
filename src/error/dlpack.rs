//! What can be wrong with a tensor that another library hands over.

/// Why a DLPack tensor cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DlpackFault {
    /// A pointer is null that must not be.
    #[error("{field} is null")]
    Null {
        /// What it should point to, by its name in `dlpack.h`.
        field: &'static str,
    },
    /// The structure has the layout of another major version.
    #[error("version {major}.{minor}, only 1.x is known")]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The bytes are in memory that the processor does not read.
    #[error("device type {device_type} is no memory of the host")]
    Device {
        /// The number in `DLDeviceType`.
        device_type: i32,
    },
    /// The number of dimensions is negative.
    #[error("{ndim} dimensions")]
    Rank {
        /// The number.
        ndim: i32,
    },
    /// The elements have no data type here.
    #[error("elements of type code {code}, {bits} bits, {lanes} lanes have no data type")]
    Type {
        /// The number in `DLDataTypeCode`.
        code: u8,
        /// Bits of a lane.
        bits: u8,
        /// Lanes of an element.
        lanes: u16,
    },
    /// The elements do not lie one behind the other in row-major order.
    #[error("stride of dimension {at} is {stride}, in row-major order it is {expected}")]
    Stride {
        /// Which dimension, counted from 0.
        at: usize,
        /// Its stride in elements.
        stride: i64,
        /// The stride in elements that it must have.
        expected: i64,
    },
    /// The bytes would start or end beyond what can be addressed.
    #[error("{len} bytes at offset {offset} lead beyond what can be addressed")]
    Offset {
        /// `byte_offset`.
        offset: u64,
        /// The tensor's length in bytes.
        len: u64,
    },
}
