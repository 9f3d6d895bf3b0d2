//! Exporting tensors to other libraries.

#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;

use crate::error::{Result, TensorFault};
use crate::tensor::dlpack::abi::{
    DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor, MAJOR,
};
use crate::tensor::dtype::DType;
use crate::tensor::shape::Shape;

/// The allocation behind the pointer. Its address is the tensor's.
#[repr(C)]
struct Exported<O> {
    managed: DLManagedTensorVersioned,
    /// Shape, then strides. `managed` points into it.
    dims: Vec<i64>,
    owner: O,
}

impl DLManagedTensorVersioned {
    /// Exports the bytes of `owner` to another library as a read-only tensor. The owner lives until that library
    /// calls the deleter. It leaks if nobody calls it.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::BytesLen`]: DLPack has no BYTES.
    /// - [`TensorFault::Len`]: `owner` has more or fewer bytes than the shape needs.
    /// - [`TensorFault::Overflow`]: a tensor of this shape needs more bytes than the address space has.
    ///
    /// An error drops the owner.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::tensor::dlpack::{DLManagedTensorVersioned, Imported};
    /// use slipring::{DType, Shape};
    ///
    /// let shape = Shape::from([2, 2]);
    /// let raw = DLManagedTensorVersioned::export(vec![1u8, 2, 3, 4], DType::Uint8, &shape)?;
    /// // SAFETY: `raw` was made above and is given away here.
    /// let tensor = unsafe { Imported::from_raw(raw)? };
    /// assert_eq!(tensor.elements::<u8>()?, [1, 2, 3, 4]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn export<O>(owner: O, dtype: DType, shape: &Shape) -> Result<*mut Self>
    where
        O: AsRef<[u8]> + Send + 'static,
    {
        // The owner is asked once: it may return other bytes each time.
        let find = |owner: &O| {
            let bytes = owner.as_ref();
            (bytes.as_ptr().cast_mut(), bytes.len())
        };
        Ok(place(DLDevice::CPU, owner, find, dtype, shape, Self::READ_ONLY)?)
    }
}

/// Exports memory of a GPU as [`DLManagedTensorVersioned::export`] does. `owner` keeps the memory, and nothing here touches it.
#[doc(hidden)]
pub fn export_on<O: Send + 'static>(
    device: DLDevice,
    owner: O,
    (start, len): (u64, usize),
    dtype: DType,
    shape: &Shape,
) -> Result<*mut DLManagedTensorVersioned> {
    let start = ptr::without_provenance_mut(start as usize);
    Ok(place(device, owner, |_| (start, len), dtype, shape, DLManagedTensorVersioned::READ_ONLY)?)
}

/// Exports bytes that `owner` keeps alive at an address that the caller knows, such as memory that another
/// process writes, too. `flags` are [`READ_ONLY`](DLManagedTensorVersioned::READ_ONLY) and
/// [`IS_COPIED`](DLManagedTensorVersioned::IS_COPIED).
///
/// # Errors
///
/// As [`DLManagedTensorVersioned::export`].
///
/// # Safety
///
/// - `data` points to `len` bytes that stay readable until `owner` is dropped, even if `owner` moves. They
///   stay writable, too, unless `flags` has [`READ_ONLY`](DLManagedTensorVersioned::READ_ONLY).
/// - The receiving library tolerates every other access to these bytes in the meantime.
pub(super) unsafe fn export_raw<O: Send + 'static>(
    owner: O,
    (data, len): (*mut u8, usize),
    dtype: DType,
    shape: &Shape,
    flags: u64,
) -> Result<*mut DLManagedTensorVersioned> {
    Ok(place(DLDevice::CPU, owner, |_| (data, len), dtype, shape, flags)?)
}

/// Moves the owner to its final place and asks it for its bytes there: they may lie within the owner.
fn place<O: Send + 'static>(
    device: DLDevice,
    owner: O,
    find: impl FnOnce(&O) -> (*mut u8, usize),
    dtype: DType,
    shape: &Shape,
    flags: u64,
) -> Result<*mut DLManagedTensorVersioned, TensorFault> {
    let element = DLDataType::of(dtype).ok_or(TensorFault::BytesLen)?;
    let expected = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
    let mut dims = dims_and_strides(shape)?;
    let shape_at = dims.as_mut_ptr();
    let tensor = DLTensor {
        data: ptr::null_mut(),
        device,
        ndim: shape.rank() as i32,
        dtype: element,
        shape: shape_at,
        strides: shape_at.wrapping_add(shape.rank()),
        byte_offset: 0,
    };
    let managed = DLManagedTensorVersioned {
        // The oldest minor version with all the fields and types in use here.
        version: DLPackVersion { major: MAJOR, minor: 0 },
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete::<O>),
        flags,
        dl_tensor: tensor,
    };
    let exported = Box::into_raw(Box::new(Exported { managed, dims, owner }));
    // SAFETY: it was made above, nobody else knows it, and the owner is not moved or changed before
    // `delete`. So what the owner lends is lent until then.
    let (data, len) = find(unsafe { &(*exported).owner });
    if len != expected {
        // SAFETY: it came from a box, and this is its last use.
        drop(unsafe { Box::from_raw(exported) });
        return Err(TensorFault::Len { len: len as u64, expected: expected as u64 });
    }
    // SAFETY: as above; `managed` is no part of what the owner lends.
    let managed = unsafe { &mut (*exported).managed };
    managed.manager_ctx = exported.cast::<c_void>();
    if len > 0 {
        managed.dl_tensor.data = data.cast();
    }
    // The structure is the allocation's first field. This pointer is valid for all of the allocation.
    Ok(exported.cast())
}

/// Drops the owner and the allocation of the structure.
// SAFETY: as the deleter of a structure that `place::<O>` made: called once, with its address. A panic of
// the owner's drop aborts, as it cannot unwind through C.
unsafe extern "C" fn delete<O: Send + 'static>(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the caller's promise.
    let exported = unsafe { (*managed).manager_ctx };
    // SAFETY: `place` put the address of its box there, and nobody uses it after this.
    drop(unsafe { Box::from_raw(exported.cast::<Exported<O>>()) });
}

/// Returns the lengths of the dimensions, then the strides in elements.
fn dims_and_strides(shape: &Shape) -> Result<Vec<i64>, TensorFault> {
    let rank = shape.rank();
    let mut list = vec![1i64; 2 * rank];
    for (to, dim) in list.iter_mut().zip(shape.dims()) {
        *to = i64::try_from(*dim).map_err(|_| TensorFault::Overflow)?;
    }
    for at in (1..rank).rev() {
        let below = list[rank + at].checked_mul(list[at].max(1));
        list[rank + at - 1] = below.ok_or(TensorFault::Overflow)?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests;
