//! What a call leaves that fails: it is freed when that holds up nobody, it counts until then, and there is no end of peers that
//! lie.

use std::os::fd::OwnedFd;
use std::time::Duration;

use slipring::cuda::{Device, Stream};
use slipring::error::CudaFault;
use slipring::options::Resource;
use slipring::{Connection, Error, ErrorKind, Options};

use crate::errors::{description, post};
use crate::forged::{TWO, allocate, announce, place};
use crate::hangs::HungCall;
use crate::side::{Side, Unwritten};
use crate::support::fake_cuda::{Call, FakeCuda, Kind};
use crate::support::gpus::{
    Two, alone, cuda_fault, device, driver_fault, hear_out, is_closed, pool_options, recv,
};
use crate::support::other::run_here;
use crate::support::raw::{RawPeer, allocation_packet, withdraw_packet};
use crate::support::{Stage, soon, wait_until};

const MIB: u64 = 1 << 20;

/// Enough for a thread that does not wait to come through.
const A_WHILE: Duration = Duration::from_millis(100);

/// Opens 64 bytes of an allocation of a peer, twice. Returns the two errors.
fn refused(
    (device, stream): (&Device, &Stream),
    (link, peer): (&mut Connection, &mut RawPeer),
    (number, fd): (u64, OwnedFd),
) -> [Error; 2] {
    let uuid = device.uuid();
    announce(peer, &allocation_packet(number, 2 * MIB, uuid.0), &[fd]);
    post(peer, &TWO, &description(&place(uuid, number, 2 * MIB)));
    let tensor = recv(link);
    let errors = [(); 2].map(|()| device.open(&tensor, stream).unwrap_err());
    drop(tensor);
    announce(peer, &withdraw_packet(number), &[]);
    errors
}

