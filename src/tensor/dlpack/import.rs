//! Importing tensors of other libraries.

#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;
use core::slice;

use crate::error::{Result, TensorFault};
use crate::shm::Bytes;
use crate::tensor::dlpack::abi::{DLDevice, DLManagedTensorVersioned, DLTensor, MAJOR};
use crate::tensor::dtype::DType;
use crate::tensor::element::{self, Element};
use crate::tensor::shape::{MAX_RANK, Shape};

/// A tensor that another library made, for reading. Dropping it calls that library's deleter.
///
/// [`DLManagedTensorVersioned::export`] has an example.
pub struct Imported {
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

    /// Returns the data type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the elements as bytes, row-major, in the byte order of the host. They may start at any address,
    /// and a BOOL may be any byte: [`DType::check`] checks them.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `from_raw` demands that these bytes are there until the deleter is called, which `drop` does, and that
        // nobody writes them while the result lives.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    /// Copies the elements as bytes, as [`bytes`](Self::bytes) returns them. Others may write them meanwhile: the copy of
    /// such a byte is one of those that were there.
    ///
    /// # Panics
    ///
    /// If `to` has another length than the tensor.
    pub fn copy_to(&self, to: &mut [u8]) {
        // SAFETY: `from_raw` demands that the bytes are there until the deleter is called, which `drop` does.
        unsafe { Bytes::new(self.data, self.len) }.copy_to(to);
    }

    /// Returns the elements, row-major.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::DataType`]: the elements have another type.
    /// - [`TensorFault::Alignment`]: they do not start at a multiple of `T`'s alignment.
    /// - [`TensorFault::Bool`]: an element of BOOL is neither 0 nor 1.
    pub fn elements<T: Element>(&self) -> Result<&[T]> {
        element::check::<T>(self.dtype)?;
        Ok(element::slice_of(self.bytes())?)
    }

    /// Returns whether the library that made the tensor forbids writing its bytes.
    pub fn is_read_only(&self) -> bool {
        self.flags & DLManagedTensorVersioned::READ_ONLY != 0
    }

    /// Returns whether the library that made the tensor copied the bytes for it.
    pub fn is_copied(&self) -> bool {
        self.flags & DLManagedTensorVersioned::IS_COPIED != 0
    }

    /// Returns the structure. Its new holder calls the deleter.
    pub fn into_raw(self) -> *mut DLManagedTensorVersioned {
        let managed = self.owned.0.as_ptr();
        core::mem::forget(self.owned);
        managed
    }
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Imported");
        out.field("dtype", &self.dtype).field("shape", &self.shape).finish_non_exhaustive()
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
    let device_type = tensor.device.device_type;
    let host = [DLDevice::CPU, DLDevice::CUDA_HOST];
    if !host.iter().any(|device| device.device_type == device_type) {
        return Err(TensorFault::DlpackDevice { device_type }.into());
    }
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
