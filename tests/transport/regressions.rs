//! Each test failed once. Most of them need rare timing, an odd peer, or a large amount of something.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::census::{Census, mappings};
use crate::support::other::{Other, fork, say};
use crate::support::raw::{self, *};
use crate::support::{Stage, fault, pair, pair_of, sample, soon, stays_faulty};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::net::{RecvFlags, Shutdown};
use slipring::error::{Fault, TryRecvError, TrySendError};
use slipring::options::{PeerPolicy, Spin};
use slipring::{Connection, Context, Error, ErrorKind, Options};

/// The longest delay of a deadline of some milliseconds on a busy machine.
const LATE: Duration = Duration::from_secs(5);

/// Records that say that packets wait on the socket.
const PACKETS: u64 = 6;

fn kind<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorKind {
    answer.unwrap_err().kind().clone()
}

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(10)
}

/// Returns whether the machine has this much memory to spare. Prints a note if not.
fn can_spare(bytes: u64) -> bool {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(u64::MAX >> 10);
    let enough = kib << 10 >= bytes;
    if !enough {
        eprintln!("SKIPPED: {} MiB of memory are not available", bytes >> 20);
    }
    enough
}

/// Terms of a raw peer with so many loan slots.
fn with_slots(slots: u32) -> Hello {
    let control_len = (0x1000 + 8 * u64::from(slots)).next_multiple_of(page());
    Hello { loan_slots: slots, control_len, ..Hello::honest() }
}

// Sleeping and waking.

#[test]
fn a_sender_that_was_full_and_found_room_is_awake() {
    /// Bytes of the ring that a message of 1,000 bytes takes.
    const RECORD: u64 = 1088;
    let mut stage = Stage::new(Options::new().ring_capacity(64 << 10));
    // With its flag the peer allows the sender to be hot.
    let (mut link, peer) = stage.link_with(Hello { flags: 1, ..Hello::honest() });
    let _by_descriptor = link.as_fd();
    let mut sent = 0;
    while link.sender().try_send(&[1; 1000]).is_ok() {
        sent += 1;
    }
    let state = || peer.theirs().load(SENDER_STATE);
    assert_eq!(state() & 7, 2, "it asks for a wake-up");
    for _ in 0..200 {
        peer.position(sent * RECORD);
        link.sender().try_send(&[1; 1000]).unwrap();
        sent += 1;
    }
    // 0 is awake, 4 hot. Hot needs a kernel that allows `membarrier`.
    assert!(matches!(state(), 0 | 4), "{:#x}: it asks for ever", state());
    assert_eq!(link.stats().sent.sleeps, 1);
}

#[test]
fn a_sender_that_waits_for_a_block_is_awake_once_it_has_one_and_not_before() {
    let block = 64 << 10;
    let mut stage = Stage::new(Options::new().pool_quota(block));
    let (mut link, peer) = stage.link();
    let _by_descriptor = link.as_fd();
    let message = vec![5; block as usize];
    link.sender().try_send(&message).unwrap();
    let state = || peer.theirs().load(SENDER_STATE);
    assert_eq!(state(), 0);
    assert!(matches!(link.sender().try_send(&message), Err(TrySendError::Full { .. })));
    for len in [8, 1000] {
        link.sender().try_send(&message[..len]).unwrap();
        assert_eq!(state() & 7, 2, "a shorter message of {len} bytes is not what it waits for");
    }
    let lent = Lent::read(peer.theirs(), Hello::honest().control_len as usize);
    peer.give_back(lent.slot as usize, lent.generation);
    link.sender().try_send(&message).unwrap();
    assert_eq!(state(), 0);
}

// Memory that a peer sends.

/// A sealed segment that has as many blocks as an honest one, but only `inside` of its bytes are
/// backed: the other blocks lie beyond its end.
fn hollow_segment(len: u64, inside: u64) -> (OwnedFd, Memory) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("raw", flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    if inside > 0 {
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, inside).unwrap();
    }
    rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, len, len).unwrap();
    let memory = Memory::map(&fd, len as usize, true);
    rustix::fs::fcntl_add_seals(&fd, SEALS).unwrap();
    (fd, memory)
}

fn allocated(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512
}

/// Returns whether the kernel can tell holes from pages (5.14). Prints a note if not.
fn holes_are_told() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let release = release.trim();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (5, 14) {
        eprintln!("SKIPPED: Linux {release} cannot tell a hole from a page");
    }
    version >= (5, 14)
}

