//! Several GPUs of a process: a tensor that lies on one of them is read by another.

use std::time::Duration;

use slipring::cuda::{Device, Stream};
use slipring::error::CudaFault;
use slipring::{Connection, DType, ErrorKind};

use crate::support::fake_cuda::{Call, FakeCuda, Kind};
use crate::support::gpus::{
    Two, alone, calls, cuda_fault, driver_fault, exchange, hear, hear_out, is_closed, pool_options,
    recv, small_pool, whole_chunk,
};
use crate::support::other::{say, wait_for_death};
use crate::support::{soon, wait_until};

/// A stream's pause before each of its acts: longer than everything else that happens meanwhile.
const SLOW: Duration = Duration::from_millis(20);

/// An owner that is this slow writes no word before somebody kills it.
const TOO_SLOW: Duration = Duration::from_millis(200);

/// The kinds of pools whose memory several GPUs can use.
const KINDS: [Kind; 2] = [Kind::Words, Kind::Synchronized];

/// Returns a driver of two GPUs, or the machine's own.
fn two_gpus() -> FakeCuda {
    FakeCuda::new().if_fake(|cuda| cuda.devices(2))
}

/// Returns whether the second GPU can use memory of the first. Otherwise the test says so.
fn is_there(test: &str, cuda: &FakeCuda) -> bool {
    if !cuda.is_there(test) {
        return false;
    }
    // The driver without a GPU has the two that it was told.
    let can = std::env::var_os("SLIPRING_GPU").is_none()
        || Device::all().unwrap().get(..2).is_some_and(|two| two[1].can_access(&two[0]).unwrap());
    if !can {
        eprintln!("skipped: {test} needs two GPUs, of which one can use memory of the other");
    }
    can
}

fn devices() -> [Device; 2] {
    [0, 1].map(|at| Device::new(at).unwrap())
}

fn devices_and_streams() -> [(Device, Stream); 2] {
    devices().map(|device| {
        let stream = device.stream().unwrap();
        (device, stream)
    })
}

/// Returns the arguments of the calls that gave access, by process.
fn accesses(trace: &[Call], process: u32) -> Vec<&str> {
    let given =
        trace.iter().filter(|call| call.name == "cuMemSetAccess" && call.process == process);
    given.map(|call| call.arguments.last().unwrap().as_str()).collect()
}

fn importer(trace: &[Call]) -> u32 {
    trace.iter().find(|call| call.name == "cuMemImportFromShareableHandle").unwrap().process
}

/// Sends tensors that are written after they were sent, uses the memory of the first one again, and takes it back.
fn lend(mut link: Connection) {
    let [(device, stream), _] = devices_and_streams();
    let pool = small_pool(&device);
    for round in 0..3 {
        let draft = pool.alloc_deadline(DType::Uint8, [whole_chunk()], &stream, soon());
        let mut draft = draft.unwrap();
        (0..5).for_each(|_| draft.fill(7).unwrap());
        draft.fill(round).unwrap();
        link.send_tensor(draft.share().unwrap()).unwrap();
    }
    hear(&mut link);
    // The quota counts the chunk until the peer has unmapped it.
    wait_until("the peer has unmapped the chunk", || {
        pool.trim().unwrap();
        pool.bytes().unwrap() == 0
    });
    link.send(b"withdrawn").unwrap();
    hear_out(&mut link);
    drop((pool, link));
    is_closed(&device);
}

fn read_on_the_other(mut link: Connection) {
    let [(home, near), (other, stream)] = devices_and_streams();
    assert!(other.can_access(&home).unwrap() && other.can_access(&other).unwrap());
    let own = other.pool_with(pool_options()).unwrap();
    for round in 0..3 {
        let tensor = recv(&mut link);
        assert_eq!(tensor.gpu(), Some(home.uuid()));
        let view = other.open(&tensor, &stream).unwrap();
        let mut copy = own.alloc::<u8>([whole_chunk()], &stream).unwrap();
        // The stream does nothing of this before the call is over.
        copy.copy_from(&view).unwrap();
        view.check().unwrap();
        let there = home.to_host(&tensor, &near).unwrap();
        drop((view, tensor));
        let here = other.to_host(&copy.share().unwrap(), &stream).unwrap();
        for copy in [here, there] {
            assert!(copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == round), "{round}");
        }
    }
    link.send(b"read").unwrap();
    hear(&mut link);
    link.close().unwrap();
    drop(own);
    is_closed(&other);
}

