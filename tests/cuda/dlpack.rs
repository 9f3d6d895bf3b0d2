//! Tensors on a GPU come from other libraries by DLPack and are sent, and what cannot be sent is given back.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use slipring::cuda::{Device, Stream};
use slipring::error::{CudaFault, TensorFault};
use slipring::tensor::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
};
use slipring::{DType, ErrorKind, Result, Tensor};

use crate::framework::{Framework, end};
use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    alone, cuda_fault, device, exchange, hear, hear_out, is_closed, numbers, recv,
};
use crate::support::wait_until;

const MIB: usize = 1 << 20;

/// A tensor of a library that counts the calls of its deleter. Its structure has the address of what it owns.
#[repr(C)]
struct Exported<S> {
    structure: S,
    dims: [i64; 4],
    deleted: Arc<AtomicUsize>,
}

// SAFETY: the deleter of the structures that this file makes: called once, with their address.
unsafe extern "C" fn delete<S>(managed: *mut S) {
    // SAFETY: it is the first field of what was boxed.
    let exported = unsafe { Box::from_raw(managed.cast::<Exported<S>>()) };
    exported.deleted.fetch_add(1, Relaxed);
}

/// `[2, 8]` u32 on GPU 0.
fn tensor(start: u64) -> DLTensor {
    DLTensor {
        data: ptr::without_provenance_mut(start as usize),
        device: DLDevice::cuda(0),
        ndim: 2,
        dtype: DLDataType { code: 1, bits: 32, lanes: 1 },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    }
}

fn boxed<S>(structure: S, deleted: &Arc<AtomicUsize>) -> Box<Exported<S>> {
    Box::new(Exported { structure, dims: [2, 8, 8, 1], deleted: deleted.clone() })
}

/// The structure of version 1, changed by `alter`.
fn versioned(
    start: u64,
    deleted: &Arc<AtomicUsize>,
    alter: impl FnOnce(&mut DLManagedTensorVersioned),
) -> *mut DLManagedTensorVersioned {
    let structure = DLManagedTensorVersioned {
        version: DLPackVersion { major: 1, minor: 1 },
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete),
        flags: 0,
        dl_tensor: tensor(start),
    };
    let mut exported = boxed(structure, deleted);
    let dims = exported.dims.as_mut_ptr();
    exported.structure.dl_tensor.shape = dims;
    exported.structure.dl_tensor.strides = dims.wrapping_add(2);
    alter(&mut exported.structure);
    Box::into_raw(exported).cast()
}

/// The structure of before, without strides.
fn unversioned(start: u64, deleted: &Arc<AtomicUsize>) -> *mut DLManagedTensor {
    let structure = DLManagedTensor {
        dl_tensor: tensor(start),
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete),
    };
    let mut exported = boxed(structure, deleted);
    exported.structure.dl_tensor.shape = exported.dims.as_mut_ptr();
    Box::into_raw(exported).cast()
}

fn adopt(
    (device, stream): (&Device, &Stream),
    managed: *mut DLManagedTensorVersioned,
) -> Result<Tensor> {
    // SAFETY: the tests keep the memory as it is until the deleter is called, and give the structure away.
    unsafe { device.adopt_dlpack(managed, stream) }
}

#[test]
fn a_tensor_of_dlpack_is_read_elsewhere_and_deleted_once() {
    const TEST: &str = "a_tensor_of_dlpack_is_read_elsewhere_and_deleted_once";
    for kind in [Kind::Handles, Kind::Synchronized] {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                driver::begin(0);
                let device = device();
                let stream = device.stream().unwrap();
                let memory = Framework::of_kind(Kind::told(), 2 * MIB);
                let deleted = Arc::new(AtomicUsize::new(0));
                for at in 0..3_u32 {
                    memory.write(4096 * u64::from(at), &numbers(at, 16));
                }
                let start = memory.start;
                let plain = versioned(start, &deleted, |_| {});
                let marked = versioned(start, &deleted, |managed| {
                    managed.flags = DLManagedTensorVersioned::READ_ONLY;
                    managed.dl_tensor.byte_offset = 4096;
                });
                // SAFETY: it is given away.
                let old = unsafe {
                    DLManagedTensorVersioned::of_unversioned(unversioned(start + 8192, &deleted))
                };
                for managed in [plain, marked, old] {
                    link.send_tensor(adopt((&device, &stream), managed).unwrap()).unwrap();
                }
                hear(&mut link);
                device.trim().unwrap();
                assert_eq!(deleted.load(Relaxed), 0, "all are lent");
                link.send(b"go on").unwrap();
                hear_out(&mut link);
                drop(link);
                wait_until("each tensor is deleted", || {
                    device.trim().unwrap();
                    deleted.load(Relaxed) == 3
                });
                is_closed(&device);
                assert_eq!(deleted.load(Relaxed), 3);
                memory.free();
                drop(stream);
                end();
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensors: Vec<Tensor> = (0..3).map(|_| recv(&mut link)).collect();
                for (at, tensor) in (0u32..).zip(&tensors) {
                    assert_eq!(
                        (tensor.dtype(), tensor.shape().dims()),
                        (DType::Uint32, &[2, 8][..])
                    );
                    let copy = device.to_host(tensor, &stream).unwrap();
                    assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(at, 16));
                }
                link.send(b"read").unwrap();
                hear(&mut link);
                drop(tensors);
                link.close().unwrap();
            },
        );
    }
}