/// Sends hollow segments with a Hello and for the pool. Returns the bytes that the checks allocated.
fn offer_hollow_segments(stage: &mut Stage) -> u64 {
    let mut grown = 0;
    let hello = Hello { ring_capacity: 1 << 20, ..Hello::honest() };
    let len = hello.segment_len();
    for inside in [0, page(), len / 2 / page() * page(), len - page()] {
        let (fd, _memory) = hollow_segment(len, inside);
        let before = allocated(&fd);
        assert!(before >= len, "the blocks beyond the end count as well");
        let socket = raw::dial(&stage.name);
        raw::send(&socket, &hello.encode(), &[fd.as_fd()]).unwrap();
        stage.refuses_one();
        let (answer, _fds) = raw::receive(&socket).unwrap();
        assert_eq!(raw::refusal_code(&answer), Some(3));
        grown += allocated(&fd) - before;
    }
    let len = 1 << 20;
    for inside in [0, page(), len / 2, len - page()] {
        let (mut link, mut peer) = stage.link();
        let (fd, _memory) = hollow_segment(len, inside);
        let before = allocated(&fd);
        raw::send(&peer.socket, &segment_packet(1, len), &[fd.as_fd()]).unwrap();
        peer.lend(Lent { segment: 1, slot: 0, offset: 0, len, generation: 1 });
        match fault(link.receiver().recv_deadline(soon())) {
            Fault::Sparse { size, .. } => assert_eq!(size, len),
            other => panic!("{other:?}, {inside} bytes are there"),
        }
        grown += allocated(&fd) - before;
    }
    grown
}

#[test]
fn a_segment_whose_blocks_lie_beyond_its_end_is_refused() {
    if !holes_are_told() {
        return;
    }
    let mut stage = Stage::new(Options::new());
    let grown = offer_hollow_segments(&mut stage);
    stage.is_undisturbed();
    let mut counts = [0u64; 5];
    let (fd, _memory) = segment(page());
    let range = [0u64, page()];
    // SAFETY: both arrays are laid out as the call (cachestat) wants them, and outlive it.
    let counted = unsafe {
        libc::syscall(
            451,
            std::os::fd::AsRawFd::as_raw_fd(&fd),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0,
        )
    };
    if counted == 0 {
        assert_eq!(grown, 0, "a look at a segment allocates nothing in it");
    }
}

#[test]
fn holes_are_found_where_the_kernel_counts_no_pages() {
    if !holes_are_told() {
        return;
    }
    let test = "holes_are_found_where_the_kernel_counts_no_pages";
    let mut other = Other::start(test, "", |_| {
        if !forbid_cachestat() {
            return say("skipped");
        }
        let mut stage = Stage::new(Options::new());
        offer_hollow_segments(&mut stage);
        // Those without holes pass.
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        peer.lend(Lent { segment: 1, slot: 0, offset: 0, len: 1 << 20, generation: 1 });
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![0; 1 << 20]);
        stage.is_undisturbed();
        say("done");
    });
    if other.hear() == "skipped" {
        eprintln!("SKIPPED: no system call can be forbidden here");
    }
    other.succeeds();
}

/// Makes `cachestat` answer `ENOSYS` in this thread and those that it starts, as older kernels do.
fn forbid_cachestat() -> bool {
    const CACHESTAT: u32 = 451;
    // The arguments that follow the first are words.
    const ONE: libc::c_ulong = 1;
    const NONE: libc::c_ulong = 0;
    let step =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, CACHESTAT, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: sets a flag of this process.
    let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, ONE, NONE, NONE, NONE) };
    // SAFETY: `program` and its steps outlive the call, which copies them.
    let filtered = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::c_ulong::from(libc::SECCOMP_MODE_FILTER),
            &raw const program,
        )
    };
    alone == 0 && filtered == 0
}

