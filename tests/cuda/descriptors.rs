//! Memory of a GPU that travels as a file descriptor: between containers, in order, and past the ends of either side.

use std::sync::OnceLock;
use std::time::Duration;

use slipring::cuda::{Device, Export, Order, Pool, PoolOptions};
use slipring::error::CudaFault;
use slipring::{Connection, Context, DType, Reactor, TensorSet};

use crate::support::census::descriptors;
use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    Two, calls, cuda_fault, device, exchange, hear, hear_out, is_closed, numbers, pool_options,
    recv, small_pool, whole_chunk, whole_way,
};
use crate::support::other::{Namespace, listen_for, say, wait_for_death};
use crate::support::{soon, wait_until};

/// A stream's pause before each of its acts: longer than everything else that happens meanwhile.
const SLOW: Duration = Duration::from_millis(20);

/// The kinds of pools whose memory travels as a descriptor.
const KINDS: [Kind; 2] = [Kind::Words, Kind::Synchronized];

const MIB: u64 = 1 << 20;

/// Returns a driver that opens no handle of another process, as in another container.
fn container(kind: Kind) -> FakeCuda {
    let fails = "cuIpcOpenMemHandle_v2:201:1:999999,cuIpcOpenEventHandle:201:1:999999";
    // A real driver needs no telling that it is in a container.
    FakeCuda::new().delay(SLOW).of_kind(kind).if_fake(|cuda| cuda.fail(fails))
}

/// Sends tensors that are written after they were sent, and uses the memory of the first one again.
fn write_late(mut link: Connection) {
    let device = device();
    let (pool, stream) = (small_pool(&device), device.stream().unwrap());
    for round in 0..3 {
        let until = soon();
        let shape = [whole_chunk()];
        let mut draft = pool.alloc_deadline(DType::Uint8, shape, &stream, until).unwrap();
        // Longer than the reader takes to its copy.
        (0..10).for_each(|_| draft.fill(7).unwrap());
        draft.fill(round).unwrap();
        link.send_tensor(draft.share().unwrap()).unwrap();
    }
    let stats = link.stats().sent;
    let expected = match pool.order() {
        Order::Words => (0, 3, 0),
        Order::Synchronized => (0, 0, 3),
        Order::Events => panic!("the peer cannot open events"),
    };
    assert_eq!((stats.gpu_by_events, stats.gpu_by_words, stats.gpu_synchronized), expected);
    hear_out(&mut link);
    drop((pool, link));
    is_closed(&device);
}

fn read_late(mut link: Connection) {
    let device = device();
    let stream = device.stream().unwrap();
    let own = device.pool_with(pool_options()).unwrap();
    for round in 0..3 {
        let tensor = recv(&mut link);
        let view = device.open(&tensor, &stream).unwrap();
        let mut copy = own.alloc::<u8>([whole_chunk()], &stream).unwrap();
        // The stream does nothing of this before the call is over.
        copy.copy_from(&view).unwrap();
        drop((view, tensor));
        let copy = device.to_host(&copy.share().unwrap(), &stream).unwrap();
        assert!(copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == round), "{round}");
    }
    link.close().unwrap();
}

#[test]
fn tensors_pass_between_two_containers() {
    const TEST: &str = "tensors_pass_between_two_containers";
    for kind in KINDS {
        let cuda = container(kind);
        let namespace = Namespace::PidAndIpc;
        let Some(two) = Two::start_both_apart(TEST, &cuda, namespace, write_late, read_late) else {
            return;
        };
        two.succeed();
        cuda.was_used_well();
        if cuda.tells(TEST) {
            let trace = cuda.trace();
            assert!(trace.iter().all(|call| !call.name.starts_with("cuIpc")), "a handle");
        }
    }
}