#[test]
fn each_tensor_of_dlpack_that_cannot_be_sent_is_refused_and_deleted_once() {
    const TEST: &str = "each_tensor_of_dlpack_that_cannot_be_sent_is_refused_and_deleted_once";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        driver::begin(0);
        let device = device();
        let stream = device.stream().unwrap();
        let memory = Framework::map(&[2 * MIB], true);
        let refused = |alter: fn(&mut DLManagedTensorVersioned)| {
            let deleted = Arc::new(AtomicUsize::new(0));
            let managed = versioned(memory.start, &deleted, alter);
            let error = adopt((&device, &stream), managed).unwrap_err();
            assert_eq!(deleted.load(Relaxed), 1, "{error}");
            error.kind().clone()
        };
        type Lie = (fn(&mut DLManagedTensorVersioned), TensorFault);
        let lies: [Lie; 13] = [
            (|it| it.version.major = 2, TensorFault::DlpackVersion { major: 2, minor: 1 }),
            (
                |it| it.dl_tensor.device = DLDevice::CPU,
                TensorFault::DlpackNotOnGpu { device_type: 1 },
            ),
            (
                |it| it.dl_tensor.device = DLDevice::CUDA_HOST,
                TensorFault::DlpackNotOnGpu { device_type: 3 },
            ),
            (
                |it| it.dl_tensor.device = DLDevice::cuda(1),
                TensorFault::DlpackOtherGpu { device_id: 1, ordinal: 0 },
            ),
            (
                |it| it.dl_tensor.device.device_id = -1,
                TensorFault::DlpackOtherGpu { device_id: -1, ordinal: 0 },
            ),
            (|it| it.dl_tensor.ndim = -1, TensorFault::DlpackRank { ndim: -1 }),
            (|it| it.dl_tensor.ndim = 99, TensorFault::Rank { rank: 99, max: 8 }),
            (
                |it| it.dl_tensor.dtype.code = 5,
                TensorFault::DlpackType { code: 5, bits: 32, lanes: 1 },
            ),
            (|it| it.dl_tensor.shape = ptr::null_mut(), TensorFault::DlpackNull { field: "shape" }),
            (|it| it.dl_tensor.data = ptr::null_mut(), TensorFault::DlpackNull { field: "data" }),
            (
                |it| it.dl_tensor.byte_offset = u64::MAX,
                TensorFault::DlpackOffset { offset: u64::MAX, len: 64 },
            ),
            // The lengths as strides.
            (
                |it| it.dl_tensor.strides = it.dl_tensor.shape,
                TensorFault::DlpackStride { at: 1, stride: 8, expected: 1 },
            ),
            (|it| it.dl_tensor.byte_offset = 128, TensorFault::Alignment { alignment: 256 }),
        ];
        for (lie, expected) in lies {
            assert_eq!(refused(lie), ErrorKind::Tensor(expected));
        }
        type Other = (fn(&mut DLManagedTensorVersioned), &'static str);
        let others: [Other; 4] = [
            (|it| it.dl_tensor.device.device_type = 13, "managed memory"),
            (
                |it| {
                    // SAFETY: the test's own structure has four numbers there.
                    unsafe { *it.dl_tensor.shape = 0 }
                },
                "no bytes",
            ),
            (|it| it.dl_tensor.byte_offset = 2 * MIB as u64, "no allocation"),
            (
                |it| {
                    // SAFETY: as above.
                    unsafe { *it.dl_tensor.shape = 1 << 17 };
                },
                "several allocations",
            ),
        ];
        for (lie, why) in others {
            let kind = refused(lie);
            let ErrorKind::Cuda(CudaFault::NotExportable { why: said }) = &kind else {
                panic!("{kind}: {why}");
            };
            assert!(said.contains(why), "{said}: {why}");
        }
        let null = adopt((&device, &stream), ptr::null_mut()).unwrap_err();
        let field = "DLManagedTensorVersioned";
        assert_eq!(*null.kind(), ErrorKind::Tensor(TensorFault::DlpackNull { field }));
        memory.free();
        drop(stream);
        end();
    });
    cuda.was_used_well();
}