#[test]
fn peers_with_many_segments_leave_mappings_to_the_rest_of_the_process() {
    /// At least the mappings that all peers together may have here.
    const ALL: usize = 16384;
    const EACH: u32 = 1024;
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if most.trim().parse::<usize>().unwrap() < 2 * ALL {
        eprintln!("SKIPPED: the kernel grants only {} mappings", most.trim());
        return;
    }
    let test = "peers_with_many_segments_leave_mappings_to_the_rest_of_the_process";
    let mut other = Other::start(test, "", |_| {
        let mut stage = Stage::new(Options::new());
        stage.is_undisturbed();
        stage.witness.check();
        let before = Census::take();
        let mut kept = Vec::new();
        let met = 'all: loop {
            let (mut link, mut peer) = stage.link();
            for number in 0..EACH {
                // Memory that was announced before would be mapped once.
                let (fd, memory) = segment(page());
                let packet = segment_packet(number, page());
                raw::send(&peer.socket, &packet, &[fd.as_fd()]).unwrap();
                drop(memory);
                let generation = u64::from(number) + 1;
                peer.lend(Lent { segment: number, slot: 0, offset: 0, len: 8, generation });
                if let Err(error) = link.receiver().recv_deadline(soon()) {
                    break 'all error;
                }
            }
            kept.push((link, peer));
            assert!(kept.len() <= ALL / EACH as usize, "there is no end to it");
        };
        // Want of our own is not the peer's fault.
        assert!(matches!(met.kind(), ErrorKind::AccountFull { account: "peer", .. }), "{met}");
        assert!(mappings() > ALL / 4);
        // A link that needs no new mapping works, and so does the process.
        stage.witness.check();
        thread::spawn(|| vec![1; 1 << 20]).join().unwrap();
        drop(Context::new().unwrap().listen(crate::support::unique_name()).unwrap());
        // With the peers, what they had sent goes.
        drop(kept);
        before.comes_back_but_for_a_spare();
        stage.is_undisturbed();
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, page());
        peer.lend(Lent { segment: 1, slot: 0, offset: 0, len: 8, generation: 1 });
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), [0; 8]);
        say("done");
    });
    other.expect("done");
    other.succeeds();
}

// Packets on the socket, which the receiver reads only when a record makes it.

/// A length of which each block has a segment of its own.
const LEN: usize = 600 << 10;

/// A link whose receiver knows more segments than a socket's queue holds packets, all of them idle.
fn with_many_segments(quota: u64) -> (Context, Connection, Connection) {
    const SEGMENTS: usize = 400;
    // A gigabyte of each length rotates: each message takes another segment.
    let options = Options::new().pool_quota(quota).pool_footprint(1 << 30);
    let context = Context::with_options(options).unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    for _ in 0..SEGMENTS {
        near.send(&vec![1; LEN]).unwrap();
        far.receiver().recv_deadline(soon()).unwrap().unwrap();
    }
    assert!(context.pool_bytes() >= (SEGMENTS * LEN) as u64);
    (context, near, far)
}

/// Asserts that a message of this length arrives while its receiver waits for it.
fn arrives(near: &mut Connection, far: &mut Connection, len: usize) {
    thread::scope(|scope| {
        let receiver = scope.spawn(|| far.receiver().recv_deadline(soon()).unwrap().unwrap());
        near.sender().send_deadline(&vec![7; len], soon()).unwrap();
        assert!(receiver.join().unwrap() == vec![7; len], "{len} bytes arrive changed");
    });
}

#[test]
fn a_trim_of_many_segments_stops_no_link() {
    if !can_spare(1 << 30) {
        return;
    }
    let (context, mut near, mut far) = with_many_segments(1 << 30);
    let bytes = context.pool_bytes();
    assert_eq!(context.trim(), bytes);
    for _ in 0..3 {
        arrives(&mut near, &mut far, LEN);
    }
}

#[test]
fn segments_dropped_for_another_length_stop_no_link() {
    if !can_spare(1 << 30) {
        return;
    }
    let (_context, mut near, mut far) = with_many_segments(260 << 20);
    // One segment of nearly the whole quota takes the place of all.
    for len in [200 << 20, LEN, 200 << 20] {
        arrives(&mut near, &mut far, len);
    }
}

#[test]
fn abandoned_reservations_and_trims_stop_no_link() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    // Each round sends the peer a segment, and takes it back, for a message that never comes.
    for round in 0..400 {
        if let Err(error) = near.sender().try_reserve(100_000).map(drop) {
            assert!(matches!(error, TrySendError::Full { .. }), "{error}");
            // The queue is full until the receiver looks.
            assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
            let again = near.sender().try_reserve(100_000).map(drop);
            assert!(again.is_ok(), "round {round}: {again:?}");
        }
        assert!(context.trim() > 0);
    }
    near.send(&[7; 100_000]).unwrap();
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), [7; 100_000]);
    assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
}

