//! The structure of DLPack before version 1.0.

#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr;

use crate::tensor::dlpack::abi::{DLManagedTensorVersioned, DLPackVersion, DLTensor, MAJOR};

/// A tensor that a library hands over by its address, as DLPack before 1.0 has it. It cannot say that its bytes are
/// read-only.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor itself.
    pub dl_tensor: DLTensor,
    /// Data of the library that made the tensor, for `deleter`.
    pub manager_ctx: *mut c_void,
    /// Frees the tensor. `None` if there is nothing to free.
    // SAFETY: to be called once, by the holder of the tensor, with the tensor's own address.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

impl DLManagedTensorVersioned {
    /// Returns a structure of version 1 that owns one of before. The address is null if the other one is.
    ///
    /// # Safety
    ///
    /// `old` is null or points to a structure as `dlpack.h` describes it. The caller owns it and gives it away: nobody else
    /// calls its deleter, and nobody writes it before.
    pub unsafe fn of_unversioned(old: *mut DLManagedTensor) -> *mut Self {
        if old.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        let dl_tensor = unsafe { (*old).dl_tensor };
        Box::into_raw(Box::new(Self {
            version: DLPackVersion { major: MAJOR, minor: 0 },
            manager_ctx: old.cast(),
            deleter: Some(delete),
            flags: 0,
            dl_tensor,
        }))
    }
}

/// Frees the structure and the one that it owns.
// SAFETY: the deleter of what `of_unversioned` made: called once, with its address.
unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: it came from a box, and this is its last use.
    let managed = unsafe { Box::from_raw(managed) };
    let old = managed.manager_ctx.cast::<DLManagedTensor>();
    // SAFETY: `of_unversioned` put its address there, and nobody has called its deleter.
    if let Some(deleter) = unsafe { (*old).deleter } {
        // SAFETY: as above; this is the only call.
        unsafe { deleter(old) };
    }
}

#[cfg(test)]
mod tests;