#[test]
fn a_tensor_is_read_by_another_gpu_of_the_receiver() {
    const TEST: &str = "a_tensor_is_read_by_another_gpu_of_the_receiver";
    for kind in KINDS {
        let cuda = two_gpus().delay(SLOW).of_kind(kind);
        if !is_there(TEST, &cuda) {
            return;
        }
        exchange(TEST, &cuda, lend, read_on_the_other);
        if !cuda.tells(TEST) {
            continue;
        }
        let trace = cuda.trace();
        assert_eq!(calls(&trace, "cuMemImportFromShareableHandle"), 1);
        // The last one is of the own pool.
        assert_eq!(accesses(&trace, importer(&trace)), ["dev:0", "dev:1", "dev:1"]);
        let awaited = { trace.iter() }
            .filter(|call| call.name == "cuStreamWaitValue64_v2" && call.device == Some(1));
        assert_eq!(awaited.count(), if kind == Kind::Words { 3 } else { 0 });
    }
}

#[test]
fn memory_of_this_process_is_read_by_another_gpu() {
    const TEST: &str = "memory_of_this_process_is_read_by_another_gpu";
    for kind in KINDS {
        let cuda = two_gpus().delay(SLOW).of_kind(kind);
        if !is_there(TEST, &cuda) {
            return;
        }
        alone(TEST, &cuda, || {
            let [(home, near), (other, stream)] = devices_and_streams();
            let (pool, own) = (small_pool(&home), other.pool());
            let alloc = || pool.alloc_deadline(DType::Uint8, [whole_chunk()], &near, soon());
            for round in 0..3 {
                let mut draft = alloc().unwrap();
                // Longer than the reader takes to its copy.
                (0..6).for_each(|_| draft.fill(7).unwrap());
                draft.fill(round).unwrap();
                let tensor = draft.share().unwrap();
                let view = other.open(&tensor, &stream).unwrap();
                let mut copy = own.alloc::<u8>([whole_chunk()], &stream).unwrap();
                (0..3).for_each(|_| copy.fill(9).unwrap());
                copy.copy_from(&view).unwrap();
                drop((tensor, view));
                let taken = pool.alloc::<u8>([1], &near);
                assert!(matches!(cuda_fault(taken), CudaFault::Exhausted { .. }));
                // What is written next comes after the other GPU has read.
                let mut next = alloc().unwrap();
                next.fill(8).unwrap();
                near.synchronize().unwrap();
                let copy = other.to_host(&copy.share().unwrap(), &stream).unwrap();
                assert!(copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == round));
            }
            // An idle stream has read.
            let tensor = alloc().unwrap().share().unwrap();
            let view = other.open(&tensor, &stream).unwrap();
            stream.synchronize().unwrap();
            drop((view, tensor));
            drop(alloc().unwrap());
            drop((pool, own));
            is_closed(&home);
            is_closed(&other);
        });
        cuda.was_used_well();
        if cuda.tells(TEST) {
            let trace = cuda.trace();
            assert_eq!(accesses(&trace, trace[0].process), ["dev:0", "dev:1"]);
        }
    }
}

#[test]
fn reads_by_another_gpu_leave_no_events_behind() {
    const TEST: &str = "reads_by_another_gpu_leave_no_events_behind";
    let cuda = two_gpus().delay(Duration::from_millis(1)).of_kind(Kind::Words);
    if !is_there(TEST, &cuda) {
        return;
    }
    alone(TEST, &cuda, || {
        let [(home, near), (other, stream)] = devices_and_streams();
        let (pool, own) = (small_pool(&home), other.pool());
        let tensor = pool.alloc::<u8>([64], &near).unwrap().share().unwrap();
        let mut copy = own.alloc::<u8>([64], &stream).unwrap();
        for round in 0..200 {
            let view = other.open(&tensor, &stream).unwrap();
            copy.copy_from(&view).unwrap();
            // The stream is busy.
            drop(view);
            if round % 8 == 7 {
                stream.synchronize().unwrap();
            }
        }
        drop((copy, tensor, pool, own));
        is_closed(&home);
        is_closed(&other);
    });
    if cuda.tells(TEST) {
        let trace = cuda.trace();
        let last = trace.iter().rposition(|call| call.name == "cuEventCreate").unwrap();
        let [made, gone] =
            ["cuEventCreate", "cuEventDestroy_v2"].map(|call| calls(&trace[..last], call));
        assert!(made > 100 && made - gone < 64, "{made} events made, and {gone} dropped");
    }
}