#[test]
fn a_peer_that_never_reads_its_packets_has_few_unannounced_ones() {
    let mut stage = Stage::new(Options::new());
    let (mut link, peer) = stage.link();
    let words = peer.theirs().len() / 8;
    let mut rounds = 0;
    // A round sends a segment, or takes it back. No message comes of it.
    while link.sender().try_reserve(100_000).map(drop).is_ok() {
        stage.context.trim();
        rounds += 1;
        assert!(rounds < 10_000, "there is no end to it");
    }
    stage.witness.check();
    let is_told = |at: &usize| peer.theirs().load(at * 8) & !TIGHT == header(PACKETS, 0);
    let told = (0..words).filter(is_told).count();
    let mut packets = 0;
    while rustix::net::recv(&peer.socket, &mut [0; 1], RecvFlags::DONTWAIT).is_ok() {
        packets += 1;
    }
    assert!(packets > 64, "{packets} packets");
    assert!(packets <= 32 * (told + 1), "{packets} packets, and {told} records that tell of them");
    stage.is_undisturbed();
}

#[test]
fn a_record_that_tells_of_packets_is_no_message_and_has_no_payload() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    for flags in [0, TIGHT] {
        // There need not be any packets.
        peer.publish(header(PACKETS | flags, 0), &[]);
        assert!(matches!(link.receiver().try_recv(), Err(TryRecvError::Empty)));
        assert!(matches!(link.receiver().try_peek(), Err(TryRecvError::Empty)));
        assert!(link.receiver().recv_deadline(shortly()).unwrap_err().is_timeout());
        peer.publish(header(PACKETS | flags, 0), &[]);
        peer.send_segment(1, page());
        peer.say(b"after");
        raw::send(&peer.socket, &retire_packet(1), &[]).unwrap();
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"after");
    }
    for lie in [header(PACKETS, 1), header(PACKETS, 8), header(PACKETS | POOLED, 0)] {
        let (mut link, peer) = stage.link();
        peer.header(lie);
        let expected = Fault::RecordHeader { header: lie };
        assert_eq!(fault(link.receiver().recv_deadline(soon())), expected, "{lie:#x}");
        stays_faulty(&mut link, expected);
    }
    // A lie among the packets is found.
    let (mut link, mut peer) = stage.link();
    raw::send(&peer.socket, &segment_packet(1, 1), &[peer.socket.as_fd()]).unwrap();
    peer.publish(header(PACKETS, 0), &[]);
    let expected = Fault::Field { field: "segment.len", value: 1 };
    assert_eq!(fault(link.receiver().recv_deadline(soon())), expected);
    stage.is_undisturbed();
}

#[test]
fn packets_without_end_outlast_no_deadline() {
    /// Checking and mapping it takes much longer than sending it.
    const SEGMENT_LEN: u64 = 64 << 20;
    let mut stage = Stage::new(Options::new());
    let hello = Hello { ring_capacity: 1 << 20, ..Hello::honest() };
    let (mut link, mut peer) = stage.link_with(hello);
    let (fd, _memory) = segment(SEGMENT_LEN);
    for _ in 0..60_000 {
        peer.publish(header(PACKETS | TIGHT, 0), &[]);
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Comes to an end by itself, so that the test does.
            let end = Instant::now() + LATE + LATE / 2;
            while !done.load(Ordering::Relaxed) && Instant::now() < end {
                let packet = segment_packet(1, SEGMENT_LEN);
                let sent = raw::send(&peer.socket, &packet, &[fd.as_fd()])
                    .and_then(|()| raw::send(&peer.socket, &retire_packet(1), &[]));
                if sent.is_err() {
                    return;
                }
            }
        });
        thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        let answer = link.receiver().recv_deadline(shortly()).map_err(|error| error.to_string());
        let took = start.elapsed();
        done.store(true, Ordering::Relaxed);
        // The thread that waits for room on the socket continues.
        rustix::net::shutdown(&peer.socket, Shutdown::Both).unwrap();
        assert!(took < LATE, "10 ms took {took:?}: {answer:?}");
    });
    stage.is_undisturbed();
}

// Waiting.

