//! `Tensor` to DLPack and back.

#![allow(unsafe_code)]

use crate::error::Result;
use crate::tensor::dlpack::abi::DLManagedTensorVersioned;
use crate::tensor::dlpack::export::export_raw;
use crate::tensor::dlpack::import::Imported;
use crate::tensor::dtype::DType;
use crate::tensor::element::check_bools;
use crate::tensor::view::Tensor;

/// A tensor whose bytes cannot change.
struct Stable(Tensor);

impl AsRef<[u8]> for Stable {
    fn as_ref(&self) -> &[u8] {
        // `into_dlpack` has checked it, and the tensor does not change.
        self.0.as_bytes().unwrap_or(&[])
    }
}

impl Tensor {
    /// Exports the tensor to another library by DLPack, read-only and without a copy. The tensor is dropped
    /// when that library calls the deleter.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Unstable`](crate::error::TensorFault::Unstable): the tensor is on loan or in a region.
    ///   Copy it ([`to_private`](Self::to_private)), or vouch for its sender
    ///   ([`into_dlpack_unchecked`](Self::into_dlpack_unchecked)).
    /// - [`TensorFault::BytesLen`](crate::error::TensorFault::BytesLen): DLPack has no BYTES.
    /// - [`TensorFault::Bool`](crate::error::TensorFault::Bool): an element is neither 0 nor 1, which is
    ///   undefined behaviour in C++.
    pub fn into_dlpack(self) -> Result<*mut DLManagedTensorVersioned> {
        let bytes = self.as_bytes()?;
        if self.dtype() == DType::Bool {
            check_bools(bytes)?;
        }
        let (dtype, shape) = (self.dtype(), *self.shape());
        DLManagedTensorVersioned::export(Stable(self), dtype, &shape)
    }

    /// Exports the tensor as [`into_dlpack`](Self::into_dlpack) does, even while it is on loan. The loan goes
    /// back when the other library calls the deleter.
    ///
    /// # Errors
    ///
    /// As [`into_dlpack`](Self::into_dlpack), but for
    /// [`TensorFault::Unstable`](crate::error::TensorFault::Unstable) of loans.
    ///
    /// # Safety
    ///
    /// - As [`as_slice_unchecked`](Self::as_slice_unchecked), until the deleter is called: the library reads
    ///   the bytes as if nobody could write them.
    /// - Each byte of a BOOL tensor is 0 or 1.
    pub unsafe fn into_dlpack_unchecked(self) -> Result<*mut DLManagedTensorVersioned> {
        let (dtype, shape) = (self.dtype(), *self.shape());
        let bytes = self.bytes()?;
        // SAFETY: the caller vouches that nobody writes the bytes.
        let bytes = unsafe { bytes.as_slice() };
        let place = (bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the bytes lie in a mapping, a block or an allocation that the tensor keeps, wherever the
        // tensor itself is moved; nobody may write through a read-only tensor.
        unsafe { export_raw(self, place, dtype, &shape, DLManagedTensorVersioned::READ_ONLY) }
    }

    /// Returns a private copy of another library's tensor. The caller keeps that tensor.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Bool`](crate::error::TensorFault::Bool): an element is neither 0 nor 1.
    pub fn from_dlpack(imported: &Imported) -> Result<Self> {
        Self::from_bytes(imported.dtype(), *imported.shape(), imported.bytes())
    }
}

#[cfg(test)]
mod tests;
