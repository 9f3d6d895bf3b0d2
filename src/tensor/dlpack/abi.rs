//! The structures of `dlpack.h`, version 1.

#![allow(unsafe_code)]

use core::ffi::c_void;

use crate::error::TensorFault;
use crate::tensor::dtype::DType;

/// The only major version whose layout is known here: `DLPACK_MAJOR_VERSION`.
pub(super) const MAJOR: u32 = 1;

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const BOOL: u8 = 6;
// From DLPack 1.1 on.
const FLOAT8_E4M3FN: u8 = 10;
const FLOAT8_E5M2: u8 = 12;

/// The version of `dlpack.h` that a structure follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// Another major number has another layout after `flags`.
    pub major: u32,
    /// A higher minor number has more devices and types.
    pub minor: u32,
}

/// The device that holds the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// A number of `DLDeviceType`: 1 is memory of the host.
    pub device_type: i32,
    /// The index among the devices of this type; 0 for memory of the host.
    pub device_id: i32,
}

impl DLDevice {
    /// Memory of the host: `kDLCPU`.
    pub const CPU: Self = Self { device_type: 1, device_id: 0 };

    /// Returns the device of a GPU's memory: `kDLCUDA`.
    pub fn cuda(ordinal: u32) -> Self {
        Self { device_type: Self::CUDA, device_id: ordinal as i32 }
    }

    /// Pinned memory of the host: `kDLCUDAHost`.
    pub const CUDA_HOST: Self = Self { device_type: 3, device_id: 0 };

    /// The type of a GPU's memory: `kDLCUDA`.
    pub(super) const CUDA: i32 = 2;

    /// The type of memory that moves between the host and GPUs: `kDLCUDAManaged`.
    pub(super) const CUDA_MANAGED: i32 = 13;
}

/// The type of an element, in the byte order of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// A number of `DLDataTypeCode`.
    pub code: u8,
    /// Bits of a lane.
    pub bits: u8,
    /// Lanes of an element: 1 unless it is a vector.
    pub lanes: u16,
}

impl DLDataType {
    /// Returns the type of `dtype`. Returns `None` for BYTES, which DLPack does not have.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        let code = match dtype {
            DType::Bool => BOOL,
            DType::Uint8 | DType::Uint16 | DType::Uint32 | DType::Uint64 => UINT,
            DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => INT,
            DType::Fp16 | DType::Fp32 | DType::Fp64 => FLOAT,
            DType::Bf16 => BFLOAT,
            DType::Fp8E4m3fn => FLOAT8_E4M3FN,
            DType::Fp8E5m2 => FLOAT8_E5M2,
            DType::Bytes => return None,
        };
        Some(Self { code, bits: 8 * dtype.size()? as u8, lanes: 1 })
    }

    /// Returns the data type of this type.
    pub(super) fn dtype(self) -> Result<DType, TensorFault> {
        let found = DType::ALL.into_iter().find(|dtype| Self::of(*dtype) == Some(self));
        let Self { code, bits, lanes } = self;
        found.ok_or(TensorFault::DlpackType { code, bits, lanes })
    }
}

/// A tensor without its deleter.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct DLTensor {
    /// The bytes begin `byte_offset` past this address. Null if there are none.
    pub data: *mut c_void,
    /// The device of the bytes.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The type of an element.
    pub dtype: DLDataType,
    /// The lengths of the dimensions, the outermost first.
    pub shape: *mut i64,
    /// The distance from each index to the next, in elements. Before version 1.2 null means row-major.
    pub strides: *mut i64,
    /// The offset of the first byte.
    pub byte_offset: u64,
}

/// A tensor that a library hands over by its address. Up to `flags` all versions have the same layout.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// The version of the fields after it.
    pub version: DLPackVersion,
    /// Data of the library that made the tensor, for `deleter`.
    pub manager_ctx: *mut c_void,
    /// Frees the tensor. `None` if there is nothing to free.
    // SAFETY: to be called once, by the holder of the tensor, with the tensor's own address.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// [`READ_ONLY`](Self::READ_ONLY), [`IS_COPIED`](Self::IS_COPIED).
    pub flags: u64,
    /// The tensor itself.
    pub dl_tensor: DLTensor,
}

impl DLManagedTensorVersioned {
    /// Flag: nobody may write the bytes (`DLPACK_FLAG_BITMASK_READ_ONLY`).
    pub const READ_ONLY: u64 = 1;
    /// Flag: the library copied the bytes for the receiver of the tensor (`DLPACK_FLAG_BITMASK_IS_COPIED`).
    pub const IS_COPIED: u64 = 2;
}

#[cfg(test)]
mod tests;
