//! Memory that a peer has mapped counts to its pool's quota until the peer has unmapped it.

use slipring::cuda::{Device, Pool};
use slipring::error::CudaFault;
use slipring::{Connection, Context, DType, Reactor};

use crate::support::census::descriptors;
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    Two, calls, cuda_fault, device, exchange, hear, hear_out, is_closed, pool_options, recv,
    whole_chunk,
};
use crate::support::other::{listen_for, say, wait_for_death};
use crate::support::{soon, wait_until};

/// The kinds of pools whose memory outlives its owner's use of it.
const KINDS: [Kind; 2] = [Kind::Words, Kind::Synchronized];

const MIB: u64 = 1 << 20;

/// A pool of two chunks of 2 MiB, or one of 4.
fn pool(device: &Device) -> Pool {
    device.pool_with(pool_options().chunk(2 * MIB).quota(4 * MIB)).unwrap()
}

/// Sends a tensor of a chunk, and waits until it is back.
fn lend_once(link: &mut Connection, pool: &Pool) {
    let stream = pool.device().stream().unwrap();
    let mut draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
    draft.fill(1).unwrap();
    link.send_tensor(draft.share().unwrap()).unwrap();
    hear(link);
}

fn read_once(link: &mut Connection) {
    let device = device();
    let stream = device.stream().unwrap();
    let copy = device.to_host(&recv(link), &stream).unwrap();
    assert!(copy.as_slice::<u8>().unwrap().iter().all(|byte| *byte == 1));
    link.send(b"read").unwrap();
}

#[test]
fn memory_that_a_peer_never_unmaps_counts_to_the_quota_until_it_dies() {
    const TEST: &str = "memory_that_a_peer_never_unmaps_counts_to_the_quota_until_it_dies";
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        let mut two = Two::start(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let (pool, stream) = (pool(&device), device.stream().unwrap());
                lend_once(&mut link, &pool);
                say("lent");
                listen_for("it is stopped");
                wait_until("the chunk is freed", || {
                    pool.trim().unwrap();
                    device.trim().unwrap() == 0
                });
                // The loan is back. The peer has the memory mapped.
                assert_eq!(pool.bytes().unwrap(), 2 * MIB);
                for _ in 0..3 {
                    let refused = cuda_fault(pool.alloc::<u8>([2 * whole_chunk()], &stream));
                    let CudaFault::Exhausted { used, quota, .. } = refused else {
                        panic!("{refused}")
                    };
                    assert_eq!((used, quota), (2 * MIB, 4 * MIB));
                }
                drop(pool.alloc::<u8>([whole_chunk()], &stream).unwrap());
                assert_eq!(pool.bytes().unwrap(), 4 * MIB);
                say("refused");
                let shape = [2 * whole_chunk()];
                drop(pool.alloc_deadline(DType::Uint8, shape, &stream, soon()).unwrap());
                assert_eq!(pool.bytes().unwrap(), 4 * MIB);
            },
            |mut link| {
                read_once(&mut link);
                say("read");
                wait_for_death();
            },
        );
        two.borrower.expect("read");
        two.owner.expect("lent");
        two.borrower.stop();
        two.owner.tell("it is stopped");
        two.owner.expect("refused");
        two.borrower.kill();
        two.owner.succeeds();
        cuda.was_used_well();
    }
}

/// Frees a chunk that the peer has mapped, and takes memory that there is room for when the peer has unmapped it. Sends
/// nothing meanwhile.
fn needs_what_is_mapped(mut link: Connection) {
    let device = device();
    let (pool, stream) = (pool(&device), device.stream().unwrap());
    for _ in 0..3 {
        lend_once(&mut link, &pool);
        let shape = [2 * whole_chunk()];
        drop(pool.alloc_deadline(DType::Uint8, shape, &stream, soon()).unwrap());
        stream.synchronize().unwrap();
        pool.trim().unwrap();
        assert_eq!(pool.bytes().unwrap(), 0);
    }
    link.close().unwrap();
    drop(pool);
    is_closed(&device);
}

#[test]
fn a_peer_that_sleeps_unmaps_what_is_withdrawn() {
    const TEST: &str = "a_peer_that_sleeps_unmaps_what_is_withdrawn";
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(TEST, &cuda, needs_what_is_mapped, |mut link| {
            (0..3).for_each(|_| read_once(&mut link));
            hear_out(&mut link);
        });
        if cuda.tells(TEST) {
            assert_eq!(calls(&cuda.trace(), "cuMemImportFromShareableHandle"), 3);
        }
    }
}

#[test]
fn a_reactor_unmaps_what_is_withdrawn() {
    const TEST: &str = "a_reactor_unmaps_what_is_withdrawn";
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(TEST, &cuda, needs_what_is_mapped, |link| {
            let context = Context::new().unwrap();
            let reactor = Reactor::spawn(&context).unwrap();
            let (device, (say, said)) = (device(), crate::support::callbacks::diary());
            let stream = device.stream().unwrap();
            let link = reactor.adopt(link).unwrap();
            let at = device.clone();
            link.on_tensors(move |link, set| {
                drop(at.to_host(set.at(0).unwrap(), &stream).unwrap());
                drop(set);
                link.write(b"read");
            });
            link.on_closed(move |_, _| say(()));
            crate::support::callbacks::hear(&said);
            drop((link, reactor));
        });
    }
}

