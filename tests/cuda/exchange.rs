//! Tensors of a GPU between two processes, over a driver without a GPU: `tests/fake_cuda`.
//!
//! Each test runs its two sides in processes of their own, to which that driver is `libcuda.so.1`. It is asynchronous as
//! a GPU is, tells of misuse, and writes down every call.

use std::time::Duration;

use slipring::cuda::Pool;
use slipring::error::{CudaFault, TensorFault, TrySendError};
use slipring::{Context, ErrorKind, Options, Tensor, TensorSet};

use crate::support::callbacks::settle;
use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    Two, alone, calls, device, exchange, hear, hear_out, is_closed, numbers, pool_options, recv,
    small_pool, whole_chunk,
};
use crate::support::other::{listen_for, say, wait_for_death};
use crate::support::{HANG, pair_of, soon, wait_until};

/// A stream's pause before each of its acts: longer than everything else that happens meanwhile.
const SLOW: Duration = Duration::from_millis(20);

#[test]
fn a_tensor_arrives_bit_by_bit_behind_its_writer() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().delay(SLOW).of_kind(kind);
        exchange(
            "a_tensor_arrives_bit_by_bit_behind_its_writer",
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (device.pool(), device.stream().unwrap());
                let mut draft = pool.alloc::<u32>([2, 512], &stream).unwrap();
                draft.write(&numbers(7, 1024)).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                // Sent long before it is written: the reader's stream waits.
                let mut filled = pool.alloc::<u8>([1 << 20], &stream).unwrap();
                filled.fill(3).unwrap();
                link.send_tensor(filled.share().unwrap()).unwrap();
                hear(&mut link);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensor = recv(&mut link);
                assert_eq!((tensor.gpu(), tensor.is_loaned()), (Some(device.uuid()), true));
                assert_eq!((tensor.shape().dims(), tensor.byte_len()), (&[2, 512][..], 4096));
                let copy = device.to_host(&tensor, &stream).unwrap();
                assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(7, 1024));
                let filled = recv(&mut link);
                let copy = device.to_host(&filled, &stream).unwrap();
                assert!(copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 3));
                link.send(b"done").unwrap();
            },
        );
    }
}