#[test]
fn a_gpu_may_have_another_number_in_each_container() {
    const TEST: &str = "a_gpu_may_have_another_number_in_each_container";
    for kind in KINDS {
        let base = "fa4e00000000400080000000000000";
        // The second one here is the only one there.
        let near = FakeCuda::new().of_kind(kind).devices(2).uuid(&format!("{base}00"));
        let far = near.clone().devices(1).uuid(&format!("{base}01"));
        if !near.is_there(TEST) {
            return;
        }
        let two = Two::start_with(
            TEST,
            [&near, &far],
            |mut link| {
                let device = Device::new(1).unwrap();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                draft.write(&numbers(3, 1024)).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                hear_out(&mut link);
                drop((pool, link));
                is_closed(&device);
            },
            |mut link| {
                let tensor = recv(&mut link);
                let device = Device::of_uuid(tensor.gpu().unwrap()).unwrap().unwrap();
                assert_eq!(device.ordinal(), 0);
                let stream = device.stream().unwrap();
                let copy = device.to_host(&tensor, &stream).unwrap();
                assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(3, 1024));
                drop(tensor);
                link.close().unwrap();
                is_closed(&device);
            },
        );
        two.succeed();
        near.was_used_well();
    }
}

#[test]
fn a_descriptor_passes_once_a_peer_and_chunk() {
    const TEST: &str = "a_descriptor_passes_once_a_peer_and_chunk";
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let before = descriptors();
                for round in 0..50 {
                    let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                    draft.write(&numbers(round, 1024)).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                    hear(&mut link);
                }
                // That of the chunk, and what the host's pool has.
                assert!(descriptors() < before + 8, "{} and {before}", descriptors());
                drop((pool, link));
                is_closed(&device);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                for round in 0..50 {
                    let copy = device.to_host(&recv(&mut link), &stream).unwrap();
                    assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(round, 1024));
                    link.send(b"read").unwrap();
                }
            },
        );
        if !cuda.tells(TEST) {
            continue;
        }
        let trace = cuda.trace();
        let count = |name| calls(&trace, name);
        let made =
            ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"];
        assert_eq!(made.map(count), [1, 1, 1]);
        assert_eq!(["cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"].map(count), [2; 4]);
        assert!(count("cuEventCreate") < 20, "{} events", count("cuEventCreate"));
    }
}

#[test]
fn nothing_of_the_hot_path_maps_or_imports() {
    const TEST: &str = "nothing_of_the_hot_path_maps_or_imports";
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            for _ in 0..100 {
                let draft = pool.alloc_deadline(DType::Uint32, [100 << 10], &stream, soon());
                let mut draft = draft.unwrap();
                draft.fill(1).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                hear(&mut link);
            }
        },
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            for _ in 0..100 {
                drop(device.open(&recv(&mut link), &stream).unwrap());
                link.send(b"read").unwrap();
            }
        },
    );
    if !cuda.tells(TEST) {
        return;
    }
    let trace = cuda.trace();
    let shares: Vec<usize> =
        (0..trace.len()).filter(|at| trace[*at].name == "cuStreamWriteValue64_v2").collect();
    for call in &trace[shares[70]..shares[99]] {
        let known = [
            "cuCtxPushCurrent_v2",
            "cuCtxPopCurrent_v2",
            "cuThreadExchangeStreamCaptureMode",
            "cuMemsetD8Async",
            "cuStreamWriteValue64_v2",
            "cuStreamWaitValue64_v2",
            "cuStreamQuery",
            "cuStreamIsCapturing",
            "cuEventRecord",
            "cuEventQuery",
            // One loan more than ever before may be under way.
            "cuEventCreate",
        ];
        assert!(known.contains(&call.name.as_str()), "{} on the hot path", call.name);
    }
}

