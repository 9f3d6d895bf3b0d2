//! Importing tensors of other libraries.

#![allow(unsafe_code)]

use core::fmt;
use core::slice;

use crate::error::{Result, TensorFault};
use crate::shm::Bytes;
use crate::tensor::dlpack::abi::{DLDevice, DLManagedTensorVersioned};
use crate::tensor::dlpack::judged::Judged;
use crate::tensor::dtype::DType;
use crate::tensor::element::{self, Element};
use crate::tensor::shape::Shape;

/// A tensor that another library made in memory of the host, for reading. Dropping it calls that library's deleter.
/// `cuda::Device::adopt_dlpack` takes one in memory of a GPU.
///
/// [`DLManagedTensorVersioned::export`] has an example.
pub struct Imported {
    tensor: Judged,
}

// SAFETY: `from_raw` demands a deleter that any thread may call.
unsafe impl Send for Imported {}
// SAFETY: shared access only reads bytes that nobody writes, or copies them as those that others may write.
unsafe impl Sync for Imported {}

impl Imported {
    /// Takes over the tensor behind `managed`.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::DlpackNull`], [`TensorFault::DlpackVersion`], [`TensorFault::DlpackDevice`]: a pointer is null,
    ///   the version is not 1.x, the bytes are on a device.
    /// - [`TensorFault::DlpackStride`], [`TensorFault::DlpackOffset`], [`TensorFault::DlpackType`],
    ///   [`TensorFault::DlpackRank`]: the elements are not contiguous in row-major order, lie outside of the address
    ///   space, have no [`DType`], or have a negative number of dimensions.
    /// - [`TensorFault::Rank`], [`TensorFault::Dimension`], [`TensorFault::Overflow`]: the shape is impossible
    ///   here.
    ///
    /// An error calls the deleter.
    ///
    /// # Safety
    ///
    /// - `managed` is null or points to a structure as `dlpack.h` describes it. The caller owns it and gives
    ///   it away: nobody else calls its deleter.
    /// - Its pointers are valid: `ndim` lengths, as many strides, and from `byte_offset` on the bytes of the
    ///   tensor.
    /// - Nobody writes the structure until the deleter is called, or the bytes while a result of [`bytes`](Self::bytes) or
    ///   [`elements`](Self::elements) lives. [`copy_to`](Self::copy_to) allows others to write them.
    /// - The deleter may be called on any thread and does not unwind.
    pub unsafe fn from_raw(managed: *mut DLManagedTensorVersioned) -> Result<Self> {
        // SAFETY: the caller's promise.
        let tensor = unsafe { Judged::from_raw(managed, is_on_host) }?;
        Ok(Self { tensor })
    }

    /// Returns the data type of the elements.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> &Shape {
        self.tensor.shape()
    }

    /// Returns the elements as bytes, row-major, in the byte order of the host. They may start at any address,
    /// and a BOOL may be any byte: [`DType::check`] checks them.
    pub fn bytes(&self) -> &[u8] {
        let (start, len) = self.tensor.range();
        // SAFETY: `from_raw` demands that these bytes are there until the deleter is called, which `drop` does, and that
        // nobody writes them while the result lives.
        unsafe { slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Copies the elements as bytes, as [`bytes`](Self::bytes) returns them. Others may write them meanwhile: the copy of
    /// such a byte is one of those that were there.
    ///
    /// # Panics
    ///
    /// If `to` has another length than the tensor.
    pub fn copy_to(&self, to: &mut [u8]) {
        let (start, len) = self.tensor.range();
        // SAFETY: `from_raw` demands that the bytes are there until the deleter is called, which `drop` does.
        unsafe { Bytes::new(start, len) }.copy_to(to);
    }

    /// Returns the elements, row-major.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::DataType`]: the elements have another type.
    /// - [`TensorFault::Alignment`]: they do not start at a multiple of `T`'s alignment.
    /// - [`TensorFault::Bool`]: an element of BOOL is neither 0 nor 1.
    pub fn elements<T: Element>(&self) -> Result<&[T]> {
        element::check::<T>(self.dtype())?;
        Ok(element::slice_of(self.bytes())?)
    }

    /// Returns whether the library that made the tensor forbids writing its bytes.
    pub fn is_read_only(&self) -> bool {
        self.tensor.flags() & DLManagedTensorVersioned::READ_ONLY != 0
    }

    /// Returns whether the library that made the tensor copied the bytes for it.
    pub fn is_copied(&self) -> bool {
        self.tensor.flags() & DLManagedTensorVersioned::IS_COPIED != 0
    }

    /// Returns the structure. Its new holder calls the deleter.
    pub fn into_raw(self) -> *mut DLManagedTensorVersioned {
        self.tensor.into_raw()
    }
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Imported");
        out.field("dtype", &self.dtype()).field("shape", self.shape()).finish_non_exhaustive()
    }
}

/// Checks that the processor reads the memory of a device.
fn is_on_host(device: DLDevice) -> Result<()> {
    let device_type = device.device_type;
    let host = [DLDevice::CPU, DLDevice::CUDA_HOST];
    if host.iter().any(|device| device.device_type == device_type) {
        return Ok(());
    }
    Err(TensorFault::DlpackDevice { device_type }.into())
}

#[cfg(test)]
mod tests;
