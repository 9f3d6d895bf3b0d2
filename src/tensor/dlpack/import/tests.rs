//! Unit tests of `tensor::dlpack::import`.

use super::*;
use crate::error::{ErrorKind, TensorFault};
use crate::tensor::dlpack::abi::{DLDataType, DLPackVersion, DLTensor};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Tensors of another library, honest or lying.
struct UntrustedFd {
    managed: DLManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    data: Vec<u8>,
    deleted: AtomicUsize,
}

// SAFETY: the tests give it away in `UntrustedFd`s only, whose addresses it gets.
unsafe extern "C" fn count(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: as above.
    let deleted = unsafe { (*managed).manager_ctx }.cast::<AtomicUsize>();
    // SAFETY: it outlives the tensor, as `take` does not consume it.
    unsafe { &*deleted }.fetch_add(1, Relaxed);
}

impl UntrustedFd {
    /// `[2, 3]` u16.
    fn new() -> Self {
        let tensor = DLTensor {
            data: core::ptr::null_mut(),
            device: DLDevice::CPU,
            ndim: 2,
            dtype: DLDataType { code: 1, bits: 16, lanes: 1 },
            shape: core::ptr::null_mut(),
            strides: core::ptr::null_mut(),
            byte_offset: 0,
        };
        let managed = DLManagedTensorVersioned {
            version: DLPackVersion { major: 1, minor: 3 },
            manager_ctx: core::ptr::null_mut(),
            deleter: Some(count),
            flags: 0,
            dl_tensor: tensor,
        };
        let (shape, strides) = (vec![2, 3], vec![3, 1]);
        let deleted = AtomicUsize::new(0);
        Self { managed, shape, strides, data: (0..12).collect(), deleted }
    }

    fn of(shape: &[i64], strides: &[i64]) -> Self {
        let mut made = Self::new();
        made.managed.dl_tensor.ndim = shape.len() as i32;
        (made.shape, made.strides) = (shape.to_vec(), strides.to_vec());
        made
    }

    /// Sets the pointers, lets `lie` change the structure, and imports it.
    fn take(&mut self, lie: impl FnOnce(&mut DLManagedTensorVersioned)) -> Result<Imported> {
        let tensor = &mut self.managed.dl_tensor;
        tensor.data = self.data.as_mut_ptr().cast();
        tensor.shape = self.shape.as_mut_ptr();
        tensor.strides = self.strides.as_mut_ptr();
        self.managed.manager_ctx = (&raw mut self.deleted).cast();
        lie(&mut self.managed);
        // SAFETY: the vectors outlive the test's use of it; what the lies make is refused before it is
        // read, which is what the tests are about.
        unsafe { Imported::from_raw(&raw mut self.managed) }
    }

    fn deleted(&self) -> usize {
        self.deleted.load(Relaxed)
    }
}