#[test]
fn a_peer_with_many_loan_slots_stretches_no_deadline() {
    const SLOTS: u32 = 65_536;
    let mut stage = Stage::new(Options::new().inline_max(0).pool_quota(1 << 30));
    let (mut link, peer) = stage.link_with(with_slots(SLOTS));
    // A peer that reads everything and returns nothing.
    let mut lent = 0u64;
    let mut looks = 0;
    while lent < u64::from(SLOTS) {
        match link.sender().try_send(&[1; 64]) {
            Ok(()) => (lent, looks) = (lent + 1, 0),
            Err(TrySendError::Full { .. }) if looks == 0 => {
                peer.position(64 * lent);
                looks = 1;
            }
            Err(TrySendError::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    peer.position(64 * lent);
    assert!((1..=1024).contains(&lent), "{lent} blocks are lent to one peer");
    let start = Instant::now();
    for _ in 0..5 {
        assert!(link.sender().send_deadline(&[1; 64], shortly()).unwrap_err().is_timeout());
    }
    let took = start.elapsed();
    assert!(took < LATE, "5 waits of 10 ms took {took:?}");
    // The oldest one is enough to go on.
    peer.give_back(0, 1);
    link.sender().send_deadline(&[1; 64], soon()).unwrap();
    stage.is_undisturbed();
}

#[test]
fn a_wait_for_loans_lets_other_links_use_the_pool() {
    let options = Options::new().inline_max(0).pool_quota(1 << 30).spin(Spin::Forever);
    let mut stage = Stage::new(options);
    let (mut link, peer) = stage.link_with(with_slots(65_536));
    let mut lent = 0u64;
    while lent < 1024 && link.sender().try_send(&[1; 64]).is_ok() {
        lent += 1;
        peer.position(64 * lent);
    }
    let stop = AtomicBool::new(false);
    let (mut near, mut far) = pair_of(&stage.context, &stage.context);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = link.sender().send_deadline(&[1; 64], shortly());
            }
        });
        let exchange = scope.spawn(|| {
            for _ in 0..200 {
                near.send(&[1; 64]).unwrap();
                far.receiver().recv_deadline(soon()).unwrap().unwrap();
            }
        });
        crate::support::wait_until("the other link's exchange", || exchange.is_finished());
        stop.store(true, Ordering::Relaxed);
        exchange.join().unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn a_message_that_its_peer_cannot_map_holds_no_block() {
    const LONG: usize = 3 << 20;
    let context = Context::with_options(Options::new().pool_quota(4 << 20)).unwrap();
    let few = Context::with_options(Options::new().peer_pool_limit(1 << 20)).unwrap();
    let (mut near, _far) = pair_of(&context, &few);
    let is_the_peers = |kind| matches!(kind, ErrorKind::PoolExhausted { quota: 0x10_0000, .. });
    assert!(is_the_peers(kind(near.send(&[1; LONG]))));
    assert!(is_the_peers(kind(near.sender().reserve(LONG))));
    // The quota is enough for one.
    let (mut other, mut other_far) = pair_of(&context, &context);
    other.sender().send_deadline(&[2; LONG], soon()).unwrap();
    assert!(other_far.receiver().recv_deadline(soon()).unwrap().unwrap() == [2; LONG]);
    near.send(b"goes on").unwrap();
}

#[test]
fn a_wait_for_the_mapping_of_a_peer_holds_no_block() {
    let context = Context::new().unwrap();
    let few = Context::with_options(Options::new().peer_pool_limit(2 << 20)).unwrap();
    let (mut near, mut far) = pair_of(&context, &few);
    // Each message lies in a segment of its own; the peer holds blocks of all that it maps.
    let mut sent = 0;
    while near.sender().try_send(&[7; LEN]).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 3);
    context.trim();
    let lent = context.pool_bytes();
    thread::scope(|scope| {
        // Longer than what is waited for here.
        let deadline = Instant::now() + 3 * crate::support::HANG;
        let waiter = scope.spawn(move || near.sender().send_deadline(&[7; LEN], deadline));
        crate::support::wait_until("a block for the next one", || context.pool_bytes() > lent);
        // A block that somebody holds cannot be trimmed.
        crate::support::wait_until("nobody holds it", || {
            context.trim();
            context.pool_bytes() == lent
        });
        for _ in 0..=sent {
            assert!(far.receiver().recv_deadline(soon()).unwrap().unwrap() == [7; LEN]);
        }
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn blocks_that_another_peer_returns_are_noticed_at_every_spin_policy() {
    let long = Duration::from_secs(3600);
    for spin in [Spin::Never, Spin::Forever, Spin::For(long), Spin::Adaptive { max: long }] {
        let options = Options::new().spin(spin).pool_quota(64 << 10);
        let context = Context::with_options(options).unwrap();
        let (mut near, mut far) = pair_of(&context, &context);
        let (mut other, mut other_far) = pair_of(&context, &context);
        near.send(&[1; 64 << 10]).unwrap();
        assert!(other.sender().send_deadline(&[2; 64 << 10], shortly()).unwrap_err().is_timeout());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| other.sender().send_deadline(&[2; 64 << 10], soon()));
            // Some time to begin to wait in.
            thread::sleep(Duration::from_millis(20));
            assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![1; 64 << 10]);
            assert!(waiter.join().unwrap().is_ok(), "{spin:?}");
        });
        assert_eq!(other_far.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![2; 64 << 10]);
    }
}

