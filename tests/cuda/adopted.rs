//! Tensors in memory that another library allocated: what can be exported is sent without a copy, and the rest is refused.

#![allow(unsafe_code)]

use std::sync::Arc;

use slipring::cuda::{Device, Stream};
use slipring::error::{CudaFault, TensorFault};
use slipring::{DType, ErrorKind, Result, Tensor, TensorSet};

use crate::framework::{Framework, end};
use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    alone, calls, cuda_fault, device, exchange, hear, hear_out, is_closed, numbers, recv,
};
use crate::support::{soon, wait_until};

const MIB: usize = 1 << 20;

fn adopt(
    (device, stream): (&Device, &Stream),
    at: u64,
    count: usize,
    owner: impl Send + 'static,
) -> Result<Tensor> {
    // SAFETY: the tests keep the memory as it is while the owner lives.
    unsafe { device.adopt(at, DType::Uint32, [count], stream, owner) }
}

#[test]
fn memory_of_another_library_is_read_elsewhere_and_its_owner_let_go_of() {
    const TEST: &str = "memory_of_another_library_is_read_elsewhere_and_its_owner_let_go_of";
    for kind in [Kind::Handles, Kind::Synchronized] {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                driver::begin(0);
                let device = device();
                let stream = device.stream().unwrap();
                let memory = Framework::of_kind(Kind::told(), 4 * MIB);
                let owners: Vec<Arc<()>> = (0..20).map(|_| Arc::new(())).collect();
                let mut tensors = Vec::new();
                for (at, owner) in (0u32..).zip(&owners) {
                    let offset = 1024 + 65536 * u64::from(at);
                    memory.write(offset, &numbers(at, 1000));
                    let made =
                        adopt((&device, &stream), memory.start + offset, 1000, owner.clone());
                    tensors.push(made.unwrap());
                    link.send_tensor(tensors.last().unwrap()).unwrap();
                }
                // It is read here, too.
                let home = device.to_host(&tensors[3], &stream).unwrap();
                assert_eq!(home.as_slice::<u32>().unwrap(), numbers(3, 1000));
                assert_eq!(link.stats().sent.gpu_synchronized, 20);
                drop(tensors);
                assert!(owners.iter().all(|owner| Arc::strong_count(owner) == 2), "all are lent");
                hear(&mut link);
                link.send(b"go on").unwrap();
                hear_out(&mut link);
                drop(link);
                let is_free = || {
                    device.trim().unwrap();
                    owners.iter().all(|owner| Arc::strong_count(owner) == 1)
                };
                wait_until("all owners are let go of", is_free);
                is_closed(&device);
                memory.free();
                end();
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensors: Vec<Tensor> = (0..20).map(|_| recv(&mut link)).collect();
                for (at, tensor) in (0u32..).zip(&tensors) {
                    let copy = device.to_host(tensor, &stream).unwrap();
                    assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(at, 1000));
                }
                link.send(b"read").unwrap();
                hear(&mut link);
                drop(tensors);
                link.close().unwrap();
            },
        );
        if cuda.tells(TEST) {
            let trace = cuda.trace();
            let once = if kind == Kind::Handles {
                "cuIpcOpenMemHandle_v2"
            } else {
                "cuMemImportFromShareableHandle"
            };
            assert_eq!(calls(&trace, once), 1);
        }
    }
}

#[test]
fn a_set_of_one_allocation_keeps_one_owner_while_a_peer_has_it_open() {
    const TEST: &str = "a_set_of_one_allocation_keeps_one_owner_while_a_peer_has_it_open";
    exchange(
        TEST,
        &FakeCuda::new().of_kind(Kind::Handles),
        |mut link| {
            driver::begin(0);
            let device = device();
            let stream = device.stream().unwrap();
            let memory = Framework::of_kind(Kind::told(), 4 * MIB);
            let owners: Vec<Arc<()>> = (0..5).map(|_| Arc::new(())).collect();
            let mut set = TensorSet::new();
            for (at, owner) in (0u32..).zip(&owners) {
                let offset = 65536 * u64::from(at);
                memory.write(offset, &numbers(at, 1000));
                let start = memory.start + offset;
                set.push(adopt((&device, &stream), start, 1000, owner.clone()).unwrap());
            }
            link.sender().send_tensors_deadline(&set, soon()).unwrap();
            drop(set);
            let kept = || -> Vec<bool> {
                device.trim().unwrap();
                owners.iter().map(|owner| Arc::strong_count(owner) == 2).collect()
            };
            hear(&mut link);
            assert_eq!(kept(), [true; 5], "all are lent");
            link.send(b"go on").unwrap();
            hear(&mut link);
            wait_until("one is kept", || kept() == [true, false, false, false, false]);
            link.send(b"close").unwrap();
            hear_out(&mut link);
            wait_until("none is kept", || kept() == [false; 5]);
            is_closed(&device);
            memory.free();
            end();
        },
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            let set = link.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
            for (at, (_, tensor)) in (0u32..).zip(&set) {
                let copy = device.to_host(tensor, &stream).unwrap();
                assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(at, 1000));
            }
            link.send(b"read").unwrap();
            hear(&mut link);
            drop(set);
            link.send(b"dropped").unwrap();
            hear(&mut link);
            link.close().unwrap();
        },
    );
}

