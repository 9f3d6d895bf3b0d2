//! A missing, old or limited driver, a call that fails, and a peer that lies about its memory each cause an error.

#![allow(unsafe_code)]

use slipring::cuda::{Device, PoolOptions, Stream};
use slipring::error::{CudaFault, Fault, GpuUuid, TensorFault};
use slipring::region::{CudaHandle, Registry, Source};
use slipring::tensor::{Descriptor, GpuHandle, GpuOrder, GpuPlace, Location};
use slipring::{Context, DType, ErrorKind, Options, Result, Shape, Tensor, TensorSet};

use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    Two, alone, calls, cuda_fault, driver_fault, exchange, hear_out, is_closed, pool_options, recv,
    whole_way,
};
use crate::support::other::{Other, run_here};
use crate::support::raw::{self, Lent};
use crate::support::{Stage, fault, pair_of, soon, wait_until};

/// `CUDA_ERROR_INVALID_VALUE`
const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`
const OUT_OF_MEMORY: u32 = 2;

fn device_and_stream(ordinal: u32) -> (Device, Stream) {
    let device = Device::new(ordinal).unwrap();
    let stream = device.stream().unwrap();
    (device, stream)
}

#[test]
fn a_machine_without_a_driver_says_so() {
    // Found by nobody, whatever this machine has.
    let test = "a_machine_without_a_driver_says_so";
    run_here(test, |_| {
        for _ in 0..2 {
            let error = Device::count().unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Cuda(CudaFault::NoLibrary));
            let said = std::error::Error::source(&error).unwrap().to_string();
            assert!(said.contains("libcuda.so.1"), "{said}");
        }
        assert_eq!(cuda_fault(Device::new(0)), CudaFault::NoLibrary);
        assert_eq!(cuda_fault(Device::all()), CudaFault::NoLibrary);
        assert_eq!(cuda_fault(Device::of_uuid(GpuUuid([0; 16]))), CudaFault::NoLibrary);
    });
    if std::path::Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: this machine has a driver");
        return;
    }
    Other::spawn_with(test, "", &[]).succeeds();
}

#[test]
fn a_driver_without_a_gpu_says_so() {
    alone("a_driver_without_a_gpu_says_so", &FakeCuda::new().without_device(), || {
        assert_eq!(cuda_fault(Device::count()), CudaFault::NoDevice);
        assert_eq!(cuda_fault(Device::new(0)), CudaFault::NoDevice);
    });
}

#[test]
fn a_driver_that_is_too_old_says_both_versions() {
    alone("a_driver_that_is_too_old_says_both_versions", &FakeCuda::new().version(11_020), || {
        let error = Device::count().unwrap_err();
        assert_eq!(error.to_string(), "the driver speaks CUDA 11.2, 11.4 is needed");
    });
}

#[test]
fn a_call_that_is_missing_is_named() {
    alone("a_call_that_is_missing_is_named", &FakeCuda::new().without_ipc_events(), || {
        let fault = CudaFault::MissingSymbol { symbol: "cuIpcGetEventHandle" };
        assert_eq!(cuda_fault(Device::count()), fault);
    });
}

#[test]
fn a_gpu_that_shares_nothing_is_refused() {
    alone("a_gpu_that_shares_nothing_is_refused", &FakeCuda::new().without_ipc(), || {
        assert_eq!(Device::count().unwrap(), 1);
        assert_eq!(cuda_fault(Device::new(0)), CudaFault::NoIpc { ordinal: 0 });
    });
}

#[test]
fn a_forked_child_is_told_that_it_is_one() {
    let cuda = FakeCuda::new();
    alone("a_forked_child_is_told_that_it_is_one", &cuda, || {
        let device = Device::new(0).unwrap();
        let (pool, stream) = (device.pool(), device.stream().unwrap());
        let draft = pool.alloc::<u8>([10], &stream).unwrap();
        // Something of the pool's is on loan.
        let context = Context::new().unwrap();
        let (mut near, mut far) = crate::support::pair_of(&context, &Context::new().unwrap());
        near.send_tensor(pool.alloc::<u8>([10], &stream).unwrap().share().unwrap()).unwrap();
        let lent = far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        let view = device.open(&lent, &stream).unwrap();
        // SAFETY: the child calls nothing of libc's but `_exit`, and what it drops does nothing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = |kind: &ErrorKind| *kind == ErrorKind::Forked;
            let told = [
                forked(Device::count().unwrap_err().kind()),
                forked(device.stream().unwrap_err().kind()),
                forked(draft.share().unwrap_err().kind()),
                forked(pool.alloc::<u8>([1], &stream).unwrap_err().kind()),
                forked(pool.trim().unwrap_err().kind()),
                forked(device.trim().unwrap_err().kind()),
                forked(device.open(&lent, &stream).unwrap_err().kind()),
            ];
            drop((view, lent, near, far));
            drop((pool, stream, device));
            // SAFETY: it ends the process.
            unsafe { libc::_exit(told.iter().filter(|told| !**told).count() as i32) };
        }
        let mut status = 0;
        // SAFETY: the child is this process's, and `status` has room for an int.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child was not told, or died");
    });
    cuda.was_used_well();
}

#[test]
fn devices_are_told_apart() {
    let cuda = FakeCuda::new().devices(2).uuid("0123456789abcdef0123456789abcd00");
    alone("devices_are_told_apart", &cuda, || {
        let [first, second] = <[Device; 2]>::try_from(Device::all().unwrap()).unwrap();
        assert_eq!(first.uuid().to_string(), "GPU-01234567-89ab-cdef-0123-456789abcd00");
        assert_eq!((second.ordinal(), second.uuid().0[15]), (1, 1));
        assert!(first.total_memory() > 0 && !first.name().is_empty());
        assert!(first.can_access(&second).unwrap() && first.can_access(&first).unwrap());
        let found = Device::of_uuid(second.uuid()).unwrap().unwrap();
        assert_eq!(found.ordinal(), 1);
        assert!(Device::of_uuid(GpuUuid([9; 16])).unwrap().is_none());
        let fault = CudaFault::Ordinal { ordinal: 2, count: 2 };
        assert_eq!(cuda_fault(Device::new(2)), fault);
        // A stream of one device is refused on the other.
        let (pool, stream) = (first.pool(), second.stream().unwrap());
        assert_eq!(cuda_fault(pool.alloc::<u8>([1], &stream)), CudaFault::OtherStream);
        let own = first.stream().unwrap();
        let mut draft = pool.alloc::<u8>([1], &own).unwrap();
        draft.fill(1).unwrap();
        let tensor = draft.share().unwrap();
        let (is, asked) = (first.uuid(), second.uuid());
        let one = CudaFault::OneDevice { is, asked };
        assert_eq!(cuda_fault(second.open(&tensor, &stream)), one);
        let other = CudaFault::OtherDevice { is, asked };
        assert_eq!(cuda_fault(second.part(&tensor, 0, DType::Uint8, [1])), other);
        assert_eq!(cuda_fault(first.open(&tensor, &stream)), CudaFault::OtherStream);
        let host = Tensor::from_slice([1], &[1u8]).unwrap();
        assert_eq!(cuda_fault(first.open(&host, &own)), CudaFault::OnHost);
    });
    cuda.was_used_well();
}

#[test]
fn a_gpu_without_memory_is_an_error_and_what_is_idle_is_given_up_first() {
    let test = "a_gpu_without_memory_is_an_error_and_what_is_idle_is_given_up_first";
    let cuda = FakeCuda::new().bytes(16 << 20);
    alone(test, &cuda, || {
        let device = Device::new(0).unwrap();
        let stream = device.stream().unwrap();
        let pool = device.pool_with(pool_options().chunk(4 << 20)).unwrap();
        let drafts: Vec<_> =
            (0..4).map(|_| pool.alloc::<u8>([4 << 20], &stream).unwrap()).collect();
        assert_eq!(pool.bytes().unwrap(), 16 << 20);
        let refused = pool.alloc::<u8>([1], &stream);
        assert_eq!(driver_fault(refused), ("cuMemAlloc_v2", OUT_OF_MEMORY));
        drop(drafts);
        stream.synchronize().unwrap();
        // Four chunks that nobody uses make room for a long one.
        let long = pool.alloc::<u8>([16 << 20], &stream).unwrap();
        assert_eq!((pool.bytes().unwrap(), long.byte_len()), (16 << 20, 16 << 20));
        drop(long);
        stream.synchronize().unwrap();
        pool.trim().unwrap();
        assert_eq!(pool.bytes().unwrap(), 0);
        let chunk = |chunk, quota| device.pool_with(PoolOptions::new().chunk(chunk).quota(quota));
        assert!(matches!(chunk(0, 1 << 30).unwrap_err().kind(), ErrorKind::InvalidOption { .. }));
        assert!(chunk(1 << 20, 1 << 20).is_err() && chunk(u64::MAX, u64::MAX).is_err());
        let huge = pool.alloc::<u8>([usize::MAX], &stream).unwrap_err();
        assert_eq!(*huge.kind(), ErrorKind::Tensor(TensorFault::Overflow));
        let bytes = pool.alloc_dtype(DType::Bytes, [1], &stream).unwrap_err();
        assert_eq!(*bytes.kind(), ErrorKind::Tensor(TensorFault::BytesLen));
    });
    cuda.was_used_well();
}

#[test]
fn every_call_that_fails_is_an_error_and_nothing_is_misused() {
    const TEST: &str = "every_call_that_fails_is_an_error_and_nothing_is_misused";
    fn way() -> Result<()> {
        let device = Device::new(0)?;
        whole_way(&device, &device.pool())
    }
    // A failure at the end of something is not returned: the library waits instead, or polls later.
    let may_be_silent = |name: &str| {
        [
            "Push",
            "Record",
            "Synchronize",
            "EventCreate",
            "CaptureMode",
            "StreamQuery",
            "GetEventHandle",
        ]
        .iter()
        .any(|part| name.contains(part))
    };
    run_here(TEST, |call| {
        match way() {
            Ok(()) => assert!(call == "none" || may_be_silent(call), "{call} is silent"),
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with(call) && text.ends_with("(999)"), "{text}");
            }
        }
        // Where nothing was initialised it fails, and gives none.
        let mut current = 0;
        crate::support::cuda_driver::cuCtxGetCurrent(&mut current);
        assert_eq!(current, 0, "a context stays behind");
    });
    let whole = FakeCuda::new();
    if !whole.tells(TEST) {
        return;
    }
    Other::spawn_with(TEST, "none", &whole.command_env()).succeeds();
    let trace = whole.trace();
    let mut names: Vec<&str> = trace.iter().map(|call| &*call.name).collect();
    names.sort_unstable();
    names.dedup();
    // A call that ends something has no caller to tell: its failure is logged, and so is that of a poll of an event. The
    // first call is made by the test itself.
    let silent = |name: &&str| {
        ["GetCurrent", "Free", "Destroy", "Release", "Pop", "EventQuery", "GetErrorName"]
            .iter()
            .any(|part| name.contains(part))
    };
    for name in names.into_iter().filter(|name| !silent(name)) {
        let count = trace.iter().filter(|call| call.name == name).count();
        // The first, one in the middle, the last but a few.
        for nth in [1, count / 2 + 1] {
            let cuda = FakeCuda::new().fail(&format!("{name}:999:{nth}"));
            Other::spawn_with(TEST, name, &cuda.command_env()).succeeds();
            assert_eq!(cuda.misuses(), [""; 0], "{name} {nth}");
        }
    }
}

/// Returns the description of a peer's GPU memory.
fn place(device: GpuUuid) -> GpuPlace {
    let (memory, order) =
        (GpuHandle::Ipc([2; 64]), GpuOrder::Events { ready: [3; 64], done: [4; 64] });
    GpuPlace { device, memory, allocation: 4096, offset: 0, len: 64, order }
}

pub fn description(place: &GpuPlace) -> Vec<u8> {
    let (dtype, shape) = (DType::Fp32, Shape::from([16]));
    Descriptor { name: "", dtype, shape, place: Location::Gpu(&place.encode()) }.encode().unwrap()
}

pub fn post(peer: &mut crate::support::raw::RawPeer, attachments: &[Lent], description: &[u8]) {
    let mut payload: Vec<u8> = attachments.iter().flat_map(Lent::encode).collect();
    payload.extend(description);
    let header = 7 | (attachments.len() as u64) << 16 | 1 << 24 | (payload.len() as u64) << 32;
    peer.publish(header, &payload);
}

pub const TICKET: Lent = Lent { segment: 1, slot: 0, offset: 0, len: 64, generation: 5 };

#[test]
fn a_place_that_lies_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let honest = place(GpuUuid([1; 16]));
    let two = [TICKET, Lent { slot: 1, ..TICKET }];
    let range =
        |offset, len, allocation| Fault::Tensor(TensorFault::GpuRange { offset, len, allocation });
    let beyond = |offset, len, allocation| GpuPlace { offset, len, allocation, ..honest };
    let count = Fault::Tensor(TensorFault::Count { count: 1, expected: 0 });
    let none = count;
    let lies = [
        (&two[..], description(&beyond(4096, 64, 4096)), range(4096, 64, 4096)),
        (&two, description(&beyond(u64::MAX, 64, 4096)), range(u64::MAX, 64, 4096)),
        (&two, description(&beyond(64, u64::MAX, u64::MAX)), range(64, u64::MAX, u64::MAX)),
        (
            &two,
            description(&beyond(0, 60, 4096)),
            Fault::Tensor(TensorFault::Len { len: 60, expected: 64 }),
        ),
        (
            &two,
            description(&GpuPlace { offset: 64, ..honest }),
            Fault::Tensor(TensorFault::Alignment { alignment: 256 }),
        ),
        // A place has two attachments.
        (&two[..1], description(&honest), count),
        (&[], description(&honest), none),
        (
            &two,
            description(&honest)[..100].to_vec(),
            Fault::Tensor(TensorFault::Description { len: 100, index: 0, needed: 8 + 240 }),
        ),
    ];
    for (attachments, description, expected) in lies {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        post(&mut peer, attachments, &description);
        assert_eq!(fault(link.receiver().recv_tensors()), expected);
        crate::support::stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

/// A tensor that shares the loans of the one at `of`.
fn part(of: u32, place: &GpuPlace) -> Vec<u8> {
    let (dtype, shape, part) = (DType::Fp32, Shape::from([16]), &place.encode_part());
    Descriptor { name: "", dtype, shape, place: Location::GpuPart { of, part } }.encode().unwrap()
}

#[test]
fn a_tensor_that_shares_the_loans_of_another_one_and_lies_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let whole = place(GpuUuid([1; 16]));
    let word = GpuPlace { order: GpuOrder::Word { offset: 8, value: 3 }, ..whole };
    let two = [TICKET, Lent { slot: 1, generation: 6, ..TICKET }];
    let at = |offset| GpuPlace { offset, ..whole };
    let by = |offset| GpuPlace { order: GpuOrder::Word { offset, value: 3 }, ..whole };
    let field = |of| Fault::Tensor(TensorFault::Field { field: "tensor.of", value: u64::from(of) });
    let range = |offset, len| {
        Fault::Tensor(TensorFault::GpuRange { offset, len, allocation: whole.allocation })
    };
    let alignment = |alignment| Fault::Tensor(TensorFault::Alignment { alignment });
    let inline = [2, 1, 2, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7].to_vec();
    let after = |first: &GpuPlace, then: Vec<u8>| [description(first), then].concat();
    let lies = [
        // Itself, one behind it, one that is not there, one of the host, another part.
        (after(&whole, part(1, &whole)), field(1)),
        (after(&whole, part(2, &whole)), field(2)),
        (after(&whole, part(u32::MAX, &whole)), field(u32::MAX)),
        ([inline, description(&whole), part(0, &whole)].concat(), field(0)),
        (after(&whole, [part(0, &whole), part(1, &whole)].concat()), field(1)),
        // Beyond the allocation, between its multiples of 256, of another length than its shape.
        (after(&whole, part(0, &at(4096))), range(4096, 64)),
        (after(&whole, part(0, &at(u64::MAX - 255))), range(u64::MAX - 255, 64)),
        (after(&whole, part(0, &GpuPlace { len: u64::MAX, ..at(256) })), range(256, u64::MAX)),
        (after(&whole, part(0, &at(128))), alignment(256)),
        (
            after(&whole, part(0, &GpuPlace { len: 60, ..whole })),
            Fault::Tensor(TensorFault::Len { len: 60, expected: 64 }),
        ),
        (after(&word, part(0, &by(4096))), range(4096, 8)),
        (after(&word, part(0, &by(12))), alignment(8)),
    ];
    for (description, expected) in lies {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        post(&mut peer, &two, &description);
        assert_eq!(fault(link.receiver().recv_tensors()), expected);
        crate::support::stays_faulty(&mut link, expected);
    }
    // Without attachments, and alone.
    let (mut link, mut peer) = stage.link();
    post(&mut peer, &[], &part(0, &whole));
    assert_eq!(fault(link.receiver().recv_tensor()), field(0));
    // The same bytes twice are no lie. The loans are back when all are dropped.
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    post(&mut peer, &two, &after(&whole, [part(0, &whole), part(0, &at(256))].concat()));
    let set = link.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
    let returns = |peer: &crate::support::raw::RawPeer| {
        [0, 8].map(|slot| peer.theirs().load(crate::support::raw::RETURNS + slot))
    };
    let mut tensors: Vec<Tensor> = set.into_iter().map(|(_, tensor)| tensor).collect();
    assert_eq!(tensors.len(), 3);
    while tensors.len() > 1 {
        tensors.remove(0);
        assert_eq!(returns(&peer), [0, 0], "{} are left", tensors.len());
    }
    drop(tensors);
    assert_eq!(returns(&peer), [5, 6]);
    stage.is_undisturbed();
}

#[test]
fn a_message_of_too_many_words_ends_the_link_and_is_not_sent() {
    const TEST: &str = "a_message_of_too_many_words_ends_the_link_and_is_not_sent";
    const MOST: u64 = 4096;
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    alone(TEST, &cuda, || {
        let (device, stream) = device_and_stream(0);
        let words = TensorFault::Words { count: MOST as usize + 1, max: MOST as usize };
        let mut stage = Stage::new(Options::new());
        for count in [MOST, MOST + 1] {
            let by = |value| {
                let order = GpuOrder::Word { offset: 8, value };
                GpuPlace { order, ..place(GpuUuid([1; 16])) }
            };
            let mut described = description(&by(0));
            // Each word twice.
            (0..2 * count).for_each(|at| described.extend(part(0, &by(at % count))));
            let (mut link, mut peer) = stage.link();
            peer.send_segment(1, 4 << 20);
            peer.pool[0].1.write(4096, &described);
            let (len, second) = (described.len() as u64, Lent { slot: 1, generation: 6, ..TICKET });
            let last = Lent { slot: 2, generation: 7, offset: 4096, len, ..TICKET };
            let payload: Vec<u8> = [TICKET, second, last].iter().flat_map(Lent::encode).collect();
            let header = 7 | 3 << 16 | 1 << 24 | (payload.len() as u64) << 32 | raw::POOLED;
            peer.publish(header, &payload);
            if count == MOST {
                let set = link.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
                assert_eq!(set.len() as u64, 1 + 2 * count);
            } else {
                let came = link.receiver().recv_tensors().map(|set| set.map(|set| set.len()));
                assert_eq!(fault(came), Fault::Tensor(words));
            }
        }
        stage.is_undisturbed();
        // A sender has the same limit, and the loans of what it does not send are back.
        let options = pool_options().chunk(4 << 20).quota(4 << 20);
        let pool = device.pool_with(options).unwrap();
        let make = || pool.alloc::<u8>([1], &stream).unwrap().share().unwrap();
        let (mut near, mut far) = pair_of(&Context::new().unwrap(), &Context::new().unwrap());
        let mut set = TensorSet::new();
        (0..MOST).for_each(|_| set.push(make()));
        near.sender().send_tensors_deadline(&set, soon()).unwrap();
        let came = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
        let views = device.open_all(came.iter().map(|(_, tensor)| tensor), &stream).unwrap();
        assert_eq!(views.len() as u64, MOST);
        drop((came, views));
        set.push(make());
        let refused = near.sender().send_tensors_deadline(&set, soon()).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::Tensor(words));
        drop(set);
        wait_until("all are back", || pool.alloc::<u8>([3 << 20], &stream).is_ok());
        drop((pool, near, far));
        is_closed(&device);
    });
    cuda.was_used_well();
    if cuda.tells(TEST) {
        assert_eq!(calls(&cuda.trace(), "cuStreamWaitValue64_v2") as u64, MOST);
    }
}

#[test]
fn forged_handles_are_errors_and_their_tickets_go_back() {
    let cuda = FakeCuda::new();
    alone("forged_handles_are_errors_and_their_tickets_go_back", &cuda, || {
        let device = Device::new(0).unwrap();
        let stream = device.stream().unwrap();
        let mut stage = Stage::new(Options::new());
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        let two = [TICKET, Lent { slot: 1, generation: 6, ..TICKET }];
        for uuid in [device.uuid(), GpuUuid([9; 16])] {
            post(&mut peer, &two, &description(&place(uuid)));
            let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            let refused = device.open(&tensor, &stream);
            if uuid == device.uuid() {
                assert_eq!(driver_fault(refused), ("cuIpcOpenMemHandle_v2", INVALID_VALUE));
            } else {
                assert_eq!(cuda_fault(refused), CudaFault::HiddenDevice { is: uuid });
            }
            drop(tensor);
            let returned = [0, 8].map(|at| peer.theirs().load(crate::support::raw::RETURNS + at));
            assert_eq!(returned, [5, 6]);
        }
        stage.is_undisturbed();
    });
    cuda.was_used_well();
}

#[test]
fn an_allocation_that_is_shorter_than_said_is_refused_and_closed() {
    const TEST: &str = "an_allocation_that_is_shorter_than_said_is_refused_and_closed";
    // One process exports, and tells the other by a plain message; that one lets a raw peer lie about it.
    let cuda = FakeCuda::new();
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let (device, stream) = device_and_stream(0);
            let pool = device.pool_with(pool_options().chunk(2 << 20)).unwrap();
            let mut draft = pool.alloc::<f32>([16], &stream).unwrap();
            draft.write(&[0.5; 16]).unwrap();
            link.send_tensor(draft.share().unwrap()).unwrap();
            hear_out(&mut link);
            drop(link);
            crate::support::wait_until("all is closed", || {
                pool.trim().unwrap();
                pool.bytes().unwrap() == 0
            });
        },
        |mut honest| {
            let (device, stream) = device_and_stream(0);
            let tensor = recv(&mut honest);
            // The attachment holds the description of the honest owner. The liar claims more bytes.
            let told = *tensor.gpu_place().unwrap();
            let mut stage = Stage::new(Options::new());
            let (mut link, mut peer) = stage.link();
            peer.send_segment(1, 1 << 20);
            let lie = GpuPlace { allocation: told.allocation + 1, ..told };
            post(&mut peer, &[TICKET, Lent { slot: 1, ..TICKET }], &description(&lie));
            let lying = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            let len = told.allocation;
            let fault = CudaFault::Allocation { len, claimed: len + 1 };
            assert_eq!(cuda_fault(device.open(&lying, &stream)), fault);
            // The honest one is read all the same, before and after.
            let copy = device.to_host(&tensor, &stream).unwrap();
            assert_eq!(copy.as_slice::<f32>().unwrap(), [0.5; 16]);
            assert_eq!(cuda_fault(device.open(&lying, &stream)), fault);
            // A forged event behind a true allocation.
            let order = GpuOrder::Events { ready: [7; 64], done: [8; 64] };
            let forged = GpuPlace { order, ..told };
            post(&mut peer, &[TICKET, Lent { slot: 1, ..TICKET }], &description(&forged));
            let forged = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            let refused = driver_fault(device.open(&forged, &stream));
            assert_eq!(refused, ("cuIpcOpenEventHandle", INVALID_VALUE));
            drop((lying, forged, link, tensor));
            honest.close().unwrap();
        },
    );
}

#[test]
fn a_region_of_a_gpu_is_checked_and_read() {
    const TEST: &str = "a_region_of_a_gpu_is_checked_and_read";
    let cuda = FakeCuda::new();
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let (device, stream) = device_and_stream(0);
            let pool = device.pool_with(pool_options().chunk(2 << 20)).unwrap();
            let mut draft = pool.alloc::<f32>([16], &stream).unwrap();
            draft.write(&[0.5; 16]).unwrap();
            let tensor = draft.share().unwrap();
            link.send_tensor(&tensor).unwrap();
            hear_out(&mut link);
        },
        |mut link| {
            let (device, stream) = device_and_stream(0);
            let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            let told = *tensor.gpu_place().unwrap();
            let handle = CudaHandle { raw: told.ipc_handle().unwrap(), device: 0 };
            let registry = Registry::new().unwrap();
            registry.register("gpu", Source::Cuda(handle), told.offset, told.len).unwrap();
            let region = device.lease(registry.lease("gpu", 0, told.len).unwrap()).unwrap();
            assert_eq!((region.len(), region.is_empty()), (64, false));
            let mut bytes = [0; 8];
            region.read_at(56, &mut bytes, &stream).unwrap();
            assert_eq!(bytes, [0, 0, 0, 0x3f, 0, 0, 0, 0x3f]);
            let range = TensorFault::GpuRange { offset: 57, len: 8, allocation: 64 };
            let beyond = region.read_at(57, &mut bytes, &stream).unwrap_err();
            assert_eq!(*beyond.kind(), ErrorKind::Tensor(range));
            region.write_at(0, &1f32.to_le_bytes(), &stream).unwrap();
            (0..100).for_each(|_| drop(region.view(DType::Fp32, [2, 2], 0, &stream).unwrap()));
            let view = region.view(DType::Fp32, [2, 2], 0, &stream).unwrap();
            let copy = view.to_host().unwrap();
            assert_eq!(copy.as_slice::<f32>().unwrap(), [1.0, 0.5, 0.5, 0.5]);
            assert!(region.view(DType::Fp32, [17], 0, &stream).is_err());
            // The lease lasts as long as a view of it.
            drop(region);
            let leased = registry.unregister("gpu").unwrap();
            assert!(leased > 0);
            drop(view);
            // Too long, forged, wrapping, of the host, unknown.
            let len = told.allocation;
            let fault = CudaFault::Allocation { len, claimed: len + 1 };
            assert_eq!(cuda_fault(device.region(&handle, 0, len + 1)), fault);
            let wrapping = device.region(&handle, u64::MAX, 2).unwrap_err();
            assert_eq!(*wrapping.kind(), ErrorKind::Tensor(TensorFault::Overflow));
            let forged = CudaHandle { raw: [1; 64], device: 0 };
            assert_eq!(
                driver_fault(device.region(&forged, 0, 1)),
                ("cuIpcOpenMemHandle_v2", INVALID_VALUE)
            );
            let memory = rustix::fs::memfd_create("host", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&memory, 4096).unwrap();
            let fd = std::os::fd::AsFd::as_fd(&memory);
            registry.register("host", Source::Memfd(fd), 0, 4096).unwrap();
            assert_eq!(
                cuda_fault(device.lease(registry.lease("host", 0, 1).unwrap())),
                CudaFault::OnHost
            );
            drop(tensor);
            // Nothing tells the owner of a region: they agree upon it.
            is_closed(&device);
            link.close().unwrap();
        },
    );
    if cuda.tells(TEST) {
        let made = cuda.trace().iter().filter(|call| call.name == "cuEventCreate").count();
        assert!(made < 20, "{made} events for 100 views");
    }
}

#[test]
fn a_view_travels_by_dlpack_and_its_loan_goes_back_with_the_deleter() {
    let cuda = FakeCuda::new();
    alone("a_view_travels_by_dlpack_and_its_loan_goes_back_with_the_deleter", &cuda, || {
        let context = Context::new().unwrap();
        let (mut near, mut far) = crate::support::pair_of(&context, &Context::new().unwrap());
        let device = Device::new(0).unwrap();
        let stream = device.stream().unwrap();
        let pool = device.pool_with(pool_options().chunk(2 << 20).quota(2 << 20)).unwrap();
        let draft = pool.alloc::<f32>([512, 1024], &stream).unwrap();
        let address = draft.device_ptr();
        near.send_tensor(draft.share().unwrap()).unwrap();
        let tensor = far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        let raw = device.open(&tensor, &stream).unwrap().into_dlpack().unwrap();
        drop(tensor);
        // SAFETY: it was made above, and is ended below.
        let seen = unsafe { &(*raw).dl_tensor };
        assert_eq!((seen.device.device_type, seen.device.device_id), (2, 0));
        assert_eq!((seen.data as u64, seen.ndim, seen.byte_offset), (address, 2, 0));
        assert!(pool.alloc::<u8>([1], &stream).is_err(), "the library still has it");
        // SAFETY: as above.
        let deleter = unsafe { (*raw).deleter }.unwrap();
        // SAFETY: it is called once.
        unsafe { deleter(raw) };
        stream.synchronize().unwrap();
        assert!(pool.alloc::<u8>([1], &stream).is_ok());
    });
    cuda.was_used_well();
}

#[test]
fn an_error_that_says_nothing_of_the_work_is_not_taken_for_its_end() {
    // The driver answers queries by CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while another thread captures a graph.
    let cuda =
        FakeCuda::new().delay(std::time::Duration::from_millis(50)).fail("cuEventQuery:900:1:3");
    alone("an_error_that_says_nothing_of_the_work_is_not_taken_for_its_end", &cuda, || {
        let device = Device::new(0).unwrap();
        let stream = device.stream().unwrap();
        let pool = device.pool_with(pool_options().chunk(2 << 20).quota(2 << 20)).unwrap();
        let mut draft = pool.alloc::<u8>([2 << 20], &stream).unwrap();
        draft.fill(1).unwrap();
        drop(draft);
        assert!(pool.alloc::<u8>([2 << 20], &stream).is_err(), "it is still being written");
        stream.synchronize().unwrap();
        crate::support::wait_until("the driver tells", || {
            pool.alloc::<u8>([2 << 20], &stream).is_ok()
        });
    });
}

#[test]
fn one_handle_told_of_two_gpus_is_opened_on_each_or_not_at_all() {
    const TEST: &str = "one_handle_told_of_two_gpus_is_opened_on_each_or_not_at_all";
    let cuda = FakeCuda::new().devices(2);
    if !cuda.is_there(TEST) {
        return;
    }
    // The driver without a GPU calls the lie a misuse.
    Two::start(
        TEST,
        &cuda,
        |mut link| {
            for at in 0..2 {
                let (device, stream) = device_and_stream(at);
                let pool = device.pool_with(pool_options().chunk(2 << 20)).unwrap();
                let mut draft = pool.alloc::<f32>([16], &stream).unwrap();
                draft.write(&[0.5; 16]).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
            }
            hear_out(&mut link);
        },
        |mut honest| {
            let ((device, stream), (other, others)) = (device_and_stream(0), device_and_stream(1));
            let first = recv(&mut honest);
            let second = recv(&mut honest);
            let (told, events) = (*first.gpu_place().unwrap(), *second.gpu_place().unwrap());
            let mut stage = Stage::new(Options::new());
            let (mut link, mut peer) = stage.link();
            peer.send_segment(1, 1 << 20);
            let two = [TICKET, Lent { slot: 1, ..TICKET }];
            post(&mut peer, &two, &description(&told));
            let true_one = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            let view = device.open(&true_one, &stream).unwrap();
            let lie = GpuPlace { device: other.uuid(), order: events.order, ..told };
            post(&mut peer, &two, &description(&lie));
            let lying = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            // CUDA opens a handle on any GPU; what it must not give is another GPU's address.
            if let Ok(opened) = other.open(&lying, &others) {
                assert_ne!(opened.device_ptr(), view.device_ptr());
            }
            drop((view, true_one, lying, link, first, second));
            crate::support::wait_until("all is closed", || {
                device.trim().unwrap() + other.trim().unwrap() == 0
            });
            honest.close().unwrap();
        },
    )
    .succeed();
}
