//! A copy between a GPU and the host waits until its deadline and no longer, and a late copy harms nothing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use slipring::cuda::{Device, Stream};
use slipring::error::CudaFault;
use slipring::region::CudaHandle;
use slipring::{Connection, Context, Error, ErrorKind, Tensor};

use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{FakeCuda, keep_gate};
use crate::support::gpus::{Two, alone, calls, cuda_fault, device, recv, small_pool};
use crate::support::other::{listen_for, run_here, say, wait_for_death};
use crate::support::soon;

/// The length of the pieces of a copy.
const PIECE: usize = 4 << 20;

/// A while in which nothing comes about that a peer holds up.
fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

fn is_late<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.unwrap_err();
    assert!(error.is_timeout(), "{error}");
}

/// `len` bytes, none of which is zero.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8 | 1).collect()
}

/// Has the stream wait until the gate's process is dead. The context stays current, beneath those of the library.
fn hold_up(stream: &Stream, gate: &str) -> usize {
    driver::begin(0);
    let gate = driver::open_event(driver::from_word(gate));
    assert_eq!(driver::cuStreamWaitEvent(stream.as_raw() as usize, gate, 0), 0);
    gate
}

#[test]
fn a_copy_that_waits_for_a_peer_ends_with_its_deadline_and_can_be_tried_again() {
    const TEST: &str = "a_copy_that_waits_for_a_peer_ends_with_its_deadline_and_can_be_tried_again";
    run_here(TEST, |argument| {
        let Some(gate) = argument.strip_prefix("work ") else {
            driver::begin(0);
            keep_gate()
        };
        let device = device();
        let (pool, stream) = (device.pool(), device.stream().unwrap());
        let context = Context::new().unwrap();
        let (mut near, mut far) = crate::support::pair_of(&context, &Context::new().unwrap());
        let host = Tensor::from_slice([4096], &bytes(4096)).unwrap();
        let tensor = pool.copy_of(&host, &stream).unwrap().share().unwrap();
        near.send_tensor(&tensor).unwrap();
        let lent = recv(&mut far);
        let place = *lent.gpu_place().unwrap();
        let handle = CudaHandle { raw: place.ipc_handle().unwrap(), device: 0 };
        let region = device.region(&handle, place.offset, place.len).unwrap();
        let view = device.open(&lent, &stream).unwrap();
        let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
        draft.write(&[9; 4096]).unwrap();
        let gate = hold_up(&stream, gate);

        say("held up");
        let mut to = [0; 4096];
        is_late(view.read_deadline(&mut to, shortly()));
        is_late(view.to_host_deadline(shortly()));
        is_late(view.settle_deadline(shortly()));
        is_late(device.to_host_deadline(&lent, &stream, shortly()));
        is_late(region.read_at_deadline(0, &mut to, &stream, shortly()));
        is_late(region.write_at_deadline(0, &to, &stream, shortly()));
        is_late(draft.write_deadline(&to, shortly()));
        is_late(pool.copy_of_deadline(&host, &stream, shortly()));
        let late = view.read_deadline(&mut to, Instant::now()).unwrap_err();
        let why = std::error::Error::source(&late).unwrap().to_string();
        assert!(why.contains("may wait for a peer"), "{why}");
        say("late");
        listen_for("the gate is open");

        // Whatever was late has copied nothing, and does not do so now.
        stream.synchronize_deadline(soon()).unwrap();
        view.settle_deadline(soon()).unwrap();
        assert_eq!(to, [0; 4096]);
        view.read_deadline(&mut to, soon()).unwrap();
        assert_eq!(to[..], bytes(4096));
        assert_eq!(view.to_host_deadline(soon()).unwrap().as_slice::<u8>().unwrap(), to);
        let copy = device.to_host_deadline(&tensor, &stream, soon()).unwrap();
        assert_eq!(copy.as_slice::<u8>().unwrap(), to);
        let kept = device.to_host(&draft.share().unwrap(), &stream).unwrap();
        assert_eq!(kept.as_slice::<u8>().unwrap(), [9; 4096]);
        region.write_at_deadline(1, &[7, 8], &stream, soon()).unwrap();
        region.read_at_deadline(0, &mut to[..4], &stream, soon()).unwrap();
        assert_eq!(to[..4], [1, 7, 8, 3]);
        let copy = pool.copy_of_deadline(&host, &stream, soon()).unwrap().share().unwrap();
        let copy = device.to_host(&copy, &stream).unwrap();
        assert_eq!(copy.as_slice::<u8>().unwrap(), bytes(4096));

        assert_eq!(driver::cuEventDestroy_v2(gate), 0);
        assert_eq!(driver::cuCtxPopCurrent_v2(&mut 0), 0);
        assert_eq!(driver::cuDevicePrimaryCtxRelease_v2(0), 0);
    });
    let cuda = FakeCuda::new();
    if !cuda.tells(TEST) {
        return;
    }
    let (mut keeper, gate) = cuda.gate(TEST);
    let mut worker = cuda.start(TEST, &format!("work {gate}"));
    let copies = || {
        let trace = cuda.trace();
        calls(&trace, "cuMemcpyDtoHAsync_v2") + calls(&trace, "cuMemcpyHtoDAsync_v2")
    };
    worker.expect("held up");
    let before = copies();
    worker.expect("late");
    assert_eq!(copies(), before, "a copy was begun behind what holds up the stream");
    keeper.kill();
    keeper.wait();
    worker.tell("the gate is open");
    worker.succeeds();
    cuda.was_used_well();
}