#[test]
fn no_stream_of_the_owner_waits_for_a_borrower() {
    const TEST: &str = "no_stream_of_the_owner_waits_for_a_borrower";
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        let mut two = Two::start(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let (lending, stream) = (small_pool(&device), device.stream().unwrap());
                let mut lent = lending.alloc::<u8>([whole_chunk()], &stream).unwrap();
                lent.fill(1).unwrap();
                link.send_tensor(lent.share().unwrap()).unwrap();
                listen_for("the peer's stream hangs");
                // With events the loan is back, and with the others it is not. No stream gets the memory to wait for it.
                for _ in 0..100 {
                    let taken = lending.alloc::<u8>([4096], &stream);
                    assert!(matches!(cuda_fault(taken), CudaFault::Exhausted { .. }));
                }
                // The same stream writes and shares on, and sends to the peer that hangs.
                let pool = device.pool_with(pool_options()).unwrap();
                for _ in 0..100 {
                    let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
                    draft.fill(2).unwrap();
                    let tensor = draft.share().unwrap();
                    link.send_tensor(&tensor).unwrap();
                    let home = device.open(&tensor, &stream).unwrap();
                    let home = home.to_host_deadline(soon()).unwrap();
                    assert_eq!(home.as_slice::<u8>().unwrap(), [2; 4096]);
                }
                stream.synchronize_deadline(soon()).unwrap();
                say("not stalled");
                wait_for_death();
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensor = recv(&mut link);
                let view = device.open(&tensor, &stream).unwrap();
                // Nobody ever writes this word.
                let (never, own) = (device.stream().unwrap(), device.pool());
                let word = own.alloc::<u64>([1], &never).unwrap();
                driver::begin(0);
                let wait = driver::cuStreamWaitValue64_v2;
                assert_eq!(wait(stream.as_raw() as usize, word.device_ptr(), u64::MAX >> 1, 0), 0);
                drop((view, tensor));
                say("hanging");
                wait_for_death();
            },
        );
        two.borrower.expect("hanging");
        two.owner.tell("the peer's stream hangs");
        two.owner.expect("not stalled");
        let (owner, borrower) = (two.owner.pid(), two.borrower.pid());
        two.owner.kill();
        two.borrower.kill();
        cuda.was_used_well();
        if !cuda.tells(TEST) {
            continue;
        }
        // The owner awaits no word, and no event that the borrower has recorded.
        let trace = cuda.trace();
        let of = |process, name| {
            trace.iter().filter(move |call| call.process == process && call.name == name)
        };
        assert_eq!(of(owner, "cuStreamWaitValue64_v2").count(), 0);
        let recorded: Vec<_> =
            of(borrower, "cuEventRecord").map(|call| &call.arguments[0]).collect();
        assert!(!recorded.is_empty(), "the borrower's use has no end");
        let mut awaited = of(owner, "cuStreamWaitEvent").map(|call| &call.arguments[1]);
        assert!(awaited.all(|event| !recorded.contains(&event)));
    }
}

#[test]
fn a_loan_comes_back_when_its_last_use_is_over() {
    const TEST: &str = "a_loan_comes_back_when_its_last_use_is_over";
    for kind in KINDS {
        let cuda = FakeCuda::new().delay(SLOW).of_kind(kind);
        // A GPU is done with the reader's work before the owner can look.
        if !cuda.tells(TEST) {
            return;
        }
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                // The peer has dropped it, and its stream reads.
                hear(&mut link);
                assert!(pool.alloc::<u8>([1], &stream).is_err(), "it is being read");
                hear(&mut link);
                wait_until("it is back", || pool.alloc::<u8>([1], &stream).is_ok());
                hear_out(&mut link);
            },
            |mut link| {
                let device = device();
                let pool = device.pool();
                let streams = [device.stream().unwrap(), device.stream().unwrap()];
                let tensor = recv(&mut link);
                // Two streams read it. The second one is over first.
                let mut copies: Vec<_> = Vec::new();
                for (stream, rounds) in streams.iter().zip([40, 1]) {
                    let mut copy = pool.alloc::<u8>([whole_chunk()], stream).unwrap();
                    let view = device.open(&tensor, stream).unwrap();
                    (0..rounds).for_each(|_| copy.fill(9).unwrap());
                    copy.copy_from(&view).unwrap();
                    copies.push(copy);
                }
                drop(tensor);
                link.send(b"dropped").unwrap();
                streams[1].synchronize().unwrap();
                assert!(!streams[0].is_idle().unwrap());
                streams[0].synchronize().unwrap();
                link.send(b"over").unwrap();
                drop(copies);
                link.close().unwrap();
            },
        );
    }
}

