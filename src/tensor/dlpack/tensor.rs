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
mod tests {
    use super::*;
    use crate::error::{ErrorKind, TensorFault};
    use crate::{Address, Context, DType};

    fn back(raw: *mut DLManagedTensorVersioned) -> Imported {
        // SAFETY: `raw` comes from `into_dlpack` and is given away here.
        unsafe { Imported::from_raw(raw) }.unwrap()
    }

    #[test]
    fn stable_tensors_are_exported_and_come_back() {
        let context = Context::new().unwrap();
        let mut shared = context.alloc::<f32>([2, 3]).unwrap();
        shared.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut frozen = context.alloc_frozen::<f32>([2, 3]).unwrap();
        frozen.copy_from_slice(&shared);
        let private = Tensor::from_slice([2, 3], &shared).unwrap();
        for tensor in [shared.share().unwrap(), frozen.share().unwrap(), private] {
            let imported = back(tensor.into_dlpack().unwrap());
            assert!(imported.is_read_only());
            assert_eq!(imported.elements::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            let copy = Tensor::from_dlpack(&imported).unwrap();
            assert_eq!((copy.dtype(), copy.shape().dims()), (DType::Fp32, &[2, 3][..]));
        }
        // The library has dropped the last reference.
        assert_eq!(context.trim(), context.pool_bytes() + (1 << 20));
    }

    #[test]
    fn a_bool_that_is_none_is_not_exported() {
        let context = Context::new().unwrap();
        let mut frozen = context.allocation().frozen().dtype(DType::Bool, [3]).unwrap();
        frozen.copy_from_slice(&[0, 1, 7]);
        let refused = frozen.share().unwrap().into_dlpack().unwrap_err();
        let fault = TensorFault::Bool { index: 2, value: 7 };
        assert_eq!(*refused.kind(), ErrorKind::Tensor(fault));
    }

    #[test]
    fn a_loan_is_exported_by_those_who_vouch_and_goes_back_with_the_deleter() {
        let address = Address::fresh();
        let context = Context::with_options(crate::Options::new().pool_quota(1 << 20)).unwrap();
        let mut listener = context.listen(&address).unwrap();
        let connector = {
            let context = context.clone();
            std::thread::spawn(move || context.connect(&address).unwrap())
        };
        let mut near = listener.accept().unwrap();
        let mut far = connector.join().unwrap();
        for _ in 0..3 {
            near.send_tensor(context.alloc::<u8>([1 << 20]).unwrap()).unwrap();
            let tensor = far.recv_tensor().unwrap().unwrap();
            let refused = tensor.into_dlpack().unwrap_err();
            assert_eq!(*refused.kind(), ErrorKind::Tensor(TensorFault::Unstable));
            near.send_tensor(context.alloc::<u8>([1 << 20]).unwrap()).unwrap();
            let tensor = far.recv_tensor().unwrap().unwrap();
            // SAFETY: the sender is this test, which keeps no pointer.
            let imported = back(unsafe { tensor.into_dlpack_unchecked() }.unwrap());
            assert!(context.alloc::<u8>([1 << 20]).is_err(), "it is still on loan");
            assert_eq!(imported.bytes().len(), 1 << 20);
        }
        assert!(context.alloc::<u8>([1 << 20]).is_ok());
    }
}