#[test]
fn a_peer_that_sleeps_hears_of_more_withdrawals_than_wait_for_it_at_once() {
    const TEST: &str = "a_peer_that_sleeps_hears_of_more_withdrawals_than_wait_for_it_at_once";
    const COUNT: usize = 100;
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        let mut two = Two::start(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let pools: Vec<Pool> = (0..COUNT).map(|_| pool(&device)).collect();
                for pool in &pools {
                    let draft = pool.alloc::<u8>([1], &stream).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                    hear(&mut link);
                }
                say("sent");
                listen_for("it is stopped");
                // The peer reads nothing of this before it goes on, and this side sends nothing more.
                drop(pools);
                is_closed(&device);
                say("freed");
                hear_out(&mut link);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                // One of them is mapped, so the socket is read while this thread sleeps.
                let first = recv(&mut link);
                drop(device.open(&first, &stream).unwrap());
                drop(first);
                link.send(b"got").unwrap();
                for _ in 1..COUNT {
                    drop(recv(&mut link));
                    link.send(b"got").unwrap();
                }
                let before = descriptors();
                assert!(before > COUNT);
                say("all are there");
                listen_for("go on");
                wait_until("all are withdrawn", || descriptors() + COUNT <= before + 2);
                link.close().unwrap();
            },
        );
        two.owner.expect("sent");
        two.borrower.expect("all are there");
        two.borrower.stop();
        two.owner.tell("it is stopped");
        two.owner.expect("freed");
        two.borrower.go_on();
        two.borrower.tell("go on");
        two.borrower.succeeds();
        two.owner.succeeds();
        cuda.was_used_well();
    }
}

#[test]
fn a_batch_longer_than_the_ring_goes_behind_withdrawals_that_nobody_has_read() {
    const TEST: &str = "a_batch_longer_than_the_ring_goes_behind_withdrawals_that_nobody_has_read";
    const COUNT: usize = 40;
    const MESSAGES: usize = 10;
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let pools: Vec<Pool> = (0..COUNT).map(|_| pool(&device)).collect();
                for pool in &pools {
                    let draft = pool.alloc::<u8>([1], &stream).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                    hear(&mut link);
                }
                // The peer maps none of them, so nothing reads its socket.
                drop(pools);
                is_closed(&device);
                // Together they are longer than the first ring.
                let mut batch = link.sender().batch().unwrap();
                for number in 0..MESSAGES {
                    batch.push(&[number as u8; 4000]).unwrap();
                }
                batch.publish().unwrap();
                hear_out(&mut link);
            },
            |mut link| {
                for _ in 0..COUNT {
                    drop(recv(&mut link));
                    link.send(b"got").unwrap();
                }
                for number in 0..MESSAGES {
                    assert_eq!(link.recv().unwrap().as_deref(), Some(&[number as u8; 4000][..]));
                }
                link.close().unwrap();
            },
        );
    }
}

#[test]
fn a_withdrawal_is_taken_while_the_peer_sleeps_also_after_other_packets() {
    const TEST: &str = "a_withdrawal_is_taken_while_the_peer_sleeps_also_after_other_packets";
    for kind in KINDS {
        let cuda = FakeCuda::new().of_kind(kind);
        exchange(
            TEST,
            &cuda,
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let [first, second] = [pool(&device), pool(&device)];
                let send = |link: &mut Connection, pool: &Pool| {
                    let draft = pool.alloc::<u8>([1], &stream).unwrap();
                    link.send_tensor(draft.share().unwrap()).unwrap();
                    hear(link);
                };
                send(&mut link, &first);
                send(&mut link, &second);
                // Segments of the host are announced by other packets, which the peer's halves read.
                for _ in 0..3 {
                    let context = Context::new().unwrap();
                    let tensor = context.alloc::<u8>([64]).unwrap().share().unwrap();
                    link.send_tensor(&tensor).unwrap();
                    hear(&mut link);
                }
                drop(second);
                is_closed(&device);
                hear(&mut link);
                drop(first);
                hear_out(&mut link);
            },
            |mut link| {
                let device = device();
                let stream = device.stream().unwrap();
                let open = |link: &mut Connection| {
                    drop(device.open(&recv(link), &stream).unwrap());
                    link.send(b"read").unwrap();
                };
                open(&mut link);
                open(&mut link);
                let before = descriptors();
                for _ in 0..3 {
                    drop(recv(&mut link));
                    link.send(b"got").unwrap();
                }
                // This thread reads nothing more of the link.
                wait_until("the second one is unmapped", || descriptors() < before);
                link.send(b"unmapped").unwrap();
                link.close().unwrap();
            },
        );
    }
}
