//! Segments of host memory are pinned once, and unpinned before they are unmapped, whatever ends their use.

#![allow(unsafe_code)]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use slipring::cuda::Device;
use slipring::error::CudaFault;
use slipring::{Context, DType, ErrorKind, Tensor};

use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{Call, FakeCuda};
use crate::support::gpus::{
    Two, alone, calls, cuda_fault, device, driver_fault, exchange, hear, hear_out, is_closed,
    numbers, recv, small_pool,
};
use crate::support::other::{fork, listen_for, say, wait_for_death};
use crate::support::{pair_of, wait_until};

const GIB: u64 = 1 << 30;

/// Numbers of the host, in the pool of a context.
fn shared(context: &Context, first: u32, count: u32) -> Tensor {
    let mut tensor = context.alloc::<u32>([count as usize]).unwrap();
    tensor.copy_from_slice(&numbers(first, count));
    tensor.share().unwrap()
}

/// The calls that have registered and unregistered memory.
fn pins(trace: &[Call]) -> (usize, usize) {
    let succeeded = |name| trace.iter().filter(|call| call.name == name && call.code == 0).count();
    (succeeded("cuMemHostRegister_v2"), succeeded("cuMemHostUnregister"))
}

/// Waits until no memory of a pool of the host is mapped, and so none is pinned. What a link has kept is let go of on another
/// thread, and the next look unpins it.
fn is_unpinned(device: &Device) {
    let is_mapped =
        || std::fs::read_to_string("/proc/self/maps").unwrap().contains("slipring.pool");
    wait_until("all is unpinned", || device.trim().unwrap() == 0 && !is_mapped());
    is_closed(device);
}

#[test]
fn a_peers_segment_is_pinned_once_and_unpinned_when_its_link_is_gone() {
    const TEST: &str = "a_peers_segment_is_pinned_once_and_unpinned_when_its_link_is_gone";
    let cuda = FakeCuda::new();
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let context = Context::new().unwrap();
            for first in 0..20 {
                link.send_tensor(shared(&context, first, 1 << 14)).unwrap();
            }
            hear_out(&mut link);
        },
        |mut link| {
            let device = device();
            let (pool, stream) = (device.pool(), device.stream().unwrap());
            let tensors: Vec<Tensor> = (0..20).map(|_| recv(&mut link)).collect();
            for (first, tensor) in (0..).zip(&tensors) {
                device.pin(tensor, GIB).unwrap();
                let there = pool.copy_of(tensor, &stream).unwrap().share().unwrap();
                let back = device.to_host(&there, &stream).unwrap();
                assert_eq!(back.as_slice::<u32>().unwrap(), numbers(first, 1 << 14));
            }
            // A link alone keeps them pinned, and so does a tensor alone.
            let last = tensors.into_iter().next_back();
            device.pin(last.as_ref().unwrap(), GIB).unwrap();
            link.close().unwrap();
            device.trim().unwrap();
            device.pin(last.as_ref().unwrap(), GIB).unwrap();
            drop(last);
            is_unpinned(&device);
        },
    );
    if cuda.tells(TEST) {
        let (registered, unregistered) = pins(&cuda.trace());
        assert_eq!(registered, unregistered);
        assert!((1..=3).contains(&registered), "{registered} for 20 tensors of 64 KiB");
    }
}

#[test]
fn a_segment_of_the_own_pool_is_pinned_until_its_context_is_gone() {
    const TEST: &str = "a_segment_of_the_own_pool_is_pinned_until_its_context_is_gone";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        let device = device();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        let context = Context::new().unwrap();
        let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
        let mut draft = pool.alloc::<u32>([16], &stream).unwrap();
        draft.write(&numbers(3, 16)).unwrap();
        let view = device.open(&draft.share().unwrap(), &stream).unwrap();
        let mut home = context.alloc::<u8>([64]).unwrap();
        device.pin_mut(&home, GIB).unwrap();
        view.read(&mut home).unwrap();
        let home = home.share().unwrap();
        device.pin(&home, GIB).unwrap();
        near.send_tensor(&home).unwrap();
        // The same memory, as the peer has it mapped, is another mapping.
        let came = recv(&mut far);
        device.pin(&came, GIB).unwrap();
        let there = pool.copy_of(&came, &stream).unwrap().share().unwrap();
        let back = device.to_host(&there, &stream).unwrap();
        assert_eq!(back.as_bytes().unwrap(), home.as_bytes().unwrap());
        drop((view, there, came, home, near, far, context, pool));
        is_unpinned(&device);
        drop(stream);
    });
    cuda.was_used_well();
    if cuda.tells(TEST) {
        assert_eq!(pins(&cuda.trace()), (2, 2));
    }
}