#[test]
fn a_growing_pool_holds_up_no_other_link() {
    const LONG: usize = 256 << 20;
    if !can_spare(1 << 30) {
        return;
    }
    let context = Context::new().unwrap();
    let (mut near, _far) = pair_of(&context, &context);
    let (mut other, mut other_far) = pair_of(&context, &context);
    // Other work on the machine may stop this thread for all of one attempt.
    let mut most = 0;
    for _ in 0..10 {
        let (growing, grown) = (AtomicBool::new(false), AtomicBool::new(false));
        let meanwhile = thread::scope(|scope| {
            scope.spawn(|| {
                growing.store(true, Ordering::SeqCst);
                drop(near.sender().reserve(LONG).unwrap());
                grown.store(true, Ordering::SeqCst);
            });
            let mut meanwhile = 0;
            while !grown.load(Ordering::SeqCst) {
                let started = growing.load(Ordering::SeqCst);
                other.send(&[1; 20_000]).unwrap();
                other_far.receiver().recv_deadline(soon()).unwrap().unwrap();
                meanwhile += u32::from(started && !grown.load(Ordering::SeqCst));
            }
            meanwhile
        });
        context.trim();
        most = most.max(meanwhile);
        // Some may slip in before the memory is asked for.
        if most >= 50 {
            return;
        }
    }
    panic!("only {most} messages went while the pool grew");
}

// Ends.

/// Lets go of both ends of many links at the same moment. It takes 3 s, and 15 s in a whole run.
fn let_go_at_once(test: &str, prepare: fn(&mut Connection, &mut Connection)) {
    let mut other = Other::start(test, "", |_| {
        // One segment of each pool.
        let options = Options::new().pool_quota(1 << 20);
        let one = Context::with_options(options.clone()).unwrap();
        let two = Context::with_options(options).unwrap();
        let let_go = |delay: u32| {
            let (mut near, mut far) = pair_of(&one, &two);
            prepare(&mut near, &mut far);
            let ready = AtomicU32::new(0);
            let meet = || {
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < 2 {
                    std::hint::spin_loop();
                }
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    meet();
                    drop(near);
                });
                meet();
                // The end of the one is noticed at every step of the other's.
                for _ in 0..delay {
                    std::hint::spin_loop();
                }
                drop(far);
            });
        };
        (0..20).for_each(&let_go);
        thread::sleep(Duration::from_millis(50));
        let before = Census::take();
        let end = Instant::now() + Duration::from_secs(if sample::is_whole() { 15 } else { 3 });
        for round in 0u32.. {
            let_go(round * 37 % 8000);
            if Instant::now() >= end {
                break;
            }
        }
        before.comes_back_but_for_a_spare();
        say("done");
    });
    other.expect("done");
    other.succeeds();
}

#[test]
fn a_link_that_both_sides_let_go_of_at_once_leaves_nothing_behind() {
    let test = "a_link_that_both_sides_let_go_of_at_once_leaves_nothing_behind";
    let_go_at_once(test, |_, _| {});
}

#[test]
fn a_link_with_loans_that_both_sides_let_go_of_at_once_leaves_nothing_behind() {
    let test = "a_link_with_loans_that_both_sides_let_go_of_at_once_leaves_nothing_behind";
    let_go_at_once(test, |near, far| {
        near.send(&[1; 20_000]).unwrap();
        far.send(&[1; 20_000]).unwrap();
    });
}

#[test]
fn a_peer_that_shuts_its_reading_side_is_dead_for_every_later_message() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.say(b"before");
    rustix::net::shutdown(&peer.socket, Shutdown::Read).unwrap();
    // A segment cannot be sent any more.
    assert_eq!(kind(link.send(&[1; 20_000])), ErrorKind::PeerDied);
    for _ in 0..2 {
        assert_eq!(kind(link.send(b"short")), ErrorKind::PeerDied);
        assert_eq!(kind(link.send(&[1; 20_000])), ErrorKind::PeerDied);
        assert_eq!(kind(link.sender().reserve(8).map(drop)), ErrorKind::PeerDied);
    }
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"before");
    assert_eq!(kind(link.receiver().recv_deadline(soon())), ErrorKind::PeerDied);
    stage.is_undisturbed();
}