/// The most allocations that were mapped at one time.
fn most_mapped(trace: &[Call]) -> usize {
    let (mut now, mut most) = (0, 0);
    for call in trace.iter().filter(|call| call.code == 0) {
        match call.name.as_str() {
            "cuMemMap" => now += 1,
            "cuMemUnmap" => now -= 1,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

#[test]
fn a_peer_that_lies_while_its_word_is_awaited_is_refused_by_its_account() {
    const TEST: &str = "a_peer_that_lies_while_its_word_is_awaited_is_refused_by_its_account";
    const MAPPINGS: u64 = 96;
    const LIES: u64 = 2000;
    // A free holds up every call of the driver until all streams are done.
    let cuda = FakeCuda::new().devices(2).locked();
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let device = device();
        let [waiting, stream] = [(); 2].map(|()| device.stream().unwrap());
        let limits =
            [(Resource::GpuMappings, MAPPINGS), (Resource::GpuMappedBytes, MAPPINGS * 2 * MIB)];
        for (resource, limit) in limits {
            let mut stage = Stage::new(Options::new().link_limit(resource, limit));
            let mut side = Side::new(&mut stage);
            let unwritten = Unwritten::new(&device, &waiting, &mut side);
            let Side { mut link, mut peer, .. } = side;
            let said = device.uuid();
            let wrong =
                |error: &Error| *error.kind() == ErrorKind::Cuda(CudaFault::WrongDevice { said });
            let full = |error: &Error| {
                matches!(error.kind(), ErrorKind::AccountFull { account: "link", .. })
            };
            let mut first = None;
            for number in 0..LIES {
                let fd = allocate(1, 2 << 20);
                let errors = refused((&device, &stream), (&mut link, &mut peer), (number, fd));
                if first.is_none() && errors.iter().any(full) {
                    first = Some(number);
                }
                let is_full = first.is_some();
                let all = errors.iter().all(if is_full {
                    &full as &dyn Fn(&Error) -> bool
                } else {
                    &wrong
                });
                assert!(all, "{number}: {errors:?}");
            }
            assert!(first.is_some_and(|first| first > MAPPINGS / 2), "{first:?}");
            // Other peers are not disturbed.
            let (mut other, mut honest) = stage.link();
            honest.send_segment(1, 1 << 20);
            let packet = allocation_packet(0, 2 * MIB, said.0);
            announce(&mut honest, &packet, &[allocate(0, 2 << 20)]);
            post(&mut honest, &TWO, &description(&place(said, 0, 2 * MIB)));
            assert_eq!(device.to_host(&recv(&mut other), &stream).unwrap().byte_len(), 64);
            stage.is_undisturbed();
            unwritten.write();
            // The peer is told of what was closed, and can be read again.
            wait_until("there is room", || device.trim().unwrap() == 0);
            announce(&mut peer, &allocation_packet(LIES, 2 * MIB, said.0), &[allocate(0, 2 << 20)]);
            post(&mut peer, &TWO, &description(&place(said, LIES, 2 * MIB)));
            assert_eq!(device.to_host(&recv(&mut link), &stream).unwrap().byte_len(), 64);
            drop((link, peer, other, honest));
            is_closed(&device);
        }
    });
    cuda.was_used_well();
    let most = most_mapped(&cuda.trace());
    assert!(most as u64 <= MAPPINGS + 2, "{most} mappings at one time");
}

#[test]
fn an_open_that_fails_while_a_word_is_awaited_unmaps_nothing_and_a_later_one_goes_on() {
    const TEST: &str =
        "an_open_that_fails_while_a_word_is_awaited_unmaps_nothing_and_a_later_one_goes_on";
    // The first one is the allocation's with the word.
    for plan in ["cuPointerGetAttribute:999:2", "cuMemSetAccess:999:2"] {
        let cuda = FakeCuda::new().locked().fail(plan);
        if !cuda.tells(TEST) {
            return;
        }
        alone(TEST, &cuda, || {
            let device = device();
            let [waiting, stream] = [(); 2].map(|()| device.stream().unwrap());
            let mut stage = Stage::new(Options::new());
            let mut side = Side::new(&mut stage);
            let unwritten = Unwritten::new(&device, &waiting, &mut side);
            let tensor = side.tensor(&device);
            assert_eq!(driver_fault(device.open(&tensor, &stream)).1, 999);
            assert_eq!(device.to_host(&tensor, &stream).unwrap().byte_len(), 64);
            unwritten.write();
            drop((tensor, side));
            is_closed(&device);
        });
        cuda.was_used_well();
        // That with the word, and the other one, once.
        let maps = |call: &&Call| call.name == "cuMemMap";
        assert_eq!(cuda.trace().iter().filter(maps).count(), 2, "{plan}");
    }
}

#[test]
fn a_chunk_whose_making_fails_while_a_word_is_awaited_counts_until_it_is_freed() {
    const TEST: &str =
        "a_chunk_whose_making_fails_while_a_word_is_awaited_counts_until_it_is_freed";
    // The allocation with the word comes before.
    let plans = [
        (Kind::Handles, "cuIpcGetMemHandle:999"),
        (Kind::Words, "cuMemSetAccess:999:2"),
        (Kind::Words, "cuMemsetD8Async:999"),
        (Kind::Words, "cuStreamSynchronize:999"),
    ];
    for (kind, plan) in plans {
        let cuda = FakeCuda::new().locked().of_kind(kind).fail(plan);
        if !cuda.tells(TEST) {
            return;
        }
        alone(TEST, &cuda, || {
            let device = device();
            let [waiting, stream] = [(); 2].map(|()| device.stream().unwrap());
            let mut stage = Stage::new(Options::new());
            let mut side = Side::new(&mut stage);
            let unwritten = Unwritten::new(&device, &waiting, &mut side);
            let pool = device.pool_with(pool_options().chunk(2 << 20).quota(3 << 20)).unwrap();
            assert_eq!(driver_fault(pool.alloc::<u8>([64], &stream)).1, 999);
            std::thread::sleep(A_WHILE);
            assert_eq!(pool.bytes().unwrap(), 2 * MIB);
            let refused = cuda_fault(pool.alloc::<u8>([64], &stream));
            assert!(matches!(refused, CudaFault::Exhausted { used, .. } if used == 2 * MIB));
            // A question for the word counts while it is under way.
            wait_until("only the chunk waits", || device.trim().unwrap() == 1);
            unwritten.write();
            wait_until("it is freed", || pool.bytes().unwrap() == 0);
            drop(pool.alloc::<u8>([64], &stream).unwrap());
            drop((pool, side));
            is_closed(&device);
        });
        cuda.was_used_well();
    }
}

#[test]
fn an_allocation_behind_one_that_failed_waits_until_that_is_freed() {
    const TEST: &str = "an_allocation_behind_one_that_failed_waits_until_that_is_freed";
    // With the driver's code for no memory the second try follows at once, for as little as is asked for.
    for (code, is_tried_twice) in [(999, false), (2, true)] {
        let cuda = FakeCuda::new().of_kind(Kind::Words);
        let cuda = cuda.fail(&format!("cuMemsetD8Async:{code}"));
        if !cuda.tells(TEST) {
            return;
        }
        let told = format!("{is_tried_twice}");
        run_here(TEST, |is_tried_twice| {
            let device = device();
            let stream = device.stream().unwrap();
            let pool = device.pool_with(pool_options().chunk(4 << 20).quota(4 << 20)).unwrap();
            let hung = HungCall::next(c"cuMemUnmap");
            if is_tried_twice == "true" {
                // The chunk that failed and the one that is asked for are more than the quota.
                let refused = cuda_fault(pool.alloc::<u8>([64], &stream));
                assert!(matches!(refused, CudaFault::Exhausted { used, .. } if used == 4 * MIB));
            } else {
                assert_eq!(driver_fault(pool.alloc::<u8>([64], &stream)).1, 999);
            }
            assert_eq!(pool.bytes().unwrap(), 4 * MIB);
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    std::thread::sleep(A_WHILE);
                    drop(hung);
                });
                drop(pool.alloc::<u8>([64], &stream).unwrap());
            });
            drop(pool);
            is_closed(&device);
        });
        cuda.start(TEST, &told).succeeds();
        cuda.was_used_well();
    }
}