#[test]
fn a_library_without_a_deleter_keeps_its_tensor() {
    const TEST: &str = "a_library_without_a_deleter_keeps_its_tensor";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        driver::begin(0);
        let device = device();
        let stream = device.stream().unwrap();
        let memory = Framework::alloc(4096);
        let deleted = Arc::new(AtomicUsize::new(0));
        let managed = versioned(memory.start, &deleted, |managed| managed.deleter = None);
        drop(adopt((&device, &stream), managed).unwrap());
        is_closed(&device);
        assert_eq!(deleted.load(Relaxed), 0);
        // SAFETY: nobody else frees it.
        unsafe { delete(managed) };
        memory.free();
        drop(stream);
        end();
    });
    cuda.was_used_well();
}

#[test]
fn the_library_orders_its_work_before_the_stream_that_it_is_told() {
    const TEST: &str = "the_library_orders_its_work_before_the_stream_that_it_is_told";
    let cuda = FakeCuda::new().delay(Duration::from_millis(30));
    alone(TEST, &cuda, || {
        driver::begin(0);
        let device = device();
        let stream = device.stream().unwrap();
        let memory = Framework::alloc(4096);
        let (theirs, deleted) = (driver::stream(), Arc::new(AtomicUsize::new(0)));
        // As `__dlpack__(stream=...)` does it.
        let event = driver::given(|event| driver::cuEventCreate(event, 2));
        assert_eq!(driver::cuMemsetD8Async(memory.start, 1, 64, theirs), 0);
        assert_eq!(driver::cuEventRecord(event, theirs), 0);
        let told = stream.dlpack_number() as usize;
        assert_eq!(driver::cuStreamWaitEvent(told, event, 0), 0);
        assert_eq!(driver::cuStreamQuery(theirs), driver::NOT_READY);
        let tensor = adopt((&device, &stream), versioned(memory.start, &deleted, |_| {})).unwrap();
        assert_eq!(driver::cuStreamQuery(theirs), 0, "its work is done");
        let copy = device.to_host(&tensor, &stream).unwrap();
        assert_eq!(copy.as_slice::<u32>().unwrap(), [0x0101_0101; 16]);
        drop(tensor);
        is_closed(&device);
        assert_eq!(deleted.load(Relaxed), 1);
        assert_eq!((driver::cuEventDestroy_v2(event), driver::cuStreamDestroy_v2(theirs)), (0, 0));
        memory.free();
        drop(stream);
        end();
    });
    cuda.was_used_well();
}

#[test]
fn streams_have_numbers_for_dlpack() {
    const TEST: &str = "streams_have_numbers_for_dlpack";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        let device = device();
        let (default, own) = (device.default_stream(), device.stream().unwrap());
        assert_eq!(default.dlpack_number(), 1);
        // SAFETY: 1 is CU_STREAM_LEGACY.
        let legacy = unsafe { device.stream_of_raw(ptr::without_provenance_mut(1)) };
        assert_eq!(legacy.dlpack_number(), 1);
        assert_eq!(own.dlpack_number(), own.as_raw().addr() as i64);
        // SAFETY: the only address is that of a stream that lives.
        let of = |number| unsafe { device.stream_of_dlpack(number) };
        for number in [None, Some(1), Some(2)] {
            assert_eq!(of(number).unwrap().as_raw(), default.as_raw());
        }
        assert_eq!(of(Some(own.dlpack_number())).unwrap().as_raw(), own.as_raw());
        let new = of(Some(-1)).unwrap();
        assert!(![default.as_raw(), own.as_raw()].contains(&new.as_raw()));
        assert!(new.is_idle().unwrap());
        for number in [0, -2, i64::MIN] {
            assert_eq!(cuda_fault(of(Some(number))), CudaFault::StreamNumber { number });
        }
    });
    cuda.was_used_well();
}
