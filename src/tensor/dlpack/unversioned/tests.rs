//! Unit tests of `tensor::dlpack::unversioned`.

use super::*;
use crate::tensor::dlpack::Imported;
use crate::tensor::dlpack::abi::{DLDataType, DLDevice};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

// SAFETY: the tests give it away with a counter that outlives it.
unsafe extern "C" fn count(managed: *mut DLManagedTensor) {
    // SAFETY: as above.
    let deleted = unsafe { (*managed).manager_ctx }.cast::<AtomicUsize>();
    // SAFETY: as above.
    unsafe { &*deleted }.fetch_add(1, Relaxed);
}

#[test]
fn a_structure_of_before_is_read_and_given_back_once() {
    let (deleted, mut shape, mut bytes) = (AtomicUsize::new(0), [3_i64], [1_u8, 2, 3]);
    for (device, is_taken) in [(DLDevice::CPU, true), (DLDevice::cuda(0), false)] {
        let mut old = DLManagedTensor {
            dl_tensor: DLTensor {
                data: bytes.as_mut_ptr().cast(),
                device,
                ndim: 1,
                dtype: DLDataType { code: 1, bits: 8, lanes: 1 },
                shape: shape.as_mut_ptr(),
                strides: ptr::null_mut(),
                byte_offset: 0,
            },
            manager_ctx: (&raw const deleted).cast_mut().cast(),
            deleter: Some(count),
        };
        // SAFETY: it outlives its use, and is given away here.
        let raw = unsafe { DLManagedTensorVersioned::of_unversioned(&raw mut old) };
        // SAFETY: it was made above and is given away here.
        let imported = unsafe { Imported::from_raw(raw) };
        assert_eq!(imported.as_ref().is_ok_and(|it| it.bytes() == [1, 2, 3]), is_taken);
        drop(imported);
        assert_eq!(deleted.swap(0, Relaxed), 1);
    }
    // SAFETY: null is allowed.
    assert!(unsafe { DLManagedTensorVersioned::of_unversioned(ptr::null_mut()) }.is_null());
}