#[test]
fn an_owner_of_mapped_memory_is_let_go_of_while_a_peer_has_it_mapped() {
    const TEST: &str = "an_owner_of_mapped_memory_is_let_go_of_while_a_peer_has_it_mapped";
    let cuda = FakeCuda::new();
    exchange(
        TEST,
        &cuda,
        |mut link| {
            driver::begin(0);
            let device = device();
            let stream = device.stream().unwrap();
            for round in 0..5 {
                let memory = Framework::map(&[2 * MIB], true);
                memory.write(0, &numbers(round, 16));
                let owner = Arc::new(());
                let tensor = adopt((&device, &stream), memory.start, 16, owner.clone()).unwrap();
                link.send_tensor(tensor).unwrap();
                hear(&mut link);
                wait_until("the owner is let go of", || {
                    device.trim().unwrap();
                    Arc::strong_count(&owner) == 1
                });
                memory.free();
            }
            end();
            hear_out(&mut link);
        },
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            for round in 0..5 {
                let copy = device.to_host(&recv(&mut link), &stream).unwrap();
                assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(round, 16));
                link.send(b"read").unwrap();
            }
            link.close().unwrap();
        },
    );
}

/// An owner whose drop panics.
struct Careless;

impl Drop for Careless {
    fn drop(&mut self) {
        panic!("a panic of the test's");
    }
}

#[test]
fn an_owner_that_panics_stops_no_other_work() {
    const TEST: &str = "an_owner_that_panics_stops_no_other_work";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        driver::begin(0);
        let device = device();
        let stream = device.stream().unwrap();
        let memory = Framework::map(&[2 * MIB], true);
        for _ in 0..3 {
            drop(adopt((&device, &stream), memory.start, 16, Careless).unwrap());
            is_closed(&device);
        }
        memory.free();
        drop(stream);
        end();
    });
    cuda.was_used_well();
}

#[test]
fn memory_that_cannot_be_exported_is_refused_with_the_reason() {
    const TEST: &str = "memory_that_cannot_be_exported_is_refused_with_the_reason";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        driver::begin(0);
        let device = device();
        let stream = device.stream().unwrap();
        let owner = Arc::new(());
        let at = |start: u64, count| adopt((&device, &stream), start, count, owner.clone());
        let refused = |answer: Result<Tensor>| match cuda_fault(answer) {
            CudaFault::NotExportable { why } => why,
            other => panic!("{other}"),
        };
        let private = Framework::map(&[2 * MIB], false);
        assert!(refused(at(private.start, 16)).contains("without a file descriptor"));
        let two = Framework::map(&[2 * MIB, 2 * MIB], true);
        let end_of_first = two.start + 2 * MIB as u64 - 512;
        assert_eq!(refused(at(end_of_first, 129)), "it spans several allocations");
        drop(at(end_of_first, 128).unwrap());
        let one = Framework::alloc(4096);
        assert_eq!(refused(at(one.start + 3840, 65)), "it spans several allocations");
        drop(at(one.start + 3840, 64).unwrap());
        let misaligned = at(one.start + 128, 16).unwrap_err();
        let alignment = TensorFault::Alignment { alignment: 256 };
        assert_eq!(*misaligned.kind(), ErrorKind::Tensor(alignment));
        assert_eq!(refused(at(one.start, 0)), "it has no bytes");
        // Nothing of the driver's.
        let unknown = at(4096, 16).unwrap_err();
        assert!(std::error::Error::source(&unknown).is_some());
        assert!(refused(Err(unknown)).contains("no allocation of cuMemAlloc"));
        let is_free = || {
            device.trim().unwrap();
            Arc::strong_count(&owner) == 1
        };
        wait_until("every owner is let go of", is_free);
        [private, two, one].into_iter().for_each(Framework::free);
        drop(stream);
        end();
    });
    cuda.was_used_well();
}

#[test]
fn memory_that_another_library_has_mapped_is_for_one_gpu_here() {
    const TEST: &str = "memory_that_another_library_has_mapped_is_for_one_gpu_here";
    let cuda = FakeCuda::new().devices(2);
    alone(TEST, &cuda, || {
        driver::begin(0);
        let memory = Framework::map(&[2 * MIB], true);
        let [home, other] = [0, 1].map(|at| Device::new(at).unwrap());
        let tensor = adopt((&home, &home.stream().unwrap()), memory.start, 16, ()).unwrap();
        let one = CudaFault::OneDevice { is: home.uuid(), asked: other.uuid() };
        assert_eq!(cuda_fault(other.open(&tensor, &other.stream().unwrap())), one);
        drop(tensor);
        is_closed(&home);
        memory.free();
        end();
    });
    cuda.was_used_well();
}
