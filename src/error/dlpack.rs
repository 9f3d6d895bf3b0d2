//! The reasons why another library's tensor is refused.

/// The reasons why a DLPack tensor is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DlpackFault {
    /// A required pointer is null.
    #[error("{field} is null")]
    Null {
        /// The pointer's name in `dlpack.h`.
        field: &'static str,
    },
    /// The structure has the layout of another major version.
    #[error("version {major}.{minor}, only 1.x is supported")]
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
    /// No [`DType`](crate::DType) stands for the elements.
    #[error("elements of type code {code}, {bits} bits, {lanes} lanes have no data type")]
    Type {
        /// The number in `DLDataTypeCode`.
        code: u8,
        /// Bits of a lane.
        bits: u8,
        /// Lanes of an element.
        lanes: u16,
    },
    /// The elements are not contiguous in row-major order.
    #[error(
        "stride of dimension {at} is {stride}, row-major order needs {expected}: copy it first"
    )]
    Stride {
        /// The dimension, counted from 0.
        at: usize,
        /// Its stride in elements.
        stride: i64,
        /// The stride in row-major order, in elements.
        expected: i64,
    },
    /// The bytes would start or end outside of the address space.
    #[error("{len} bytes at offset {offset} lie outside of the address space")]
    Offset {
        /// `byte_offset`.
        offset: u64,
        /// The tensor's length in bytes.
        len: u64,
    },
}