#[test]
fn a_chunk_is_exported_and_opened_once_for_many_tensors() {
    let cuda = FakeCuda::new();
    exchange(
        "a_chunk_is_exported_and_opened_once_for_many_tensors",
        &cuda,
        |mut link| {
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            for round in 0..50 {
                let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                draft.write(&numbers(round, 1024)).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                hear(&mut link);
            }
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
    if !cuda.tells("a_chunk_is_exported_and_opened_once_for_many_tensors") {
        return;
    }
    let trace = cuda.trace();
    let count = |name| calls(&trace, name);
    assert_eq!([count("cuMemAlloc_v2"), count("cuIpcGetMemHandle")], [1, 1]);
    assert_eq!([count("cuIpcOpenMemHandle_v2"), count("cuIpcCloseMemHandle")], [1, 1]);
    // Events come back, too.
    assert!(count("cuEventCreate") < 20, "{} events", count("cuEventCreate"));
    assert!(count("cuIpcOpenEventHandle") <= count("cuEventCreate"));
    // Nobody frees what somebody has open.
    let at = |name| trace.iter().rposition(|call| call.name == name).unwrap();
    assert!(at("cuIpcCloseMemHandle") < at("cuMemFree_v2"));
    assert!(at("cuMemFree_v2") < at("cuDevicePrimaryCtxRelease_v2"));
}

#[test]
fn nothing_of_the_hot_path_waits_or_opens() {
    let cuda = FakeCuda::new();
    exchange(
        "nothing_of_the_hot_path_waits_or_opens",
        &cuda,
        |mut link| {
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            // Four of them are all of the pool: so many loans are under way at most.
            for _ in 0..100 {
                let draft =
                    pool.alloc_deadline(slipring::DType::Uint32, [128 << 10], &stream, soon());
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
    // Of the last rounds, what was called in either process.
    if !cuda.tells("nothing_of_the_hot_path_waits_or_opens") {
        return;
    }
    let trace = cuda.trace();
    let shares: Vec<usize> =
        (0..trace.len()).filter(|at| trace[*at].name == "cuMemsetD8Async").collect();
    let hot = &trace[shares[70]..shares[99]];
    // One for each of the four loans on either side, and what is just being taken back.
    let made = calls(&trace, "cuEventCreate");
    assert!(made <= 12, "{made} events in 100 rounds, each of which needs two");
    for call in hot {
        let name = call.name.as_str();
        let known = [
            "cuCtxPushCurrent_v2",
            "cuCtxPopCurrent_v2",
            "cuThreadExchangeStreamCaptureMode",
            "cuMemsetD8Async",
            "cuEventRecord",
            "cuEventQuery",
            "cuStreamWaitEvent",
            "cuStreamIsCapturing",
        ];
        // One loan more than ever before may be under way.
        let event = ["cuEventCreate", "cuIpcGetEventHandle", "cuIpcOpenEventHandle"];
        assert!(known.contains(&name) || event.contains(&name), "{name} on the hot path");
    }
}

#[test]
fn memory_is_not_used_again_before_the_borrowers_stream_is_done() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().delay(SLOW).of_kind(kind);
        exchange(
            "memory_is_not_used_again_before_the_borrowers_stream_is_done",
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                // All that there is: the next one needs the same bytes.
                let mut first = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                first.fill(1).unwrap();
                let first = first.share().unwrap();
                link.send_tensor(first).unwrap();
                let kind = pool.alloc::<u8>([1], &stream).unwrap_err().kind().clone();
                assert!(matches!(kind, ErrorKind::Cuda(CudaFault::Exhausted { .. })), "{kind}");
                let shape = [whole_chunk()];
                let until = std::time::Instant::now() + HANG;
                let mut second =
                    pool.alloc_deadline(slipring::DType::Uint8, shape, &stream, until).unwrap();
                second.fill(2).unwrap();
                hear(&mut link);
            },
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let tensor = recv(&mut link);
                let view = device.open(&tensor, &stream).unwrap();
                let mut copy = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                // Both are given to the stream alone: it will read long after this.
                copy.copy_from(&view).unwrap();
                drop(view);
                drop(tensor);
                let copy = copy.share().unwrap();
                let copy = device.to_host(&copy, &stream).unwrap();
                assert!(
                    copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 1),
                    "overwritten"
                );
                link.send(b"checked").unwrap();
            },
        );
    }
}

#[test]
fn two_streams_that_read_one_tensor_are_both_waited_for() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().delay(SLOW).of_kind(kind);
        exchange(
            "two_streams_that_read_one_tensor_are_both_waited_for",
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let mut first = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                first.fill(1).unwrap();
                link.send_tensor(first.share().unwrap()).unwrap();
                let until = std::time::Instant::now() + HANG;
                let dtype = slipring::DType::Uint8;
                let mut second =
                    pool.alloc_deadline(dtype, [whole_chunk()], &stream, until).unwrap();
                second.fill(2).unwrap();
                hear(&mut link);
            },
            |mut link| {
                let device = device();
                let pool = device.pool_with(pool_options().chunk(8 << 20)).unwrap();
                let (busy, idle) = (device.stream().unwrap(), device.stream().unwrap());
                let tensor = recv(&mut link);
                let (slow, fast) = (device.open(&tensor, &busy), device.open(&tensor, &idle));
                let (slow, fast) = (slow.unwrap(), fast.unwrap());
                // One stream is busy for long before it reads.
                let mut copy = pool.alloc::<u8>([whole_chunk()], &busy).unwrap();
                (0..5).for_each(|_| copy.fill(9).unwrap());
                copy.copy_from(&slow).unwrap();
                drop(slow);
                // The other one is recorded last, and is over first.
                drop(fast);
                drop(tensor);
                let copy = device.to_host(&copy.share().unwrap(), &busy).unwrap();
                assert!(
                    copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 1),
                    "overwritten"
                );
                link.send(b"checked").unwrap();
            },
        );
    }
}