#[test]
fn what_cannot_be_pinned_is_refused_with_the_reason() {
    const TEST: &str = "what_cannot_be_pinned_is_refused_with_the_reason";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        let device = device();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        let context = Context::new().unwrap();
        let mine = shared(&context, 0, 16);
        let why = "it lies in no segment of a pool";
        let refused = |tensor: &Tensor| cuda_fault(device.pin(tensor, GIB));
        let private = mine.to_private().unwrap();
        assert_eq!(refused(&private), CudaFault::NotPinnable { why });
        let mut frozen = context.alloc_frozen::<u8>([64]).unwrap();
        frozen.fill(1);
        assert_eq!(cuda_fault(device.pin_mut(&frozen, GIB)), CudaFault::NotPinnable { why });
        let on_gpu = pool.copy_of(&mine, &stream).unwrap().share().unwrap();
        assert_eq!(refused(&on_gpu), CudaFault::NotPinnable { why });
        let empty = Tensor::from_bytes(DType::Uint8, [0], &[]).unwrap();
        assert_eq!(refused(&empty), CudaFault::NotPinnable { why });
        // The limit is one of the process.
        let CudaFault::PinLimit { used: 0, needed, limit: 0 } = cuda_fault(device.pin(&mine, 0))
        else {
            panic!("no limit");
        };
        device.pin(&mine, needed).unwrap();
        device.pin(&mine, 0).unwrap();
        let other = shared(&Context::new().unwrap(), 0, 16);
        let fault = CudaFault::PinLimit { used: needed, needed, limit: 2 * needed - 1 };
        assert_eq!(cuda_fault(device.pin(&other, 2 * needed - 1)), fault);
        device.pin(&other, 2 * needed).unwrap();
        drop((mine, private, frozen, on_gpu, other, context, pool));
        is_unpinned(&device);
        drop(stream);
    });
    cuda.was_used_well();
}

#[test]
fn a_gpu_or_a_driver_that_pins_nothing_is_an_error() {
    const TEST: &str = "a_gpu_or_a_driver_that_pins_nothing_is_an_error";
    let body = || {
        let device = device();
        let context = Context::new().unwrap();
        let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
        let mine = shared(&context, 0, 16);
        near.send_tensor(&mine).unwrap();
        let came = recv(&mut far);
        let is_refused =
            |tensor| matches!(cuda_fault(device.pin(tensor, GIB)), CudaFault::NotPinnable { .. });
        match std::env::var("FAKE_CUDA_FAIL").is_ok() {
            true => {
                // The first call fails. The next one tries again.
                let fault = driver_fault(device.pin(&came, GIB));
                assert_eq!(fault, ("cuMemHostRegister_v2", 2));
                device.pin(&came, GIB).unwrap();
            }
            false => {
                assert!(is_refused(&came));
                let is_all = std::env::var("FAKE_CUDA_NO_PINS").is_ok();
                if is_all {
                    assert!(is_refused(&mine));
                } else {
                    device.pin(&mine, GIB).unwrap();
                }
            }
        }
        drop((mine, came, near, far, context));
        is_unpinned(&device);
    };
    for cuda in [
        FakeCuda::new().without_pins(),
        FakeCuda::new().without_read_only_pins(),
        FakeCuda::new().fail("cuMemHostRegister_v2:2"),
    ] {
        alone(TEST, &cuda, body);
        cuda.was_used_well();
    }
}

