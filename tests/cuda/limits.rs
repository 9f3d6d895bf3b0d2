//! Accounts of allocations of GPUs: what a link keeps open costs no link, goes where room is needed, and is opened once.

use std::sync::Barrier;

use slipring::cuda::{Device, Stream};
use slipring::error::CudaFault;
use slipring::options::Resource;
use slipring::{ErrorKind, Options, Result, Tensor};

use crate::forged::allocate;
use crate::side::{Side, Unwritten};
use crate::support::fake_cuda::{Call, FakeCuda};
use crate::support::gpus::{alone, calls, cuda_fault, device, driver_fault, is_closed};
use crate::support::{Stage, wait_until};

const MIB: u64 = 1 << 20;

fn opens(device: &Device, tensor: &Tensor, stream: &Stream) -> Result<()> {
    device.open(tensor, stream).map(drop)
}

fn is_full<T: std::fmt::Debug>(opened: Result<T>, of: &str) {
    let error = opened.unwrap_err();
    let full = matches!(error.kind(), ErrorKind::AccountFull { resource, .. } if *resource == of);
    assert!(full, "{error}");
}

/// The mappings that are left at the call of this name.
fn mapped_at(trace: &[Call], name: &str) -> usize {
    let at = trace.iter().position(|call| call.name == name).unwrap();
    calls(&trace[..at], "cuMemMap") - calls(&trace[..at], "cuMemUnmap")
}

#[test]
fn idle_allocations_end_no_link_and_64_stay_beside_a_new_one() {
    const TEST: &str = "idle_allocations_end_no_link_and_64_stay_beside_a_new_one";
    let cuda = FakeCuda::new();
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let stream = device.stream().unwrap();
        let limits = Options::new().link_limit(Resource::Mappings, 64);
        let mut stage = Stage::new(limits.link_limit(Resource::MappedBytes, 64 * MIB));
        let mut side = Side::new(&mut stage);
        let tensors: Vec<_> = (0..100).map(|_| side.tensor(&device)).collect();
        let views: Vec<_> =
            tensors.iter().map(|tensor| device.open(tensor, &stream).unwrap()).collect();
        drop((views, tensors));
        opens(&device, &side.tensor(&device), &stream).unwrap();
        wait_until("those beyond are closed", || device.trim().unwrap() == 0);
        side.goes_on(&device);
        // For the trace.
        drop(device.pool().alloc::<u8>([1], &stream).unwrap());
        drop(side);
        is_closed(&device);
    });
    cuda.was_used_well();
    assert_eq!(mapped_at(&cuda.trace(), "cuMemAlloc_v2"), 64 + 1);
}

#[test]
fn an_open_over_its_limit_closes_as_many_idle_allocations_as_it_needs() {
    const TEST: &str = "an_open_over_its_limit_closes_as_many_idle_allocations_as_it_needs";
    let cuda = FakeCuda::new();
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let stream = device.stream().unwrap();
        let options = Options::new().link_limit(Resource::GpuMappedBytes, 16 * MIB);
        let mut stage = Stage::new(options.link_limit(Resource::GpuMappings, 8));
        let mut side = Side::new(&mut stage);
        let mut tensors: Vec<_> = (0..8).map(|_| side.tensor(&device)).collect();
        tensors.iter().for_each(|tensor| opens(&device, tensor, &stream).unwrap());
        // Both limits are reached, and one of them needs more.
        let long = side.tensor_of(device.uuid(), 8 * MIB, allocate(0, 8 << 20));
        let view = device.open(&long, &stream).unwrap();
        // The four that were asked for last are open still.
        tensors[4..].iter().for_each(|tensor| opens(&device, tensor, &stream).unwrap());
        // None is closed for what does not fit all the same, or beside views.
        let too_long = side.tensor_of(device.uuid(), 20 * MIB, allocate(0, 20 << 20));
        is_full(device.open(&too_long, &stream), "mapped GPU bytes");
        let beside = side.tensor_of(device.uuid(), 10 * MIB, allocate(0, 10 << 20));
        is_full(device.open(&beside, &stream), "mapped GPU bytes");
        tensors[4..].iter().for_each(|tensor| opens(&device, tensor, &stream).unwrap());
        // More allocations in turn than may be open.
        drop(view);
        tensors.extend((0..16).map(|_| side.tensor(&device)));
        tensors[8..].iter().for_each(|tensor| opens(&device, tensor, &stream).unwrap());
        drop((tensors, long, too_long, beside, side));
        is_closed(&device);
    });
    cuda.was_used_well();
    assert_eq!(calls(&cuda.trace(), "cuMemMap"), 8 + 1 + 16);
}

#[test]
fn beside_an_unwritten_word_an_honest_peer_keeps_what_is_open_and_its_link() {
    const TEST: &str = "beside_an_unwritten_word_an_honest_peer_keeps_what_is_open_and_its_link";
    let cuda = FakeCuda::new().locked();
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let [waiting, stream] = [(); 2].map(|()| device.stream().unwrap());
        let mut stage = Stage::new(Options::new().link_limit(Resource::GpuMappings, 3));
        let [mut honest, mut silent] = [(); 2].map(|()| Side::new(&mut stage));
        let open: Vec<_> = (0..3).map(|_| honest.tensor(&device)).collect();
        open.iter().for_each(|tensor| opens(&device, tensor, &stream).unwrap());
        let unwritten = Unwritten::new(&device, &waiting, &mut silent);
        let more = honest.tensor(&device);
        for _ in 0..3 {
            is_full(device.open(&more, &stream), "GPU mappings");
            open.iter().for_each(|tensor| opens(&device, tensor, &stream).unwrap());
        }
        honest.goes_on(&device);
        unwritten.write();
        opens(&device, &more, &stream).unwrap();
        drop((open, more, honest, silent));
        is_closed(&device);
    });
    cuda.was_used_well();
    assert_eq!(calls(&cuda.trace(), "cuMemMap"), 3 + 1 + 1);
}