#[test]
fn one_tensor_goes_to_many_and_is_read_at_home() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().delay(SLOW).of_kind(kind);
        exchange(
            "one_tensor_goes_to_many_and_is_read_at_home",
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                draft.write(&numbers(5, 1024)).unwrap();
                let tensor = draft.share().unwrap();
                (0..3).for_each(|_| link.send_tensor(&tensor).unwrap());
                let home = device.to_host(&tensor, &stream).unwrap();
                assert_eq!(home.as_slice::<u32>().unwrap(), numbers(5, 1024));
                // Another stream at home waits for the writer, too.
                let mut slow = pool.alloc::<u8>([4096], &stream).unwrap();
                slow.fill(1).unwrap();
                slow.fill(7).unwrap();
                let slow =
                    device.to_host(&slow.share().unwrap(), &device.stream().unwrap()).unwrap();
                assert_eq!(slow.as_slice::<u8>().unwrap(), [7; 4096]);
                hear(&mut link);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensors: Vec<Tensor> = (0..3).map(|_| recv(&mut link)).collect();
                for tensor in &tensors {
                    let copy = device.to_host(tensor, &stream).unwrap();
                    assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(5, 1024));
                    // It is on loan to this process alone.
                    assert!(tensor.try_clone().is_none());
                    let refused = link.send_tensor(tensor).unwrap_err();
                    assert_eq!(*refused.kind(), ErrorKind::Tensor(TensorFault::GpuLoan));
                    let host = tensor.to_vec::<u32>().unwrap_err();
                    assert_eq!(*host.kind(), ErrorKind::Tensor(TensorFault::OnGpu));
                }
                drop(tensors);
                link.send(b"done").unwrap();
            },
        );
    }
}

#[test]
fn the_death_of_a_borrower_whose_owner_has_left_the_link_frees_its_loans() {
    const TEST: &str = "the_death_of_a_borrower_whose_owner_has_left_the_link_frees_its_loans";
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        let mut two = Two::start(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                for _ in 0..2 {
                    let draft = small_pool(&device).alloc::<u8>([64], &stream).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                }
                hear(&mut link);
                drop(link);
                assert!(device.trim().unwrap() > 0, "the borrower lives, and has it");
                say("gone");
                is_closed(&device);
            },
            |mut link| {
                let _tensor = recv(&mut link);
                link.send(b"one of them is here").unwrap();
                say("received");
                wait_for_death();
            },
        );
        two.borrower.expect("received");
        two.owner.expect("gone");
        two.borrower.kill();
        two.owner.succeeds();
        cuda.was_used_well();
    }
}

#[test]
fn a_borrower_s_death_brings_its_loans_back() {
    // It dies with its work under way, and with its loan returned: the event that it recorded is never over.
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().delay(SLOW).stuck().of_kind(kind);
        let mut two = Two::start(
            "a_borrower_s_death_brings_its_loans_back",
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let mut draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                draft.fill(1).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                say("sent");
                wait_until("the peer dies", || link.send(b"still there?").is_err());
                drop(link);
                let until = std::time::Instant::now() + HANG;
                let dtype = slipring::DType::Uint8;
                pool.alloc_deadline(dtype, [whole_chunk()], &stream, until).unwrap();
                pool.trim().unwrap();
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensor = recv(&mut link);
                drop(device.open(&tensor, &stream).unwrap());
                drop(tensor);
                say("read");
                wait_for_death();
            },
        );
        two.owner.expect("sent");
        two.borrower.expect("read");
        two.borrower.kill();
        two.owner.succeeds();
        cuda.was_used_well();
        // The event that the dead process should record is destroyed, and not used for another loan.
        let by_events = [Kind::Handles, Kind::Events].contains(&kind);
        if !cuda.tells("a_borrower_s_death_brings_its_loans_back") || !by_events {
            continue;
        }
        let trace = cuda.trace();
        let owner = two.owner.pid();
        let dead = trace.iter().rfind(|call| call.name == "cuEventRecord" && call.process != owner);
        let event = &dead.expect("the borrower recorded").arguments[0];
        let later =
            trace.iter().filter(|call| call.name == "cuEventRecord" && call.process == owner);
        assert!(later.clone().all(|call| call.arguments[0] != *event), "{event} was used again");
    }
}