#[test]
fn a_peer_that_dies_while_it_reads_gives_everything_back() {
    const TEST: &str = "a_peer_that_dies_while_it_reads_gives_everything_back";
    for kind in KINDS {
        let cuda = FakeCuda::new().delay(SLOW).stuck().of_kind(kind);
        let mut two = Two::start(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                wait_until("the peer dies", || link.send(b"still there?").is_err());
                let (until, dtype) = (soon(), DType::Uint8);
                drop(pool.alloc_deadline(dtype, [whole_chunk()], &stream, until).unwrap());
                stream.synchronize().unwrap();
                drop(link);
                pool.trim().unwrap();
                wait_until("the chunk is freed", || {
                    pool.trim().unwrap();
                    pool.bytes().unwrap() == 0
                });
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensor = recv(&mut link);
                let view = device.open(&tensor, &stream).unwrap();
                let mut copy = device.pool().alloc::<u8>([whole_chunk()], &stream).unwrap();
                (0..100).for_each(|_| copy.fill(9).unwrap());
                copy.copy_from(&view).unwrap();
                say("reading");
                wait_for_death();
            },
        );
        two.borrower.expect("reading");
        two.borrower.kill();
        two.owner.succeeds();
        cuda.was_used_well();
    }
}

#[test]
fn an_aborted_link_takes_no_memory_from_a_peer_that_reads_it() {
    const TEST: &str = "an_aborted_link_takes_no_memory_from_a_peer_that_reads_it";
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        let mut two = Two::start(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let mut draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                draft.fill(3).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                hear(&mut link);
                link.abort();
                say("aborted");
                listen_for("read");
                assert!(pool.alloc::<u8>([1], &stream).is_err(), "a living process has it");
                say("kept");
                listen_for("dead");
                let (until, dtype) = (soon(), DType::Uint8);
                drop(pool.alloc_deadline(dtype, [whole_chunk()], &stream, until).unwrap());
                drop(pool);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensor = recv(&mut link);
                let view = device.open(&tensor, &stream).unwrap();
                link.send(b"open").unwrap();
                listen_for("aborted");
                let copy = view.to_host().unwrap();
                assert!(copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 3));
                say("read");
                wait_for_death();
            },
        );
        two.owner.expect("aborted");
        two.borrower.tell("aborted");
        two.borrower.expect("read");
        two.owner.tell("read");
        two.owner.expect("kept");
        two.borrower.kill();
        two.borrower.wait();
        two.owner.tell("dead");
        two.owner.succeeds();
        cuda.was_used_well();
    }
}

#[test]
fn a_set_of_tensors_announces_many_allocations_at_once() {
    const TEST: &str = "a_set_of_tensors_announces_many_allocations_at_once";
    const COUNT: u32 = 60;
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let pools: Vec<Pool> = (0..COUNT).map(|_| small_pool(&device)).collect();
                for round in 0..3u32 {
                    let mut set = TensorSet::new();
                    for (at, pool) in (0u32..).zip(&pools) {
                        let mut draft = pool.alloc::<u32>([16], &stream).unwrap();
                        draft.write(&numbers(round + at, 16)).unwrap();
                        set.insert(&format!("{at}"), draft.share().unwrap()).unwrap();
                    }
                    link.sender().send_tensors_deadline(&set, soon()).unwrap();
                    hear(&mut link);
                }
                drop((pools, link));
                is_closed(&device);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                for round in 0..3u32 {
                    let set = link.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
                    for at in 0..COUNT {
                        let copy = device.to_host(&set[&*at.to_string()], &stream).unwrap();
                        assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(round + at, 16));
                    }
                    drop(set);
                    link.send(b"read").unwrap();
                }
            },
        );
        if cuda.tells(TEST) {
            let trace = cuda.trace();
            for name in ["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"] {
                assert_eq!(calls(&trace, name), COUNT as usize, "{name}");
            }
        }
    }
}