#[test]
fn beside_an_unwritten_word_more_than_64_allocations_by_turns_are_opened_once_each() {
    const TEST: &str =
        "beside_an_unwritten_word_more_than_64_allocations_by_turns_are_opened_once_each";
    const COUNT: usize = 70;
    let cuda = FakeCuda::new().locked();
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let [waiting, stream] = [(); 2].map(|()| device.stream().unwrap());
        let limit = COUNT as u64 + 10;
        let mut stage = Stage::new(Options::new().link_limit(Resource::GpuMappings, limit));
        let [mut honest, mut silent] = [(); 2].map(|()| Side::new(&mut stage));
        let unwritten = Unwritten::new(&device, &waiting, &mut silent);
        let tensors: Vec<_> = (0..COUNT).map(|_| honest.tensor(&device)).collect();
        for _ in 0..4 {
            tensors.iter().for_each(|tensor| opens(&device, tensor, &stream).unwrap());
        }
        honest.goes_on(&device);
        unwritten.write();
        drop((tensors, honest, silent));
        is_closed(&device);
    });
    cuda.was_used_well();
    assert_eq!(calls(&cuda.trace(), "cuMemMap"), COUNT + 1);
}

#[test]
fn two_threads_open_an_allocation_once_that_is_refused() {
    const TEST: &str = "two_threads_open_an_allocation_once_that_is_refused";
    const ROUNDS: usize = 50;
    let cuda = FakeCuda::new().devices(2);
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let said = device.uuid();
        let streams = [(); 2].map(|()| device.stream().unwrap());
        let mut stage = Stage::new(Options::new());
        let mut side = Side::new(&mut stage);
        for _ in 0..ROUNDS {
            let tensor = side.tensor_of(said, 2 * MIB, allocate(1, 2 << 20));
            let (start, tensor, device) = (&Barrier::new(2), &tensor, &device);
            std::thread::scope(|threads| {
                for stream in &streams {
                    threads.spawn(move || {
                        start.wait();
                        let refused = cuda_fault(device.open(tensor, stream));
                        assert_eq!(refused, CudaFault::WrongDevice { said });
                    });
                }
            });
        }
        drop((streams, side));
        is_closed(&device);
    });
    cuda.was_used_well();
    assert_eq!(calls(&cuda.trace(), "cuMemMap"), ROUNDS);
}

#[test]
fn an_allocation_that_one_gpu_is_refused_is_open_for_another() {
    const TEST: &str = "an_allocation_that_one_gpu_is_refused_is_open_for_another";
    // Its own GPU has the access before.
    let cuda = FakeCuda::new().devices(2).fail("cuMemSetAccess:999:2");
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let devices = [0, 1].map(|ordinal| Device::new(ordinal).unwrap());
        let streams = devices.each_ref().map(|device| device.stream().unwrap());
        let mut stage = Stage::new(Options::new());
        let mut side = Side::new(&mut stage);
        let tensor = side.tensor_of(devices[1].uuid(), 2 * MIB, allocate(1, 2 << 20));
        assert_eq!(driver_fault(devices[0].open(&tensor, &streams[0])).1, 999);
        opens(&devices[1], &tensor, &streams[1]).unwrap();
        opens(&devices[0], &tensor, &streams[0]).unwrap();
        drop((tensor, streams, side));
        is_closed(&devices[0]);
    });
    cuda.was_used_well();
    assert_eq!(calls(&cuda.trace(), "cuMemMap"), 1);
}

#[test]
fn a_tensor_whose_ticket_is_spent_opens_its_allocation_for_itself() {
    const TEST: &str = "a_tensor_whose_ticket_is_spent_opens_its_allocation_for_itself";
    // The third mapping is the first allocation's second one.
    let cuda = FakeCuda::new().fail("cuPointerGetAttribute:999:3");
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let stream = device.stream().unwrap();
        let mut stage = Stage::new(Options::new().link_limit(Resource::GpuMappings, 1));
        let mut side = Side::new(&mut stage);
        let [first, second] = [(); 2].map(|()| side.tensor(&device));
        opens(&device, &first, &stream).unwrap();
        opens(&device, &second, &stream).unwrap();
        // Its ticket went back when the allocation was closed for the second one.
        assert_eq!(driver_fault(device.open(&first, &stream)).1, 999);
        wait_until("it is closed", || device.trim().unwrap() == 0);
        for _ in 0..2 {
            opens(&device, &first, &stream).unwrap();
            wait_until("it is closed", || device.trim().unwrap() == 0);
        }
        drop((first, second, side));
        is_closed(&device);
    });
    cuda.was_used_well();
    let trace = cuda.trace();
    let threads = |name: &'static str| {
        let of = trace.iter().filter(move |call| call.name == name).map(|call| call.thread);
        of.collect::<Vec<_>>()
    };
    let (maps, unmaps) = (threads("cuMemMap"), threads("cuMemUnmap"));
    assert_eq!((maps.len(), unmaps.len()), (5, 5));
    assert!(unmaps.iter().all(|thread| !maps.contains(thread)), "{unmaps:?}");
}