#[test]
fn an_owner_s_death_is_an_error_before_the_next_use() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        let mut two = Two::start(
            "an_owner_s_death_is_an_error_before_the_next_use",
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                for _ in 0..2 {
                    let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
                    draft.fill(1).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                }
                say("sent");
                wait_for_death();
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let (first, second) = (recv(&mut link), recv(&mut link));
                let view = device.open(&first, &stream).unwrap();
                say("open");
                listen_for("it is dead");
                assert_eq!(*link.recv().unwrap_err().kind(), ErrorKind::PeerDied);
                for tensor in [&first, &second] {
                    let refused = device.open(tensor, &stream).unwrap_err();
                    assert_eq!(*refused.kind(), ErrorKind::PeerDied);
                }
                drop(view);
                drop((first, second, link));
                is_closed(&device);
            },
        );
        two.owner.expect("sent");
        two.borrower.expect("open");
        two.owner.kill();
        two.owner.wait();
        two.borrower.tell("it is dead");
        two.borrower.succeeds();
        cuda.was_used_well();
        if !cuda.tells("an_owner_s_death_is_an_error_before_the_next_use") {
            continue;
        }
        let trace = cuda.trace();
        let closed = if kind == Kind::Handles { "cuIpcCloseMemHandle" } else { "cuMemUnmap" };
        assert_eq!(calls(&trace, closed), 1);
    }
}

#[test]
fn a_pool_that_is_dropped_stays_until_all_is_back() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            "a_pool_that_is_dropped_stays_until_all_is_back",
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                draft.write(&numbers(1, 1024)).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                drop(pool);
                assert_eq!(device.trim().unwrap(), 1, "it is on loan");
                link.send(b"dropped").unwrap();
                // Its bytes are back, and the chunk is still open there.
                hear(&mut link);
                if [Kind::Handles, Kind::Events].contains(&Kind::told()) {
                    assert_eq!(device.trim().unwrap(), 1, "it is open");
                } else {
                    // The peer's mapping keeps the memory by itself.
                    is_closed(&device);
                }
                link.close().unwrap();
                is_closed(&device);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let tensor = recv(&mut link);
                hear(&mut link);
                let copy = device.to_host(&tensor, &stream).unwrap();
                assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(1, 1024));
                drop(tensor);
                link.send(b"read").unwrap();
                hear_out(&mut link);
            },
        );
    }
}

#[test]
fn two_ends_in_one_process_share_memory_without_opening_it() {
    let cuda = FakeCuda::new();
    let test = "two_ends_in_one_process_share_memory_without_opening_it";
    alone(test, &cuda, || {
        let context = Context::new().unwrap();
        let (mut near, mut far) = crate::support::pair_of(&context, &Context::new().unwrap());
        let device = device();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        for round in 0..3 {
            let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
            draft.write(&numbers(round, 1024)).unwrap();
            near.send_tensor(draft.share().unwrap()).unwrap();
            let copy = device.to_host(&recv(&mut far), &stream).unwrap();
            assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(round, 1024));
        }
    });
    cuda.was_used_well();
    if !cuda.tells("two_ends_in_one_process_share_memory_without_opening_it") {
        return;
    }
    let trace = cuda.trace();
    assert_eq!(calls(&trace, "cuIpcOpenMemHandle_v2") + calls(&trace, "cuIpcOpenEventHandle"), 0);
}