#[test]
fn a_copy_to_pinned_memory_is_over_when_its_call_returns_an_error() {
    const TEST: &str = "a_copy_to_pinned_memory_is_over_when_its_call_returns_an_error";
    // The driver cannot tell of the third wait for a stream, nor of the questions after it.
    let plan = "cuStreamSynchronize:46:3:2,cuStreamQuery:46:2:1";
    let cuda = FakeCuda::new().delay(Duration::from_millis(50)).fail(plan);
    alone(TEST, &cuda, || {
        let device = device();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        let context = Context::new().unwrap();
        let mut draft = pool.alloc::<u32>([16], &stream).unwrap();
        draft.write(&numbers(3, 16)).unwrap();
        let view = device.open(&draft.share().unwrap(), &stream).unwrap();
        stream.synchronize().unwrap();
        let mut home = context.allocation().zeroed().dtype(DType::Uint32, [16]).unwrap();
        device.pin_mut(&home, GIB).unwrap();
        assert_eq!(driver_fault(view.read(&mut home)), ("cuStreamSynchronize", 46));
        let home = home.share().unwrap();
        assert_eq!(home.as_slice::<u32>().unwrap(), numbers(3, 16));
        drop((view, home, context, pool));
        is_unpinned(&device);
        drop(stream);
    });
    cuda.was_used_well();
}

#[test]
fn memory_that_another_library_has_pinned_is_an_error_of_the_driver() {
    const TEST: &str = "memory_that_another_library_has_pinned_is_an_error_of_the_driver";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        driver::begin(0);
        let device = device();
        let context = Context::new().unwrap();
        let mine = shared(&context, 0, 1 << 10);
        let page = mine.as_bytes().unwrap().as_ptr().cast_mut().cast();
        assert_eq!(driver::cuMemHostRegister_v2(page, 4096, 1), 0);
        assert_eq!(driver_fault(device.pin(&mine, GIB)), ("cuMemHostRegister_v2", 712));
        assert_eq!(driver::cuMemHostUnregister(page), 0);
        device.pin(&mine, GIB).unwrap();
        drop((mine, context));
        is_unpinned(&device);
        drop(device);
        assert_eq!(driver::cuCtxPopCurrent_v2(&mut 0), 0);
        assert_eq!(driver::cuDevicePrimaryCtxRelease_v2(0), 0);
    });
    cuda.was_used_well();
}

#[test]
fn two_threads_pin_a_segment_once() {
    const TEST: &str = "two_threads_pin_a_segment_once";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        let device = device();
        for _ in 0..20 {
            let context = Context::new().unwrap();
            let tensors = [shared(&context, 0, 16), shared(&context, 1, 16)];
            let start = Barrier::new(2);
            let pin = |tensor| {
                start.wait();
                device.pin(tensor, GIB).unwrap();
            };
            std::thread::scope(|scope| {
                scope.spawn(|| pin(&tensors[0]));
                pin(&tensors[1]);
            });
            drop((tensors, context));
            is_unpinned(&device);
        }
    });
    cuda.was_used_well();
    if cuda.tells(TEST) {
        assert_eq!(pins(&cuda.trace()), (20, 20));
        assert_eq!(calls(&cuda.trace(), "cuMemHostRegister_v2"), 20);
    }
}

#[test]
fn a_segment_that_is_being_pinned_holds_up_no_other_one() {
    const TEST: &str = "a_segment_that_is_being_pinned_holds_up_no_other_one";
    const LONG: Duration = Duration::from_secs(1);
    let cuda = FakeCuda::new().registers_in(LONG);
    if !cuda.is_there(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let contexts = [Context::new().unwrap(), Context::new().unwrap()];
        let tensors = contexts.each_ref().map(|context| shared(context, 0, 16));
        device.pin(&tensors[0], GIB).unwrap();
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| device.pin(&tensors[1], GIB).unwrap());
            std::thread::sleep(LONG / 4);
            let start = Instant::now();
            device.pin(&tensors[0], GIB).unwrap();
            device.trim().unwrap();
            assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
            assert!(!slow.is_finished());
            // The bytes of the segment count already, and a second call waits for the first.
            device.pin(&tensors[1], 0).unwrap();
            assert!(start.elapsed() > LONG / 4, "{:?}", start.elapsed());
        });
        drop((tensors, contexts));
        is_unpinned(&device);
    });
    cuda.was_used_well();
    assert_eq!(pins(&cuda.trace()), (2, 2));
}