fn fault(result: Result<Imported>) -> TensorFault {
    match result.unwrap_err().kind() {
        ErrorKind::Tensor(fault) => *fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_foreign_tensor_is_read_and_given_back_once() {
    let mut foreign = UntrustedFd::new();
    let imported = foreign.take(|_| {}).unwrap();
    assert_eq!((imported.dtype(), imported.shape().dims()), (DType::Uint16, &[2, 3][..]));
    assert_eq!(imported.bytes(), (0..12).collect::<Vec<u8>>());
    let mut copy = [0; 12];
    imported.copy_to(&mut copy);
    assert_eq!(copy, imported.bytes());
    assert_eq!(imported.elements::<u16>().unwrap().len(), 6);
    assert!(imported.elements::<i16>().is_err());
    assert!(!imported.is_read_only() && !imported.is_copied());
    drop(imported);
    assert_eq!(foreign.deleted(), 1);
}

#[test]
fn a_tensor_given_on_is_not_given_back() {
    let mut foreign = UntrustedFd::new();
    let raw = foreign
        .take(|managed| {
            managed.flags =
                DLManagedTensorVersioned::READ_ONLY | DLManagedTensorVersioned::IS_COPIED
        })
        .unwrap()
        .into_raw();
    assert_eq!(foreign.deleted(), 0);
    // SAFETY: `into_raw` gave it away.
    let again = unsafe { Imported::from_raw(raw) }.unwrap();
    assert!(again.is_read_only() && again.is_copied());
    std::thread::spawn(|| drop(again)).join().unwrap();
    assert_eq!(foreign.deleted(), 1);
}

#[test]
fn each_lie_is_refused_and_given_back_once() {
    type Lie = (fn(&mut DLManagedTensorVersioned), TensorFault);
    let lies: [Lie; 13] = [
        (|it| it.version.major = 2, TensorFault::DlpackVersion { major: 2, minor: 3 }),
        (|it| it.version.major = 0, TensorFault::DlpackVersion { major: 0, minor: 3 }),
        (|it| it.dl_tensor.device.device_type = 2, TensorFault::DlpackDevice { device_type: 2 }),
        (|it| it.dl_tensor.ndim = -1, TensorFault::DlpackRank { ndim: -1 }),
        (|it| it.dl_tensor.ndim = 9, TensorFault::Rank { rank: 9, max: 8 }),
        (|it| it.dl_tensor.ndim = i32::MAX, TensorFault::Rank { rank: i32::MAX as usize, max: 8 }),
        (
            |it| it.dl_tensor.dtype.lanes = 2,
            TensorFault::DlpackType { code: 1, bits: 16, lanes: 2 },
        ),
        (|it| it.dl_tensor.dtype.code = 5, TensorFault::DlpackType { code: 5, bits: 16, lanes: 1 }),
        (
            |it| it.dl_tensor.shape = core::ptr::null_mut(),
            TensorFault::DlpackNull { field: "shape" },
        ),
        (|it| it.dl_tensor.data = core::ptr::null_mut(), TensorFault::DlpackNull { field: "data" }),
        (
            |it| it.dl_tensor.byte_offset = u64::MAX,
            TensorFault::DlpackOffset { offset: u64::MAX, len: 12 },
        ),
        (
            |it| it.dl_tensor.device.device_type = i32::MIN,
            TensorFault::DlpackDevice { device_type: i32::MIN },
        ),
        (|it| it.dl_tensor.dtype.bits = 0, TensorFault::DlpackType { code: 1, bits: 0, lanes: 1 }),
    ];
    for (lie, expected) in lies {
        let mut foreign = UntrustedFd::new();
        assert_eq!(fault(foreign.take(lie)), expected);
        assert_eq!(foreign.deleted(), 1, "{expected}");
    }
    // SAFETY: null is allowed.
    let null = unsafe { Imported::from_raw(core::ptr::null_mut()) };
    let field = "DLManagedTensorVersioned";
    assert_eq!(fault(null), TensorFault::DlpackNull { field });
}

#[test]
fn bytes_that_would_wrap_around_the_address_space_are_refused() {
    let mut foreign = UntrustedFd::new();
    let mut offset = 0;
    let refused = foreign.take(|it| {
        offset = (it.dl_tensor.data.addr() as u64).wrapping_neg() - 8;
        it.dl_tensor.byte_offset = offset;
    });
    assert_eq!(fault(refused), TensorFault::DlpackOffset { offset, len: 12 });
    assert_eq!(foreign.deleted(), 1);
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let mut negative = UntrustedFd::of(&[2, -3], &[3, 1]);
    assert_eq!(fault(negative.take(|_| {})), TensorFault::Dimension { at: 1, value: -3 });
    for dims in [[i64::MAX, 2], [i64::MAX, 1], [0, i64::MAX], [1 << 32, 1 << 32]] {
        let mut huge = UntrustedFd::of(&dims, &[1, 1]);
        let refused = huge.take(|it| it.dl_tensor.dtype.bits = 32).is_err();
        assert_eq!((refused, huge.deleted()), (dims[0] != 0, 1));
    }
}

#[test]
fn only_row_major_order_without_gaps_is_taken() {
    for (dims, strides) in [
        (&[2, 3][..], &[3, 1][..]),
        (&[1, 6], &[-7, 1]),
        (&[6, 1], &[1, 0]),
        (&[1, 1], &[9, 9]),
        (&[0, 6], &[5, 5]),
        (&[], &[]),
    ] {
        let mut foreign = UntrustedFd::of(dims, strides);
        assert!(foreign.take(|_| {}).is_ok(), "{dims:?} {strides:?}");
        let mut foreign = UntrustedFd::of(dims, strides);
        let compact = foreign.take(|it| it.dl_tensor.strides = core::ptr::null_mut());
        assert!(compact.is_ok(), "{dims:?}");
    }
    let refused = |strides: &[i64]| fault(UntrustedFd::of(&[2, 3], strides).take(|_| {}));
    let stride = |at, stride, expected| TensorFault::DlpackStride { at, stride, expected };
    assert_eq!(refused(&[1, 2]), stride(1, 2, 1));
    assert_eq!(refused(&[4, 1]), stride(0, 4, 3));
    assert_eq!(refused(&[0, 1]), stride(0, 0, 3));
    assert_eq!(refused(&[-3, 1]), stride(0, -3, 3));
}

#[test]
fn an_offset_is_followed_to_any_address() {
    let mut foreign = UntrustedFd::of(&[3], &[1]);
    let imported = foreign.take(|it| it.dl_tensor.byte_offset = 5).unwrap();
    assert_eq!(imported.bytes(), [5, 6, 7, 8, 9, 10]);
    let even = imported.bytes().as_ptr().addr().is_multiple_of(2);
    assert_eq!(imported.elements::<u16>().is_ok(), even);
}

#[test]
fn an_empty_tensor_needs_no_data_and_a_missing_deleter_is_not_called() {
    let mut foreign = UntrustedFd::of(&[4, 0], &[0, 0]);
    let imported = foreign.take(|it| {
        it.dl_tensor.data = core::ptr::null_mut();
        it.deleter = None;
    });
    assert!(imported.unwrap().bytes().is_empty());
    assert_eq!(foreign.deleted(), 0);
}

#[test]
fn pinned_memory_is_memory_of_the_host() {
    let mut foreign = UntrustedFd::new();
    assert!(foreign.take(|it| it.dl_tensor.device = DLDevice::CUDA_HOST).is_ok());
}

#[test]
fn what_was_exported_is_imported() {
    let bytes: Vec<u8> = (0..24).collect();
    let at = bytes.as_ptr();
    let raw = DLManagedTensorVersioned::export(bytes, DType::Fp32, &Shape::from([3, 2])).unwrap();
    // SAFETY: it was made above and is given away here.
    let imported = unsafe { Imported::from_raw(raw) }.unwrap();
    assert_eq!((imported.dtype(), imported.shape().dims()), (DType::Fp32, &[3, 2][..]));
    assert_eq!(imported.bytes().as_ptr(), at);
    assert_eq!(imported.bytes(), (0..24).collect::<Vec<u8>>());
    assert!(imported.is_read_only());
}