#[test]
fn a_link_keeps_few_chunks_open_that_it_does_not_use() {
    const TEST: &str = "a_link_keeps_few_chunks_open_that_it_does_not_use";
    const CHUNKS: u32 = 80;
    let cuda = FakeCuda::new();
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            let pools: Vec<Pool> = (0..CHUNKS).map(|_| small_pool(&device)).collect();
            for round in 0..3 {
                // The last ones are open, the first ones no longer.
                let order: Vec<&Pool> =
                    if round == 1 { pools.iter().rev().collect() } else { pools.iter().collect() };
                for pool in order {
                    let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                    draft.write(&numbers(round, 1024)).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                    hear(&mut link);
                }
            }
            drop((pools, link));
            is_closed(&device);
        },
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            for at in 0..3 * CHUNKS {
                let tensor = recv(&mut link);
                let copy = device.to_host(&tensor, &stream).unwrap();
                assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(at / CHUNKS, 1024));
                link.send(b"read").unwrap();
            }
        },
    );
    if !cuda.tells(TEST) {
        return;
    }
    let (mut open, mut most) = (0i32, 0);
    for call in cuda.trace() {
        open += i32::from(call.name == "cuIpcOpenMemHandle_v2");
        open -= i32::from(call.name == "cuIpcCloseMemHandle");
        most = most.max(open);
    }
    assert_eq!(open, 0);
    // Another thread closes what is too many.
    assert!((64..80).contains(&most), "{most} were open at once");
}

#[test]
fn a_tensor_goes_through_a_reactor_and_waits_behind_messages() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            "a_tensor_goes_through_a_reactor_and_waits_behind_messages",
            &cuda,
            |link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let context = Context::new().unwrap();
                let reactor = slipring::Reactor::spawn(&context).unwrap();
                let link = reactor.adopt(link).unwrap();
                let (say, said) = crate::support::callbacks::diary();
                link.on_message(move |_, message| say(message.bytes().to_vec()));
                for round in 0..20 {
                    let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                    draft.write(&numbers(round, 1024)).unwrap();
                    link.write_tensor(draft.share().unwrap());
                    link.write(b"behind");
                    assert_eq!(crate::support::callbacks::hear(&said), b"read");
                }
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                for round in 0..20 {
                    let tensor = recv(&mut link);
                    hear(&mut link);
                    let copy = device.to_host(&tensor, &stream).unwrap();
                    assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(round, 1024));
                    link.send(b"read").unwrap();
                }
            },
        );
    }
}

#[test]
fn a_set_that_waits_is_lent_once_more_when_there_is_room() {
    const TEST: &str = "a_set_that_waits_is_lent_once_more_when_there_is_room";
    const TURNS: usize = 300;
    let cuda = FakeCuda::new().of_kind(Kind::Events);
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let (pool, stream) = (device.pool_with(pool_options()).unwrap(), device.stream().unwrap());
        // A peer has two loans of each tensor.
        let set = || {
            let mut set = TensorSet::new();
            for _ in 0..10 {
                set.push(pool.alloc::<u32>([4], &stream).unwrap().share().unwrap());
            }
            set
        };
        // What is lacking: loans, their bytes, of which each takes 64 at least, or room in the ring.
        for lacking in ["loans", "bytes", "ring"] {
            let options = match lacking {
                "bytes" => Options::new().loan_limit(200, 30 * 64),
                _ => Options::new().loan_limit(30, 1 << 20),
            };
            let context = Context::with_options(options).unwrap();
            let (near, mut far) = pair_of(&context, &Context::new().unwrap());
            let reactor = slipring::Reactor::spawn(&context).unwrap();
            let link = reactor.adopt(near).unwrap();
            let (mut messages, mut sets) = (0, 1);
            if lacking == "ring" {
                while link.try_send(&[7; 1000]).is_ok() {
                    messages += 1;
                }
            } else {
                sets += 1;
                link.write_tensors(set());
            }
            link.write_tensors(set());
            for _ in 0..TURNS {
                settle(&reactor);
            }
            assert!(link.waiting_bytes() > 0, "{lacking}");
            for _ in 0..messages {
                hear(&mut far);
            }
            for _ in 0..sets {
                let came = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
                assert_eq!(came.len(), 10);
            }
            drop((link, reactor, far));
        }
        drop((pool, stream));
        is_closed(&device);
    });
    let trace = cuda.trace();
    let asked = calls(&trace, "cuEventQuery") + calls(&trace, "cuEventCreate");
    assert!(asked < TURNS, "{asked} calls for {TURNS} turns");
}