#[test]
fn handles_and_events_are_for_one_gpu() {
    const TEST: &str = "handles_and_events_are_for_one_gpu";
    for kind in [Kind::Handles, Kind::Events] {
        let cuda = two_gpus().of_kind(kind);
        if !is_there(TEST, &cuda) {
            return;
        }
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let [(home, near), (other, stream)] = devices_and_streams();
                let pool = small_pool(&home);
                let tensor = pool.alloc::<u8>([1], &near).unwrap().share().unwrap();
                let one = CudaFault::OneDevice { is: home.uuid(), asked: other.uuid() };
                assert_eq!(cuda_fault(other.open(&tensor, &stream)), one);
                link.send_tensor(&tensor).unwrap();
                hear_out(&mut link);
            },
            |mut link| {
                let [(home, near), (other, stream)] = devices_and_streams();
                let tensor = recv(&mut link);
                let one = CudaFault::OneDevice { is: home.uuid(), asked: other.uuid() };
                for _ in 0..2 {
                    assert_eq!(cuda_fault(other.open(&tensor, &stream)), one);
                    // It is opened where it lies all the same.
                    home.open(&tensor, &near).unwrap().check().unwrap();
                }
                drop(tensor);
                link.close().unwrap();
            },
        );
    }
}

/// Sends a tensor of each GPU.
fn lend_both(mut link: Connection) {
    for (device, stream) in devices_and_streams() {
        let mut draft = small_pool(&device).alloc::<u8>([64], &stream).unwrap();
        draft.fill(device.ordinal() as u8).unwrap();
        link.send_tensor(draft.share().unwrap()).unwrap();
    }
    hear_out(&mut link);
    drop(link);
    devices().iter().for_each(is_closed);
}

#[test]
fn a_gpu_that_cannot_use_memory_of_another_is_told_by_an_error_and_the_other_way_works() {
    const TEST: &str =
        "a_gpu_that_cannot_use_memory_of_another_is_told_by_an_error_and_the_other_way_works";
    for kind in KINDS {
        let cuda = FakeCuda::new().devices(2).of_kind(kind).without_peers("1-0");
        if !cuda.is_there(TEST) {
            return;
        }
        exchange(TEST, &cuda, lend_both, |mut link| {
            let [(first, one), (second, two)] = devices_and_streams();
            assert!(first.can_access(&second).unwrap() && !second.can_access(&first).unwrap());
            let fault = CudaFault::NoPeerAccess { is: first.uuid(), asked: second.uuid() };
            let tensors = [recv(&mut link), recv(&mut link)];
            assert_eq!(cuda_fault(second.open(&tensors[0], &two)), fault);
            let view = first.open(&tensors[0], &one).unwrap();
            // Now it is open.
            let refused = second.open(&tensors[0], &two);
            let text = refused.as_ref().unwrap_err().to_string();
            for uuid in [first.uuid(), second.uuid()] {
                assert!(text.contains(&uuid.to_string()), "{text}");
            }
            assert_eq!(cuda_fault(refused), fault);
            let copy = first.to_host(&tensors[1], &one).unwrap();
            assert_eq!(copy.as_slice::<u8>().unwrap(), [1; 64]);
            let pool = small_pool(&first);
            let own = pool.alloc::<u8>([1], &one).unwrap().share().unwrap();
            assert_eq!(cuda_fault(second.open(&own, &two)), fault);
            drop((view, tensors, own, pool));
            link.close().unwrap();
        });
        if cuda.tells(TEST) {
            let trace = cuda.trace();
            // What is not to be used is not imported for that.
            assert_eq!(calls(&trace, "cuMemImportFromShareableHandle"), 2);
            let given = accesses(&trace, importer(&trace));
            assert_eq!(given, ["dev:0", "dev:1", "dev:0", "dev:0"]);
        }
    }
}

#[test]
fn a_refused_access_leaves_nothing_open_and_is_asked_for_once_more() {
    const TEST: &str = "a_refused_access_leaves_nothing_open_and_is_asked_for_once_more";
    for (plan, call) in [
        ("cuMemSetAccess:1:2", "cuMemSetAccess"),
        ("cuDeviceCanAccessPeer:999", "cuDeviceCanAccessPeer"),
    ] {
        let cuda = FakeCuda::new().devices(2).of_kind(Kind::Words);
        if !cuda.is_there(TEST) {
            return;
        }
        let two =
            Two::start_with(TEST, [&cuda, &cuda.clone().fail(plan)], lend_both, |mut link| {
                let [(home, _), (other, stream)] = devices_and_streams();
                let (tensor, _second) = (recv(&mut link), recv(&mut link));
                let (call, _) = driver_fault(other.open(&tensor, &stream));
                assert!(["cuMemSetAccess", "cuDeviceCanAccessPeer"].contains(&call));
                is_closed(&home);
                let copy = other.to_host(&tensor, &stream).unwrap();
                assert_eq!(copy.as_slice::<u8>().unwrap(), [0; 64]);
                drop(tensor);
                link.close().unwrap();
            });
        two.succeed();
        cuda.was_used_well();
        let failed: Vec<_> = cuda.trace().into_iter().filter(|call| call.code != 0).collect();
        assert!(failed.iter().any(|failed| failed.name == call), "{failed:?}");
    }
}