#[test]
fn a_long_copy_ends_between_two_pieces_and_leaves_the_rest_alone() {
    const TEST: &str = "a_long_copy_ends_between_two_pieces_and_leaves_the_rest_alone";
    const LEN: usize = 2 * PIECE + 512;
    const DELAY: Duration = Duration::from_millis(20);
    let cuda = FakeCuda::new().delay(DELAY);
    alone(TEST, &cuda, || {
        let device = device();
        let (pool, stream) = (device.pool(), device.stream().unwrap());
        let mut draft = pool.alloc::<u8>([LEN], &stream).unwrap();
        draft.write(&[9; LEN]).unwrap();
        // Too late: what is short is copied, and of what is long the first piece.
        let from = bytes(LEN);
        is_late(draft.write_deadline(&from, Instant::now()));
        let view = device.open(&draft.share().unwrap(), &stream).unwrap();
        stream.synchronize().unwrap();
        let mut to = vec![0; LEN];
        is_late(view.read_deadline(&mut to, Instant::now()));
        assert!(to[..PIECE] == from[..PIECE] && to[PIECE..].iter().all(|byte| *byte == 0));
        sleep(3 * DELAY);
        assert!(to[PIECE..].iter().all(|byte| *byte == 0), "written after the end");
        // In time.
        view.read_deadline(&mut to, soon()).unwrap();
        assert!(to[..PIECE] == from[..PIECE] && to[PIECE..].iter().all(|byte| *byte == 9));
    });
    cuda.was_used_well();
    if cuda.tells(TEST) {
        let trace = cuda.trace();
        let copies = |name| {
            let copies = trace.iter().filter(move |call| call.name == name);
            copies.map(|call| call.arguments[2].parse().unwrap()).collect::<Vec<usize>>()
        };
        assert_eq!(copies("cuMemcpyHtoDAsync_v2"), [LEN, PIECE]);
        assert_eq!(copies("cuMemcpyDtoHAsync_v2"), [PIECE, PIECE, PIECE, 512]);
    }
}

/// Lends what its stream will never have written.
fn lend_unwritten(mut link: Connection) {
    let device = device();
    let (pool, stream) = (small_pool(&device), device.stream().unwrap());
    let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
    draft.fill(1).unwrap();
    link.send_tensor(draft.share().unwrap()).unwrap();
    wait_for_death();
}

#[test]
fn a_copy_with_a_deadline_is_told_of_its_writers_death() {
    const TEST: &str = "a_copy_with_a_deadline_is_told_of_its_writers_death";
    let cuda = FakeCuda::new().stuck();
    // A real GPU's streams are not held up at will.
    if !cuda.tells(TEST) {
        return;
    }
    let mut two = Two::start_with(
        TEST,
        [&cuda.clone().delay(Duration::from_secs(3600)), &cuda],
        lend_unwritten,
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            let tensor = recv(&mut link);
            let view = device.open(&tensor, &stream).unwrap();
            let mut to = [0; 4096];
            is_late(view.read_deadline(&mut to, shortly()));
            say("late");
            let died = view.read_deadline(&mut to, soon()).unwrap_err();
            assert_eq!(*died.kind(), ErrorKind::PeerDied);
            assert_eq!(to, [0; 4096]);
            // Its stream waits for ever, and so does all that would end in order.
            say("told");
            wait_for_death();
        },
    );
    two.borrower.expect("late");
    two.owner.kill();
    two.owner.wait();
    two.borrower.expect("told");
    cuda.was_used_well();
}

#[test]
fn a_stream_that_is_captured_copies_nothing() {
    const TEST: &str = "a_stream_that_is_captured_copies_nothing";
    fn is_refused<T: std::fmt::Debug>(answer: Result<T, Error>) {
        assert_eq!(cuda_fault(answer), CudaFault::Capturing);
    }
    let cuda = FakeCuda::new().capturing();
    alone(TEST, &cuda, || {
        let device = Device::new(0).unwrap();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        let mut draft = pool.alloc::<u8>([16], &stream).unwrap();
        is_refused(draft.write(&[1; 16]));
        is_refused(draft.write_deadline(&[1; 16], soon()));
        is_refused(draft.share());
        let host = Tensor::from_slice([1], &[1u8]).unwrap();
        is_refused(pool.copy_of(&host, &stream));
        is_refused(pool.copy_of_deadline(&host, &stream, soon()));
    });
    cuda.was_used_well();
}

#[test]
fn memory_of_the_host_is_in_use_until_its_copy_is_over_whatever_fails() {
    const TEST: &str = "memory_of_the_host_is_in_use_until_its_copy_is_over_whatever_fails";
    let cuda = FakeCuda::new().delay(Duration::from_millis(50)).fail("cuStreamSynchronize:999:2");
    alone(TEST, &cuda, || {
        let device = device();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
        draft.write(&bytes(4096)).unwrap();
        let view = device.open(&draft.share().unwrap(), &stream).unwrap();
        let mut to = [0; 4096];
        view.read(&mut to).unwrap_err();
        assert_eq!(to[..], bytes(4096), "it is still being copied");
    });
    cuda.was_used_well();
}