#[test]
fn a_tensor_that_is_tried_without_end_takes_no_more_of_the_pool() {
    const TEST: &str = "a_tensor_that_is_tried_without_end_takes_no_more_of_the_pool";
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    alone(TEST, &cuda, || {
        let device = device();
        let (pool, stream) = (device.pool_with(pool_options()).unwrap(), device.stream().unwrap());
        let tensor = pool.alloc::<u32>([4], &stream).unwrap().share().unwrap();
        const QUOTA: u64 = 1 << 20;
        let context = Context::with_options(Options::new().pool_quota(QUOTA)).unwrap();
        let (mut near, far) = pair_of(&context, &Context::new().unwrap());
        while near.sender().try_send(b"full").is_ok() {}
        // Each try takes two blocks of 64 bytes, and gives them back.
        for _ in 0..QUOTA / 64 {
            let refused = near.sender().try_send_tensor(&tensor).unwrap_err();
            assert!(matches!(refused, TrySendError::Full { .. }), "{refused}");
        }
        drop((near, far, tensor, pool, stream));
        is_closed(&device);
    });
    cuda.was_used_well();
}

#[test]
fn what_was_never_taken_comes_back_with_an_orderly_close() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        let mut two = Two::start(
            "what_was_never_taken_comes_back_with_an_orderly_close",
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (small_pool(&device), device.stream().unwrap());
                let draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
                // The peer may have closed already.
                let _ = link.send(b"behind it");
                // Wherever the peer goes on living.
                hear_out(&mut link);
                let (until, dtype) = (soon(), slipring::DType::Uint8);
                drop(pool.alloc_deadline(dtype, [whole_chunk()], &stream, until).unwrap());
            },
            |mut link| {
                // The tensor stays in the ring.
                let met = link.receiver().recv_deadline(soon()).unwrap_err();
                assert!(matches!(met.kind(), ErrorKind::OtherKind { .. }), "{met}");
                link.close().unwrap();
                // And lives on.
                wait_for_death();
            },
        );
        two.owner.succeeds();
        cuda.was_used_well();
    }
}

#[test]
fn links_that_come_and_go_leave_nothing_with_a_tensor_that_stays() {
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        let test = "links_that_come_and_go_leave_nothing_with_a_tensor_that_stays";
        alone(test, &cuda, || {
            let context = Context::new().unwrap();
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
            draft.write(&numbers(1, 1024)).unwrap();
            let tensor = draft.share().unwrap();
            let round = || {
                let (mut near, mut far) =
                    crate::support::pair_of(&context, &Context::new().unwrap());
                near.send_tensor(&tensor).unwrap();
                let copy = device.to_host(&recv(&mut far), &stream).unwrap();
                assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(1, 1024));
            };
            (0..3).for_each(|_| round());
            let settled = || {
                pool.trim().unwrap();
                device.trim().unwrap() == 0
            };
            wait_until("all is closed", settled);
            let before = crate::support::census::descriptors();
            (0..50).for_each(|_| round());
            // The last ones may be looked at before their links are over.
            wait_until("all is closed", || {
                settled() && crate::support::census::descriptors() <= before
            });
            drop((tensor, pool));
            is_closed(&device);
        });
        cuda.was_used_well();
    }
}