#[test]
fn a_segment_that_the_driver_does_not_unpin_stays_mapped_until_it_does() {
    const TEST: &str = "a_segment_that_the_driver_does_not_unpin_stays_mapped_until_it_does";
    let cuda = FakeCuda::new().fail("cuMemHostUnregister:999:1:2");
    if !cuda.is_there(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let context = Context::new().unwrap();
        let tensor = shared(&context, 0, 16);
        device.pin(&tensor, GIB).unwrap();
        drop((tensor, context));
        is_unpinned(&device);
    });
    // The driver tells of a range that is unmapped before, or left registered.
    cuda.was_used_well();
    assert_eq!(calls(&cuda.trace(), "cuMemHostUnregister"), 4);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The copies that are compared take turns.
#[test]
fn a_gpu_reads_a_pinned_segment_as_fast_as_memory_of_the_driver() {
    const TEST: &str = "a_gpu_reads_a_pinned_segment_as_fast_as_memory_of_the_driver";
    const LEN: usize = 256 << 20;
    let cuda = FakeCuda::new();
    if !cuda.has_speed(TEST) {
        return;
    }
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let context = Context::new().unwrap();
            link.send_tensor(context.alloc::<u8>([LEN]).unwrap()).unwrap();
            hear_out(&mut link);
        },
        |mut link| {
            driver::begin(0);
            let device = device();
            let (pool, stream) = (device.pool(), device.stream().unwrap());
            let tensor = recv(&mut link);
            let mine = driver::given(|to| driver::cuMemAllocHost_v2(to, LEN));
            let (there, raw) = (driver::alloc(LEN), stream.as_raw().addr());
            let from_mine = || {
                let mine = std::ptr::without_provenance(mine);
                assert_eq!(driver::cuMemcpyHtoDAsync_v2(there, mine, LEN, raw), 0);
                assert_eq!(driver::cuStreamSynchronize(raw), 0);
            };
            let from_tensor = || drop(pool.copy_of(&tensor, &stream).unwrap());
            let speed = |copy: &dyn Fn()| {
                let start = Instant::now();
                copy();
                LEN as f64 / start.elapsed().as_secs_f64() / 1e9
            };
            // The first copies take memory of the GPU, and wake it.
            let warm = |speeds: Vec<f64>| median(speeds[3..].to_vec());
            let pageable = warm((0..10).map(|_| speed(&from_tensor)).collect());
            device.pin(&tensor, 64 * GIB).unwrap();
            let rounds = (0..23).map(|_| (speed(&from_tensor), speed(&from_mine)));
            let (pinned, floor) = rounds.unzip();
            let (pinned, floor) = (warm(pinned), warm(floor));
            println!("256 MiB from the host to the GPU, GB/s, medians:");
            println!("  a received tensor         {pageable:6.2}");
            println!("  a received tensor, pinned {pinned:6.2}");
            println!("  memory of cuMemAllocHost  {floor:6.2}");
            assert!(pinned >= 0.95 * floor, "{pinned} of {floor} GB/s");
            drop((tensor, pool, stream));
            link.close().unwrap();
            assert_eq!((driver::cuMemFreeHost(mine), driver::cuMemFree_v2(there)), (0, 0));
        },
    );
}

/// A reader of a tensor that it pins; whatever the owner then does, nothing is left pinned.
fn survive(link: slipring::Connection) {
    let mut link = link;
    let device: Device = device();
    let tensor = recv(&mut link);
    device.pin(&tensor, GIB).unwrap();
    say("pinned");
    listen_for("it is gone");
    assert!(link.recv().is_err());
    let (pool, stream) = (device.pool(), device.stream().unwrap());
    // What is left of it is copied, or was taken back.
    match pool.copy_of(&tensor, &stream) {
        Ok(draft) => drop(draft),
        Err(error) => assert_eq!(*error.kind(), ErrorKind::LoanRevoked),
    }
    drop((link, tensor, pool, stream));
    is_unpinned(&device);
}