#[test]
fn what_a_call_leaves_that_fails_is_freed_by_the_thread_that_frees() {
    const TEST: &str = "what_a_call_leaves_that_fails_is_freed_by_the_thread_that_frees";
    // The kind of the pool, the call that fails, and the one that may wait and gives back what was made before.
    let owner = [
        (Kind::Handles, "cuIpcGetMemHandle:999", "cuMemFree_v2"),
        (Kind::Words, "cuMemSetAccess:999", "cuMemUnmap"),
        (Kind::Words, "cuMemsetD8Async:999", "cuMemUnmap"),
        (Kind::Words, "cuStreamSynchronize:999", "cuMemUnmap"),
    ];
    let borrower = [
        (Kind::Handles, "cuMemGetAddressRange_v2:999", "cuIpcCloseMemHandle"),
        (Kind::Words, "cuPointerGetAttribute:999", "cuMemUnmap"),
        (Kind::Words, "cuMemSetAccess:999", "cuMemUnmap"),
    ];
    let sides = owner.map(|plan| (true, plan)).into_iter();
    for (is_owner, (kind, plan, end)) in sides.chain(borrower.map(|plan| (false, plan))) {
        let cuda = FakeCuda::new().of_kind(kind);
        if !cuda.tells(TEST) {
            return;
        }
        let fails = cuda.clone().fail(plan);
        let (near, far) = if is_owner { (&fails, &cuda) } else { (&cuda, &fails) };
        let two = Two::start_with(
            TEST,
            [near, far],
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let pool = device.pool_with(pool_options()).unwrap();
                let draft = pool.alloc::<u8>([64], &stream);
                // Nothing keeps what a failed one leaves from being freed.
                is_closed(&device);
                match draft {
                    Ok(draft) => link.send_tensor(draft.share().unwrap()).unwrap(),
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::Cuda(_)), "{error}");
                        link.send(b"it has failed").unwrap();
                    }
                }
                hear_out(&mut link);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let next = link.receiver().recv_tensor_deadline(soon());
                if let Ok(tensor) = next {
                    let error = device.open(&tensor.unwrap(), &stream).unwrap_err();
                    assert!(matches!(error.kind(), ErrorKind::Cuda(_)), "{error}");
                }
                link.close().unwrap();
                is_closed(&device);
            },
        );
        two.succeed();
        cuda.was_used_well();
        let trace = cuda.trace();
        let failed = plan.split(':').next().unwrap();
        let at = trace.iter().position(|call| call.name == failed && call.code != 0).unwrap();
        let given_back =
            trace[at..].iter().find(|call| call.name == end && call.process == trace[at].process);
        let given_back = given_back.unwrap_or_else(|| panic!("{plan}: no {end}"));
        assert_ne!(given_back.thread, trace[at].thread, "{plan}: the caller calls {end}");
    }
}