#[test]
fn a_reactor_takes_tensors_by_descriptors() {
    const TEST: &str = "a_reactor_takes_tensors_by_descriptors";
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                for round in 0..20 {
                    // Each has a chunk that the peer does not know.
                    let pool = small_pool(&device);
                    let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                    draft.write(&numbers(round, 1024)).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                    hear(&mut link);
                }
                drop(link);
                is_closed(&device);
            },
            |link| {
                let context = Context::new().unwrap();
                let reactor = Reactor::spawn(&context).unwrap();
                let (device, stream) = {
                    let device = device();
                    let stream = device.stream().unwrap();
                    (device, stream)
                };
                let link = reactor.adopt(link).unwrap();
                let (say, said) = crate::support::callbacks::diary();
                let ended = say.clone();
                let at = device.clone();
                link.on_tensors(move |link, set| {
                    let copy = at.to_host(set.at(0).unwrap(), &stream).unwrap();
                    say(Some(copy.as_slice::<u32>().unwrap().to_vec()));
                    link.write(b"read");
                });
                link.on_closed(move |_, _| ended(None));
                for round in 0..20 {
                    let heard = crate::support::callbacks::hear(&said);
                    assert_eq!(heard, Some(numbers(round, 1024)));
                }
                assert_eq!(crate::support::callbacks::hear(&said), None);
                drop((link, reactor));
            },
        );
    }
}

#[test]
fn what_the_owner_has_freed_is_withdrawn() {
    const TEST: &str = "what_the_owner_has_freed_is_withdrawn";
    let cuda = FakeCuda::new().of_kind(Kind::Synchronized);
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            for _ in 0..30 {
                let pool = small_pool(&device);
                let draft = pool.alloc::<u8>([1], &stream).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                hear(&mut link);
                drop(pool);
                // The peer has opened nothing, so the chunk is freed at once.
                is_closed(&device);
            }
            hear_out(&mut link);
        },
        |mut link| {
            let mut most = (0, 0);
            for round in 0..30 {
                drop(recv(&mut link));
                let count = descriptors();
                let first = if round < 3 { count } else { most.0 };
                most = (first, most.1.max(count));
                link.send(b"dropped").unwrap();
            }
            assert!(most.1 <= most.0 + 2, "{most:?} descriptors");
            link.close().unwrap();
        },
    );
}

#[test]
fn a_pool_that_is_dropped_frees_its_memory_while_the_link_lives() {
    const TEST: &str = "a_pool_that_is_dropped_frees_its_memory_while_the_link_lives";
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                for round in 0..30 {
                    let pool = small_pool(&device);
                    let mut draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                    draft.fill(round).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                    hear(&mut link);
                    drop(pool);
                    // The peer has it mapped, and uses none of it.
                    is_closed(&device);
                }
                hear_out(&mut link);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                for round in 0..30 {
                    let tensor = recv(&mut link);
                    let copy = device.to_host(&tensor, &stream).unwrap();
                    assert!(copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == round));
                    drop(tensor);
                    link.send(b"read").unwrap();
                }
                link.close().unwrap();
            },
        );
        if !cuda.tells(TEST) {
            continue;
        }
        // The peer unmaps what is withdrawn, and keeps no more than the last ones.
        let (mut mapped, mut most) = (0i32, 0);
        for call in cuda.trace() {
            mapped += i32::from(call.name == "cuMemMap");
            mapped -= i32::from(call.name == "cuMemUnmap");
            most = most.max(mapped);
        }
        assert_eq!(mapped, 0);
        assert!(most <= 6, "{most} mappings at once");
    }
}

