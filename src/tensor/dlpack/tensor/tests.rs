//! Unit tests of `tensor::dlpack::tensor`.

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