#[test]
fn a_tensor_that_is_sent_again_and_again_takes_no_more_with_time() {
    const TEST: &str = "a_tensor_that_is_sent_again_and_again_takes_no_more_with_time";
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().of_kind(kind);
        alone(TEST, &cuda, || {
            let context = Context::new().unwrap();
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
            draft.write(&numbers(1, 1024)).unwrap();
            let tensor = draft.share().unwrap();
            let (mut near, mut far) = crate::support::pair_of(&context, &Context::new().unwrap());
            for _ in 0..500 {
                near.send_tensor(&tensor).unwrap();
                drop(device.open(&recv(&mut far), &stream).unwrap());
                drop(device.open(&tensor, &stream).unwrap());
                stream.synchronize().unwrap();
            }
            drop((tensor, pool, near, far));
            is_closed(&device);
        });
        cuda.was_used_well();
        if cuda.tells(TEST) {
            let made = calls(&cuda.trace(), "cuEventCreate");
            assert!(made < 40, "{made} events");
        }
    }
}

#[test]
fn an_operation_enters_the_context_once_and_leaves_the_callers_as_it_was() {
    const TEST: &str = "an_operation_enters_the_context_once_and_leaves_the_callers_as_it_was";
    const ROUNDS: usize = 200;
    for kind in Kind::ALL {
        let cuda = FakeCuda::new().devices(2).of_kind(kind);
        alone(TEST, &cuda, || {
            // Of another GPU, and in another mode than this library's.
            let theirs = driver::begin(1);
            let mut mode = 1;
            assert_eq!(driver::cuThreadExchangeStreamCaptureMode(&mut mode), 0);
            let is_theirs = || {
                let mut mode = 1;
                assert_eq!(driver::cuThreadExchangeStreamCaptureMode(&mut mode), 0);
                driver::given(driver::cuCtxGetCurrent) == theirs && mode == 1
            };
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            let context = Context::new().unwrap();
            let (mut near, mut far) = crate::support::pair_of(&context, &Context::new().unwrap());
            for round in 0..ROUNDS {
                let mut draft = pool.alloc::<u32>([1024], &stream).unwrap();
                assert!(is_theirs());
                draft.write(&numbers(round as u32, 1024)).unwrap();
                assert!(is_theirs());
                near.send_tensor(draft.share().unwrap()).unwrap();
                assert!(is_theirs());
                let tensor = recv(&mut far);
                let view = device.open(&tensor, &stream).unwrap();
                assert!(is_theirs());
                drop(view);
                assert!(is_theirs());
                drop(tensor);
                // It is over when it is asked for.
                stream.synchronize().unwrap();
            }
            drop((pool, stream, near, far));
            is_closed(&device);
            assert!(is_theirs());
            assert_eq!(driver::cuCtxPopCurrent_v2(&mut 0), 0);
            assert_eq!(driver::cuDevicePrimaryCtxRelease_v2(1), 0);
        });
        cuda.was_used_well();
        if cuda.tells(TEST) {
            let trace = cuda.trace();
            // The thread that gives loans back is another one.
            let here = trace.iter().find(|call| call.name == "cuInit").unwrap().thread;
            let trace: Vec<_> = trace.into_iter().filter(|call| call.thread == here).collect();
            let [pushed, popped] =
                ["cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"].map(|name| calls(&trace, name));
            assert_eq!(pushed, popped);
            // Writing, sharing, opening, dropping, synchronizing; taking back now and then; and what is made once.
            assert!(pushed < 6 * ROUNDS + 60, "{pushed} in {ROUNDS} rounds");
        }
    }
}