#[test]
fn the_options_of_a_pool_are_judged_for_its_gpu() {
    const TEST: &str = "the_options_of_a_pool_are_judged_for_its_gpu";
    let options = |order: Option<Order>| {
        let options = PoolOptions::new().export(Export::FileDescriptor);
        order.into_iter().fold(options, PoolOptions::order)
    };
    let judge = move |expected: [Result<Order, CudaFault>; 2]| {
        let device = device();
        let made = |order| match device.pool_with(options(order)) {
            Ok(pool) => Ok(pool.order()),
            Err(error) => Err(cuda_fault::<()>(Err(error))),
        };
        assert_eq!([made(None), made(Some(Order::Words))], expected);
        assert_eq!(device.pool().order(), Order::Events);
    };
    let drivers = [
        FakeCuda::new(),
        FakeCuda::new().without_words(),
        FakeCuda::new().before_words(),
        FakeCuda::new().without_descriptors(),
        // Before CUDA 12, before words, and before descriptors.
        FakeCuda::new().attributes(124),
        FakeCuda::new().attributes(121),
        FakeCuda::new().attributes(102),
    ];
    let words = Err(CudaFault::NoWords { ordinal: 0 });
    let none = || Err(CudaFault::NoDescriptors { ordinal: 0 });
    let expected = [
        [Ok(Order::Words), Ok(Order::Words)],
        [Ok(Order::Synchronized), words.clone()],
        [Ok(Order::Synchronized), words.clone()],
        [none(), none()],
        [Ok(Order::Words), Ok(Order::Words)],
        [Ok(Order::Synchronized), words],
        [none(), none()],
    ];
    crate::support::other::run_here(TEST, |at| {
        judge(expected[at.parse::<usize>().unwrap()].clone())
    });
    for (at, cuda) in drivers.iter().enumerate() {
        if cuda.is_there(TEST) && (at == 0 || cuda.tells(TEST)) {
            cuda.start(TEST, &at.to_string()).succeeds();
            cuda.was_used_well();
        }
    }
}

#[test]
fn every_call_that_fails_is_an_error_and_leaves_nothing() {
    const TEST: &str = "every_call_that_fails_is_an_error_and_leaves_nothing";
    static DEVICE: OnceLock<Device> = OnceLock::new();
    fn way() -> slipring::Result<()> {
        let made = Device::new(0)?;
        let device = DEVICE.get_or_init(|| made);
        whole_way(device, &device.pool_with(pool_options().chunk(2 * MIB))?)
    }
    // As in `errors`: the library waits or polls in place of these.
    let may_be_silent = |name: &str| {
        let silent = ["Push", "Record", "Synchronize", "EventCreate", "CaptureMode", "StreamQuery"];
        silent.iter().any(|part| name.contains(part))
    };
    crate::support::other::run_here(TEST, |call| {
        match way() {
            Ok(()) => assert!(call == "none" || may_be_silent(call), "{call} is silent"),
            Err(error) => {
                let reason = std::error::Error::source(&error).map(ToString::to_string);
                let text = reason.unwrap_or(error.to_string());
                assert!(text.contains(call.trim_end_matches("_v2")), "{call}: {text}");
                assert!(text.ends_with("(999)"), "{text}");
            }
        }
        DEVICE.get().into_iter().for_each(is_closed);
    });
    for kind in KINDS {
        let whole = FakeCuda::new().of_kind(kind);
        if !whole.tells(TEST) {
            return;
        }
        whole.start(TEST, "none").succeeds();
        whole.was_used_well();
        let trace = whole.trace();
        let mut names: Vec<&str> = trace.iter().map(|call| &*call.name).collect();
        names.sort_unstable();
        names.dedup();
        // What ends something has no caller to tell. What it does not end is left, and counted.
        let ends = ["Free", "Destroy", "Release", "Unmap", "Pop", "EventQuery", "GetErrorName"];
        for name in names.into_iter().filter(|name| !ends.iter().any(|part| name.contains(part))) {
            let count = calls(&trace, name);
            for nth in [1, count / 2 + 1] {
                let cuda = FakeCuda::new().of_kind(kind).fail(&format!("{name}:999:{nth}"));
                cuda.start(TEST, name).succeeds();
                assert_eq!(cuda.misuses(), [""; 0], "{name} {nth}");
            }
        }
    }
}
