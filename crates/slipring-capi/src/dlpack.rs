//! Tensors to and from other libraries, by the structure of `dlpack.h`.

#![allow(unsafe_code)]

use slipring::tensor::dlpack::{DLManagedTensorVersioned as Structure, Imported};
use slipring::{DType, Tensor};

use crate::context::{context_of, slipring_context};
use crate::failure::{Answer, guard};
use crate::half::Half;
use crate::handle::Handle;
use crate::pointers::Out;
use crate::status::slipring_status;
use crate::tensor::{Held, allocation, free_sent, slipring_tensor, tensor_of};

/// The structure of dlpack.h, version 1, which declares it: include that header to look inside.
pub struct DLManagedTensorVersioned(());

/// Hands a tensor to another library, read-only and without a copy. With SLIPRING_OK the structure has the tensor, whose handle is
/// gone: the library that takes it calls its deleter, on any thread. With any other status the handle stays yours, and the tensor is
/// shared; its memory may be gone with SLIPRING_LOAN_REVOKED, SLIPRING_OS, and for a shape without elements.
///
/// Of a tensor on loan the library reads the peer's memory, which a hostile peer can write meanwhile: slipring_tensor_copy() first,
/// unless you vouch for the peer.
///
/// SLIPRING_INVALID_TENSOR: dlpack.h has no strings; a bool is neither 0 nor 1; the tensor is on a GPU. SLIPRING_LOAN_REVOKED,
/// SLIPRING_WRONG_STATE, SLIPRING_OS, SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_to_dlpack(
    tensor: *mut slipring_tensor,
    managed: *mut *mut DLManagedTensorVersioned,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(managed) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let made = unsafe { tensor_of(tensor) }?.enter(|held| {
            check(held.share()?)?;
            let tensor = held.take_shared()?;
            // SAFETY: the header says that the caller vouches for the peer, and bools were checked.
            Ok(unsafe { tensor.into_dlpack_unchecked() }?)
        })?;
        out.set(made.cast());
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent(tensor) };
        Ok(())
    })
}

/// Checks what would fail, while the tensor is still the caller's.
fn check(tensor: &Tensor) -> Answer {
    if tensor.dtype() == DType::Bytes {
        return Err(slipring::Error::from(slipring::error::TensorFault::BytesLen).into());
    }
    if tensor.dtype() == DType::Bool {
        tensor.for_each_chunk::<bool>(|_| {})?;
    }
    tensor.bytes()?;
    Ok(())
}

/// Copies a tensor of another library into the context's pool, to be written further or sent. The structure is the library's:
/// its deleter is called before this function returns, whatever the status. NULL is SLIPRING_INVALID_TENSOR. `timeout` as for
/// slipring_tensor_new().
///
/// SLIPRING_INVALID_TENSOR: another version than 1, a device other than the host's memory, elements that are not contiguous and
/// row-major, a type that slipring lacks, a bool that is neither 0 nor 1. Otherwise as slipring_tensor_new().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_tensor_from_dlpack(
    context: *mut slipring_context,
    managed: *mut DLManagedTensorVersioned,
    timeout: i64,
    tensor: *mut *mut slipring_tensor,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a whole structure, which the caller gives away.
        let imported = unsafe { Imported::from_raw(managed.cast::<Structure>()) }?;
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(tensor) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let context = unsafe { context_of(context) }?;
        let (dtype, shape) = (imported.dtype(), *imported.shape());
        let mut copy = allocation(context, timeout)?.dtype(dtype, shape)?;
        imported.copy_to(&mut copy);
        dtype.check(&shape, &copy)?;
        out.set(Handle::make(Half::new(Held::Writable(copy))?));
        Ok(())
    })
}