/// Sends a tensor whose word comes behind ten seconds of work.
fn lend_and_die(mut link: Connection) {
    let [(device, stream), _] = devices_and_streams();
    let pool = small_pool(&device);
    let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
    (0..50).for_each(|_| draft.fill(1).unwrap());
    link.send_tensor(draft.share().unwrap()).unwrap();
    say("sent");
    wait_for_death();
}

#[test]
fn a_gpu_that_waits_for_a_dead_owner_of_memory_of_another_goes_on_and_is_told() {
    const TEST: &str = "a_gpu_that_waits_for_a_dead_owner_of_memory_of_another_goes_on_and_is_told";
    let cuda = two_gpus().of_kind(Kind::Words);
    if !is_there(TEST, &cuda) || !cuda.tells(TEST) {
        return;
    }
    // A free holds up every call of the reader's driver until all streams of the GPUs that have the memory are done.
    let far = cuda.clone().locked();
    let slow = cuda.clone().delay(TOO_SLOW);
    let mut two = Two::start_with(TEST, [&slow, &far], lend_and_die, |mut link| {
        let [(home, near), (other, waiting)] = devices_and_streams();
        let pool = small_pool(&home);
        let own = pool.alloc::<u8>([1], &near).unwrap().share().unwrap();
        near.synchronize().unwrap();
        drop(other.open(&own, &waiting).unwrap());
        waiting.synchronize().unwrap();
        let tensor = recv(&mut link);
        let view = other.open(&tensor, &waiting).unwrap();
        drop((own, pool));
        std::thread::sleep(10 * SLOW);
        assert!(home.trim().unwrap() > 0, "the chunk is to be freed");
        assert!(!waiting.is_idle().unwrap());
        view.check_deadline(soon()).unwrap();
        say("open");
        waiting.synchronize_deadline(soon()).unwrap();
        let told = view.check_deadline(soon()).unwrap_err();
        assert!(matches!(told.kind(), ErrorKind::PeerDied), "{told}");
        drop((view, tensor, link));
        is_closed(&home);
        is_closed(&other);
    });
    two.owner.expect("sent");
    two.borrower.expect("open");
    two.owner.kill();
    two.owner.wait();
    two.borrower.succeeds();
    cuda.was_used_well();
}

#[test]
fn no_gpu_frees_memory_while_a_stream_of_another_waits_for_a_word() {
    const TEST: &str = "no_gpu_frees_memory_while_a_stream_of_another_waits_for_a_word";
    let cuda = two_gpus().of_kind(Kind::Words);
    if !is_there(TEST, &cuda) || !cuda.tells(TEST) {
        return;
    }
    let far = cuda.clone().locked();
    let slow = cuda.clone().delay(TOO_SLOW);
    let mut two = Two::start_with(TEST, [&slow, &far], lend_and_die, |mut link| {
        let [(home, waiting), (other, chained)] = devices_and_streams();
        let (pool, idle) = (small_pool(&home), small_pool(&other));
        drop(idle.alloc::<u8>([1], &chained).unwrap());
        chained.synchronize().unwrap();
        let mut own = pool.alloc::<u8>([4096], &waiting).unwrap();
        let tensor = recv(&mut link);
        let view = home.open(&tensor, &waiting).unwrap();
        own.copy_from(&view).unwrap();
        let own = own.share().unwrap();
        // A stream of the other GPU waits for that of the first one, and so for the word.
        let copy = other.open(&own, &chained).unwrap();
        drop(idle);
        std::thread::sleep(10 * SLOW);
        assert!(other.trim().unwrap() > 0, "the chunk is to be freed");
        assert!(!chained.is_idle().unwrap());
        say("open");
        chained.synchronize_deadline(soon()).unwrap();
        wait_until("the chunk is freed", || other.trim().unwrap() == 0);
        drop((copy, own, pool, view, tensor, link));
        [home, other].iter().for_each(is_closed);
    });
    two.owner.expect("sent");
    two.borrower.expect("open");
    two.owner.kill();
    two.owner.wait();
    two.borrower.succeeds();
    cuda.was_used_well();
}