#[test]
fn a_parking_fault_takes_no_message_and_nothing_follows_it() {
    /// Receives one message in some way.
    type Way = fn(&mut Connection) -> Result<Vec<u8>, Error>;
    let ways: [Way; 4] = [
        |link| Ok(link.receiver().recv_deadline(soon())?.unwrap()),
        |link| match link.receiver().try_recv() {
            Ok(message) => Ok(message.unwrap()),
            Err(TryRecvError::Failed(error)) => Err(error),
            Err(error) => panic!("{error}"),
        },
        |link| {
            let received = link.receiver().peek_deadline(soon())?.unwrap();
            let message = received.bytes().to_vec();
            received.release().unwrap();
            Ok(message)
        },
        |link| {
            let mut seen = Vec::new();
            link.receiver().drain(1, |_, bytes| seen = bytes.to_vec())?;
            Ok(seen)
        },
    ];
    let mut stage = Stage::new(Options::new());
    for receive in ways {
        let (mut link, mut peer) = stage.link();
        for number in 0..30 {
            peer.say(&[number; 2000]);
        }
        // Looked at when room is given back, which is after some of them.
        let expected = Fault::Parking { value: 8 };
        peer.own.store(SENDER_STATE, 8);
        let mut number = 0;
        let met = loop {
            match receive(&mut link) {
                Ok(message) => assert_eq!(message, [number; 2000], "{number} is missing"),
                Err(error) => break error,
            }
            number += 1;
        };
        assert!((1..30).contains(&number), "found after {number}");
        // Each takes 64 bytes for its header and 2048 for itself: none that was given back is missing.
        assert_eq!(peer.theirs().load(POSITION), u64::from(number) * (64 + 2048));
        assert_eq!(*met.kind(), ErrorKind::Fault(expected));
        stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

#[test]
fn a_reservation_that_is_forgotten_is_never_sent() {
    let (mut near, mut far) = pair(Options::new());
    for len in [8, 100_000] {
        let mut room = near.sender().reserve(len).unwrap();
        room.fill(9);
        std::mem::forget(room);
        // Stands where the forgotten one would go.
        near.send(&[1; 40]).unwrap();
        let mut room = near.sender().reserve(8).unwrap();
        room.copy_from_slice(b"in place");
        room.publish().unwrap();
        let mut room = near.sender().reserve(20_000).unwrap();
        room.fill(3);
        room.publish().unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), [1; 40]);
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"in place");
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), [3; 20_000]);
        assert!(matches!(far.receiver().try_recv(), Err(TryRecvError::Empty)));
    }
}

#[test]
fn a_reservation_that_is_forgotten_holds_no_block_against_the_next() {
    let (mut near, mut far) = pair(Options::new().pool_quota(64 << 10));
    std::mem::forget(near.sender().reserve(64 << 10).unwrap());
    near.sender().send_deadline(&[2; 64 << 10], Instant::now() + LATE).unwrap();
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![2; 64 << 10]);
}

// Forks.

#[test]
fn a_child_that_drops_what_it_inherited_keeps_its_own_threads() {
    let test = "a_child_that_drops_what_it_inherited_keeps_its_own_threads";
    let mut other = Other::start(test, "", |_| {
        let context = Context::new().unwrap();
        let (near, far) = pair_of(&context, &context);
        let status = fork(move || {
            // The first thread of the child may get what was the watching thread's stack, by which
            // the system names threads.
            let own = thread::spawn(|| thread::sleep(Duration::from_millis(100)));
            drop((near, far, context));
            own.join().unwrap();
        });
        say(&status.to_string());
    });
    other.expect("0");
    other.succeeds();
}

