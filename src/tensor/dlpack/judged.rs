//! Structures of other libraries, read once and checked.

#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::slice;

use crate::error::{Result, TensorFault};
use crate::tensor::dlpack::abi::{DLDevice, DLManagedTensorVersioned, DLTensor, MAJOR};
use crate::tensor::dtype::DType;
use crate::tensor::shape::{MAX_RANK, Shape};

/// A tensor that another library made: row-major and contiguous, of a known data type, in any memory. Dropping it calls that
/// library's deleter.
pub(super) struct Judged {
    /// The structure, with which the deleter is called.
    owned: OwnedStructure,
    /// The first byte. Dangling if there is none.
    data: NonNull<u8>,
    /// The length in bytes.
    len: usize,
    dtype: DType,
    shape: Shape,
    flags: u64,
}

impl Judged {
    /// Takes over the tensor behind `managed`, if `takes` accepts its device. An error calls the deleter.
    ///
    /// # Errors
    ///
    /// As [`Imported::from_raw`](crate::tensor::dlpack::Imported::from_raw), with the errors of `takes` in place of
    /// [`TensorFault::DlpackDevice`].
    ///
    /// # Safety
    ///
    /// - `managed` is null or points to a structure as `dlpack.h` describes it. The caller owns it and gives it away: nobody
    ///   else calls its deleter.
    /// - `ndim` lengths and as many strides lie where it says, and nobody writes them or the structure until the deleter is
    ///   called.
    /// - The deleter does not unwind.
    pub(super) unsafe fn from_raw(
        managed: *mut DLManagedTensorVersioned,
        takes: impl FnOnce(DLDevice) -> Result<()>,
    ) -> Result<Self> {
        let null = TensorFault::DlpackNull { field: "DLManagedTensorVersioned" };
        let owned = OwnedStructure(NonNull::new(managed).ok_or(null)?);
        // SAFETY: the caller's promise; in every version the structure begins with this field.
        let version = unsafe { (*managed).version };
        if version.major != MAJOR {
            let (major, minor) = (version.major, version.minor);
            return Err(TensorFault::DlpackVersion { major, minor }.into());
        }
        // SAFETY: the caller's promise, for the version that was checked.
        let tensor = unsafe { (*managed).dl_tensor };
        // SAFETY: as above.
        let flags = unsafe { (*managed).flags };
        takes(tensor.device)?;
        let rank = rank(&tensor)?;
        // SAFETY: the caller's promise: there are as many lengths as dimensions.
        let dims = unsafe { list(tensor.shape, rank) };
        // SAFETY: the caller's promise: there are as many strides as dimensions.
        let strides = unsafe { list(tensor.strides, rank) };
        let (dtype, shape, len) = judge(&tensor, dims.unwrap_or_default(), strides)?;
        let data = match len {
            0 => NonNull::dangling(),
            _ => start(&tensor, len)?,
        };
        Ok(Self { owned, data, len, dtype, shape, flags })
    }

    /// Returns the address of the first byte on its device, and the length in bytes.
    pub(super) fn range(&self) -> (NonNull<u8>, usize) {
        (self.data, self.len)
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn flags(&self) -> u64 {
        self.flags
    }

    /// Returns the structure. Its new holder calls the deleter.
    pub(super) fn into_raw(self) -> *mut DLManagedTensorVersioned {
        let managed = self.owned.0.as_ptr();
        core::mem::forget(self.owned);
        managed
    }
}

/// A structure whose deleter is still to be called.
struct OwnedStructure(NonNull<DLManagedTensorVersioned>);

impl Drop for OwnedStructure {
    fn drop(&mut self) {
        let managed = self.0.as_ptr();
        // SAFETY: the caller of `from_raw` gave the structure away, and nobody called the deleter before. The field
        // has its place in every version.
        let Some(deleter) = (unsafe { (*managed).deleter }) else { return };
        // SAFETY: as above; this is the only call, as nothing of the structure is used after a drop.
        unsafe { deleter(managed) };
    }
}

/// Returns `len` numbers. Returns `None` if there are none or the address is null.
///
/// # Safety
///
/// `at` is null or points to `len` numbers, which nobody writes during `'a`.
unsafe fn list<'a>(at: *const i64, len: usize) -> Option<&'a [i64]> {
    if at.is_null() || len == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { slice::from_raw_parts(at, len) })
}

/// Returns the number of dimensions. No dimension is read before this check.
fn rank(tensor: &DLTensor) -> Result<usize, TensorFault> {
    let rank =
        usize::try_from(tensor.ndim).map_err(|_| TensorFault::DlpackRank { ndim: tensor.ndim })?;
    if rank > MAX_RANK {
        return Err(TensorFault::Rank { rank, max: MAX_RANK });
    }
    if rank > 0 && tensor.shape.is_null() {
        return Err(TensorFault::DlpackNull { field: "shape" });
    }
    Ok(rank)
}

/// Returns data type, shape and length in bytes of a tensor with these dimensions and strides.
fn judge(
    tensor: &DLTensor,
    dims: &[i64],
    strides: Option<&[i64]>,
) -> Result<(DType, Shape, usize)> {
    let dtype = tensor.dtype.dtype()?;
    let shape = Shape::try_from(dims)?;
    let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
    if len > 0 {
        check_strides(dims, strides.unwrap_or_default())?;
    }
    Ok((dtype, shape, len))
}

/// Checks that the strides are those of row-major order, for dimensions with more than one index. The product
/// of `dims` is checked, and none of them is 0.
fn check_strides(dims: &[i64], strides: &[i64]) -> Result<(), TensorFault> {
    let mut expected = 1;
    for (at, (dim, stride)) in dims.iter().zip(strides).enumerate().rev() {
        if *dim != 1 && *stride != expected {
            return Err(TensorFault::DlpackStride { at, stride: *stride, expected });
        }
        expected *= dim;
    }
    Ok(())
}

/// Returns the address of the tensor's first byte. The tensor has `len` bytes.
fn start(tensor: &DLTensor, len: usize) -> Result<NonNull<u8>, TensorFault> {
    let data =
        NonNull::new(tensor.data.cast::<u8>()).ok_or(TensorFault::DlpackNull { field: "data" })?;
    let beyond = TensorFault::DlpackOffset { offset: tensor.byte_offset, len: len as u64 };
    let offset = usize::try_from(tensor.byte_offset).map_err(|_| beyond)?;
    let start = data.addr().checked_add(offset).ok_or(beyond)?;
    match start.checked_add(len) {
        Some(_) => Ok(data.with_addr(start)),
        None => Err(beyond),
    }
}

#[cfg(test)]
mod tests;