#[test]
fn a_segment_of_a_peer_that_dies_is_unpinned() {
    const TEST: &str = "a_segment_of_a_peer_that_dies_is_unpinned";
    let cuda = FakeCuda::new();
    let mut two = Two::start(
        TEST,
        &cuda,
        |mut link| {
            link.send_tensor(shared(&Context::new().unwrap(), 0, 1 << 14)).unwrap();
            wait_for_death();
        },
        survive,
    );
    two.borrower.expect("pinned");
    two.owner.kill();
    two.owner.wait();
    two.borrower.tell("it is gone");
    two.borrower.succeeds();
    cuda.was_used_well();
    if cuda.tells(TEST) {
        assert_eq!(pins(&cuda.trace()), (1, 1));
    }
}

#[test]
fn a_segment_of_a_peer_that_aborts_is_unpinned() {
    const TEST: &str = "a_segment_of_a_peer_that_aborts_is_unpinned";
    let cuda = FakeCuda::new();
    let mut two = Two::start(
        TEST,
        &cuda,
        |mut link| {
            link.send_tensor(shared(&Context::new().unwrap(), 0, 1 << 14)).unwrap();
            hear(&mut link);
            link.abort();
            say("aborted");
        },
        |mut link| {
            let tensor = recv(&mut link);
            link.send(b"abort").unwrap();
            let device = device();
            device.pin(&tensor, GIB).unwrap();
            say("pinned");
            listen_for("it is gone");
            drop((link, tensor));
            is_unpinned(&device);
        },
    );
    two.borrower.expect("pinned");
    two.owner.expect("aborted");
    two.borrower.tell("it is gone");
    two.succeed();
    cuda.was_used_well();
    if cuda.tells(TEST) {
        assert_eq!(pins(&cuda.trace()), (1, 1));
    }
}

#[test]
fn what_a_peer_takes_back_during_a_copy_is_an_error() {
    const TEST: &str = "what_a_peer_takes_back_during_a_copy_is_an_error";
    // The copy lasts so long.
    let cuda = FakeCuda::new().delay(Duration::from_secs(1));
    alone(TEST, &cuda, || {
        let device = device();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        let context = Context::new().unwrap();
        let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
        near.send_tensor(shared(&context, 0, 16)).unwrap();
        let came = recv(&mut far);
        device.pin(&came, GIB).unwrap();
        let is_revoked = |answer: slipring::Result<slipring::cuda::Draft<u8>>| {
            assert_eq!(*answer.unwrap_err().kind(), ErrorKind::LoanRevoked);
        };
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| pool.copy_of(&came, &stream));
            std::thread::sleep(Duration::from_millis(100));
            near.abort();
            is_revoked(copy.join().unwrap());
        });
        is_revoked(pool.copy_of(&came, &stream));
        is_revoked(pool.copy_of_deadline(&came, &stream, Instant::now()));
        drop((came, far, context, pool));
        is_unpinned(&device);
        drop(stream);
    });
    cuda.was_used_well();
}

#[test]
fn a_forked_child_pins_nothing() {
    const TEST: &str = "a_forked_child_pins_nothing";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        let device = device();
        let context = Context::new().unwrap();
        let mine = shared(&context, 0, 16);
        device.pin(&mine, GIB).unwrap();
        let ended = fork(|| {
            assert_eq!(*device.pin(&mine, GIB).unwrap_err().kind(), ErrorKind::Forked);
            assert_eq!(*device.trim().unwrap_err().kind(), ErrorKind::Forked);
        });
        assert_eq!(ended, 0);
        drop((mine, context));
        is_unpinned(&device);
    });
    cuda.was_used_well();
    if cuda.tells(TEST) {
        assert_eq!(pins(&cuda.trace()), (1, 1));
    }
}