#[test]
fn a_child_with_its_parents_pid_is_another_process() {
    let test = "a_child_with_its_parents_pid_is_another_process";
    let mut other = Other::start(test, "", |_| {
        if !unshare_pids() {
            return say("skipped");
        }
        let status = fork(|| {
            assert_eq!(std::process::id(), 1);
            let context = Context::new().unwrap();
            let (near, far) = raw::socketpair();
            rustix::net::sockopt::set_socket_passcred(&near, true).unwrap();
            let mut peer = RawPeer::greet(far, Hello::honest());
            let mut link = context.accept_socket(near).unwrap();
            peer.meet();
            assert!(unshare_pids());
            let status = fork(|| {
                assert_eq!(std::process::id(), 1);
                // Its own use of the library must not make the parent's handles its own.
                let own = Context::new().unwrap();
                assert_eq!(kind(link.send(b"x")), ErrorKind::Forked);
                assert_eq!(kind(link.send(&[1; 20_000])), ErrorKind::Forked);
                assert_eq!(kind(link.recv()), ErrorKind::Forked);
                link.receiver().take_turns();
                assert_eq!(link.receiver().rest(), None);
                let stats = link.stats();
                assert_eq!((stats.sent.messages, stats.send_queue, stats.recv_queue), (0, 0, 0));
                assert_eq!(own.pool_bytes(), 0);
            });
            assert_eq!(status, 0, "the child of the child");
            link.send(b"x").unwrap();
        });
        assert_eq!(status, 0, "the child");
        say("done");
    });
    if other.hear() == "skipped" {
        eprintln!("SKIPPED: a namespace of pids needs root");
    }
    other.succeeds();
}

/// Puts the children of this process into a namespace of pids of their own.
fn unshare_pids() -> bool {
    // SAFETY: changes nothing but the pids of children to come.
    unsafe { libc::unshare(libc::CLONE_NEWPID) == 0 }
}

// Admission.

/// Returns a policy that refuses, and whether it was asked.
fn nobody() -> (Options, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let policy = PeerPolicy::Custom(Arc::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        false
    }));
    (Options::new().peer_policy(policy), asked)
}

#[test]
fn no_descriptor_leaves_through_a_socket_whose_maker_is_not_admitted() {
    let (options, asked) = nobody();
    let context = Context::with_options(options).unwrap();
    let (near, far) = raw::socketpair();
    assert!(matches!(kind(context.connect_socket(near)), ErrorKind::PeerNotAdmitted { .. }));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(raw::receive(&far).is_none(), "nothing was sent");
    // The accepting side does not wait for a Hello to say so.
    let (near, _far) = raw::socketpair();
    assert!(matches!(kind(context.accept_socket(near)), ErrorKind::PeerNotAdmitted { .. }));
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[test]
fn a_refusal_over_a_socket_pair_is_told_with_its_reason() {
    let (options, _asked) = nobody();
    let (near, far) = raw::socketpair();
    let connector = thread::spawn(|| Context::new().unwrap().connect_socket(far));
    let context = Context::with_options(options).unwrap();
    assert!(matches!(kind(context.accept_socket(near)), ErrorKind::PeerNotAdmitted { .. }));
    let told = kind(connector.join().unwrap());
    assert_eq!(told, ErrorKind::NotAdmittedByPeer);
}

// The cost of the numbers that a peer sends.

/// Memory of this process that no file backs, in bytes: by a walk through its pages, as the totals
/// that the kernel keeps lag behind.
fn heap() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn loan_slots_that_a_peer_announces_cost_nothing_before_they_are_used() {
    const LINKS: u64 = 20;
    let test = "loan_slots_that_a_peer_announces_cost_nothing_before_they_are_used";
    let mut other = Other::start(test, "", |_| {
        let mut stage = Stage::new(Options::new());
        let hello = Hello { ring_capacity: page(), ..with_slots(65_536) };
        drop(stage.link_with(hello));
        let before = heap();
        let links: Vec<_> = (0..LINKS).map(|_| stage.link_with(hello)).collect();
        let each = heap().saturating_sub(before) / LINKS;
        assert!(each < 32 << 10, "{each} bytes for one link");
        drop(links);
        say("done");
    });
    other.expect("done");
    other.succeeds();
}

#[test]
fn a_response_that_was_received_is_no_error_although_the_caller_leaves() {
    // The caller sleeps, and leaves as soon as it is woken: while the loan of the response is entered.
    for _ in 0..300 {
        let (mut near, mut far) = pair(Options::new().spin(Spin::Never));
        let answering = thread::spawn(move || {
            let request = far.recv_request().unwrap().unwrap();
            far.respond(request.id, &request.body)
        });
        assert_eq!(near.call(&[2; 50_000]).unwrap(), [2; 50_000]);
        drop(near);
        answering.join().unwrap().unwrap();
    }
}
