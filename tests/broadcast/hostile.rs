//! Subscribers and publishers that lie. An honest side beside them goes on.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Rlimit;
use slipring::broadcast::{EventKind, PublishOptions, SubscribeOptions, Subscriber};
use slipring::error::{Eviction, Fault, TryRecvError};
use slipring::options::PeerPolicy;
use slipring::{Context, ErrorKind, Options, Tensor, TensorSet};

use crate::support::census::{Census, descriptors};
use crate::support::hanging::HangingFile;
use crate::support::other::{Other, alone, say, wait_until_asleep};
use crate::support::raw::{
    self, Hello, Lent, MESSAGE, META, MORE, Memory, POOLED, RECEIVER_STATE, RETURNS, RawPeer,
    header, page, topic_packet,
};
use crate::support::{HANG, fault, soon, unique_name, wait_until};
use crate::{Stage, next};

/// Policies in a Hello.
pub const EVERY: u32 = 1;
pub const NEWEST: u32 = 2;
pub const LATEST: u32 = 3;

/// Words of a topic.
pub const NEWEST_WORD: usize = 0x040;

/// A bit of a slot's header: the payload lies in a block.
pub const SPILLED: u64 = 1 << 12;

const FRAME: usize = 1 << 20;

pub fn quick() -> PublishOptions {
    PublishOptions::new().slots(16).newest_limit(8).stall_after(Duration::from_millis(30))
}

/// Joins a publisher by hand.
pub fn join(stage: &Stage, hello: Hello) -> RawPeer {
    let ids = || stage.publisher.subscribers().iter().map(|one| one.id()).max();
    let before = ids();
    let mut peer = RawPeer::greet(raw::dial(&stage.name), hello);
    peer.meet();
    let mut packets = std::iter::repeat_with(|| raw::receive(&peer.socket).expect("a Topic"));
    let is_topic = |(packet, _): &(Vec<u8>, _)| packet[8] != raw::SEGMENT as u8;
    let (packet, fds) = packets.find(is_topic).unwrap();
    assert_eq!((packet[8], fds.len()), (raw::TOPIC as u8, 1), "{:?}", raw::refusal_code(&packet));
    // Another one may leave meanwhile.
    wait_until("the join", || ids() > before);
    peer
}

/// Publishes messages, which an honest subscriber receives.
pub fn goes_on(stage: &mut Stage, honest: &mut Subscriber, count: usize) {
    for number in 0..count {
        let message = vec![number as u8; if number % 5 == 4 { 20_000 } else { 9 }];
        stage.publisher.send(&message).unwrap();
        assert!(next(honest) == (message, 0), "message {number}");
    }
}

pub fn evictions(stage: &Stage) -> usize {
    let events = stage.publisher.take_events();
    let is_one = |kind| kind == EventKind::Evicted(Eviction::Stalled);
    events.iter().filter(|event| is_one(event.kind())).count()
}

#[test]
fn positions_that_cannot_be_cost_their_subscriber_alone() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    // The last two are past the newest message: that subscriber has read all.
    for (position, is_evicted) in [(0, true), (1, true), (1 << 40, false), (u64::MAX, false)] {
        let liar = join(&stage, Hello::subscriber(EVERY, 0));
        liar.position(position);
        goes_on(&mut stage, &mut honest, 50);
        assert_eq!(evictions(&stage), usize::from(is_evicted), "{position}");
    }
}

#[test]
fn positions_that_go_back_do_not_hold_the_publisher() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let liars = [(); 2].map(|()| join(&stage, Hello::subscriber(EVERY, 0)));
    let flag = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&flag);
        for liar in &liars {
            scope.spawn(|| {
                while !flag.load(Ordering::Relaxed) {
                    liar.own.store(raw::POSITION, 1);
                    liar.own.store(raw::POSITION, u64::MAX);
                    std::thread::yield_now();
                }
            });
        }
        let start = Instant::now();
        goes_on(&mut stage, &mut honest, 200);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        drop(over);
    });
}

#[test]
fn a_subscriber_that_ends_holds_no_publisher_that_waits_for_it() {
    let stall_after = Duration::from_secs(10);
    let mut stage = Stage::new(PublishOptions::new().slots(4).stall_after(stall_after));
    let me = rustix::thread::gettid();
    for _ in 0..50 {
        let peer = join(&stage, Hello::subscriber(EVERY, 0));
        while stage.publisher.try_send(b"tick").is_ok() {}
        std::thread::scope(|scope| {
            scope.spawn(move || {
                wait_until_asleep(me);
                drop(peer);
            });
            let start = Instant::now();
            stage.publisher.send(b"tick").unwrap();
            assert!(start.elapsed() < stall_after, "it waits for one that is gone");
        });
        assert_eq!(evictions(&stage), 0);
    }
}

#[test]
fn positions_that_advance_by_turns_do_not_hold_the_publisher() {
    let options = PublishOptions::new().slots(64).stall_after(Duration::from_millis(300));
    let mut stage = Stage::with(Options::new().pool_quota(8 << 20), options);
    let liars = [(); 2].map(|()| join(&stage, Hello::subscriber(EVERY, 0)));
    for _ in 0..60 {
        stage.publisher.send(&[0; 65_536]).unwrap();
    }
    let flag = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&flag);
        scope.spawn(|| {
            // Each wait for one of them ends in time, and all of them together take 12 seconds.
            for position in 2..=61 {
                for liar in &liars {
                    std::thread::sleep(Duration::from_millis(100));
                    if flag.load(Ordering::Relaxed) {
                        return;
                    }
                    liar.own.store(raw::POSITION, position);
                }
            }
        });
        // Needs what the other messages keep.
        stage.publisher.send(&vec![1; 7 << 20]).unwrap();
        drop(over);
    });
    assert_eq!(evictions(&stage), 2);
}

/// Ends the threads of a test, also when it panics.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_subscriber_that_has_read_all_and_maps_nothing_is_evicted() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    for position in [0, 1, u64::MAX] {
        let hello = Hello { pool_limit: 0, ..Hello::subscriber(EVERY, 0) };
        let liar = join(&stage, hello);
        liar.position(position);
        goes_on(&mut stage, &mut honest, 10);
        assert_eq!(evictions(&stage), 1, "{position}");
    }
    let _lossy = join(&stage, Hello { pool_limit: 0, ..Hello::subscriber(LATEST, 0) });
    goes_on(&mut stage, &mut honest, 50);
    assert_eq!(evictions(&stage), 0);
}

#[test]
fn a_subscriber_that_says_nothing_is_evicted_or_not_waited_for() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let silent = [(EVERY, 0), (NEWEST, 8), (LATEST, 0)]
        .map(|(policy, depth)| join(&stage, Hello::subscriber(policy, depth)));
    goes_on(&mut stage, &mut honest, 100);
    assert_eq!(evictions(&stage), 1);
    assert_eq!(stage.publisher.subscribers().len(), 3);
    drop(silent);
    wait_until("their end", || stage.publisher.subscribers().len() == 1);
}

#[test]
fn holds_that_are_never_given_back_cost_no_more_than_the_limit() {
    let options = Options::new().pool_quota(64 << 20);
    let mut stage = Stage::with(options, PublishOptions::new().hold_limit(3));
    let mut honest = stage.subscribe(SubscribeOptions::latest());
    let liar = join(&stage, Hello::subscriber(LATEST, 0));
    // The first three are messages to come, the others beyond the limit. Later all of them never come.
    for first in [1, 1 << 40, u64::MAX - 255] {
        for word in 0..256 {
            liar.own.store(RETURNS + 8 * word as usize, first + word);
        }
        for number in 0..100u8 {
            let mut frame = stage.publisher.alloc::<u8>([FRAME]).unwrap();
            frame.fill(number);
            stage.publisher.send_tensor(frame).unwrap();
            let tensor = honest.recv().unwrap().unwrap().into_tensor().unwrap();
            assert_eq!(tensor.to_vec::<u8>().unwrap(), vec![number; FRAME]);
        }
        let most = if first == 1 { 4 } else { 1 };
        assert!(stage.kept_bytes() <= most * FRAME as u64, "{first}");
        assert!(stage.publisher.subscribers().iter().all(|one| one.held() <= 3));
    }
    liar.own.store(RETURNS, stage.publisher.sent());
    stage.publisher.send(b"withdraws nothing that is held").unwrap();
    drop(liar);
    wait_until("its end", || stage.publisher.subscribers().len() == 1);
    assert!(stage.kept_bytes() <= FRAME as u64);
}

#[test]
fn holds_of_too_many_bytes_end_their_subscriber_or_hold_nothing() {
    const LIMIT: u64 = 3 * FRAME as u64;
    for policy in [LATEST, EVERY] {
        let options = PublishOptions::new().hold_limit(64).hold_bytes(LIMIT);
        let mut stage = Stage::with(Options::new().pool_quota(128 << 20), options);
        let mut honest = stage.subscribe(SubscribeOptions::latest());
        let liar = join(&stage, Hello::subscriber(policy, 0));
        for message in 1..=60u64 {
            liar.own.store(RETURNS + 8 * message as usize, message);
            liar.position(message + 1);
        }
        let mut most = 0;
        for number in 0..60u8 {
            let mut frame = stage.publisher.alloc::<u8>([FRAME]).unwrap();
            frame.fill(number);
            stage.publisher.send_tensor(frame).unwrap();
            drop(honest.recv().unwrap().unwrap());
            most = most.max(stage.kept_bytes());
        }
        // What the two of them may hold, and the message that the liar may be about to look at.
        assert!(most <= LIMIT + 3 * FRAME as u64, "{} MiB", most >> 20);
        let kinds: Vec<_> =
            stage.publisher.take_events().iter().map(|event| event.kind()).collect();
        assert_eq!(kinds[2..], [EventKind::Evicted(Eviction::Overdrawn)]);
        // The evicted word.
        assert_eq!(liar.theirs().load(0x0d0), 3);
        // Holds that come and go between two looks keep nothing.
        let flickers = join(&stage, Hello::subscriber(LATEST, 0));
        let flag = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = Over(&flag);
            scope.spawn(|| {
                while !flag.load(Ordering::Relaxed) {
                    for number in 0..64u64 {
                        let message = stage_message(number);
                        flickers.own.store(RETURNS + 8 * number as usize, message);
                    }
                    (0..64).for_each(|word| flickers.own.store(RETURNS + 8 * word, 0));
                }
            });
            for number in 0..200u8 {
                let mut frame = stage.publisher.alloc::<u8>([FRAME]).unwrap();
                frame.fill(number);
                stage.publisher.send_tensor(frame).unwrap();
                drop(honest.recv().unwrap().unwrap());
                let kept = stage.kept_bytes();
                assert!(kept <= LIMIT + 3 * FRAME as u64, "{} MiB", kept >> 20);
            }
            drop(over);
        });
    }
}

/// The numbers of the messages that are published while a liar alternately holds and drops them.
fn stage_message(number: u64) -> u64 {
    61 + 3 * number
}

#[test]
fn a_publisher_outlives_a_hold_by_its_grace() {
    let options = Options::new().release_grace(Duration::from_millis(50));
    let name = unique_name();
    let context = Context::with_options(options).unwrap();
    let mut publisher = context.publish(&name, PublishOptions::new()).unwrap();
    let mut liar = RawPeer::greet(raw::dial(&name), Hello::subscriber(LATEST, 0));
    liar.meet();
    liar.own.store(RETURNS, 1);
    wait_until("the join", || publisher.subscribers().len() == 1);
    publisher.send(&[1; 20_000]).unwrap();
    drop(publisher);
    // The revoked word.
    wait_until("the end of the grace", || liar.theirs().load(0x0c8) != 0);
}

#[test]
fn state_words_that_cannot_be_cost_a_wake_up() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let liar = join(&stage, Hello::subscriber(LATEST, 0));
    for state in [1, 2, 5, 6, 7, 8, 9, 1 << 63, u64::MAX - 1, u64::MAX, 4, 0, 3] {
        liar.own.store(RECEIVER_STATE, state);
        goes_on(&mut stage, &mut honest, 5);
        for epoch in 0..100 {
            liar.own.store(RECEIVER_STATE, epoch << 3 | state & 7);
            goes_on(&mut stage, &mut honest, 1);
        }
    }
}

#[test]
fn a_flood_of_joins_leaves_nothing_behind() {
    alone("a_flood_of_joins_leaves_nothing_behind", || {
        let mut stage = Stage::new(quick());
        let mut honest = stage.subscribe(SubscribeOptions::every());
        goes_on(&mut stage, &mut honest, 50);
        drop(stage.subscribe(SubscribeOptions::latest()));
        wait_until("its end", || stage.publisher.subscribers().len() == 1);
        let before = Census::take();
        for round in 0..10 {
            let silent: Vec<OwnedFd> = (0..50).map(|_| raw::dial(&stage.name)).collect();
            for number in 0..50 {
                let policy = [EVERY, LATEST][number % 2];
                drop(RawPeer::greet(raw::dial(&stage.name), Hello::subscriber(policy, 0)));
            }
            drop(silent);
            goes_on(&mut stage, &mut honest, 10);
            let mut late = stage.subscribe(SubscribeOptions::every());
            stage.publisher.send(&[round]).unwrap();
            assert_eq!(next(&mut late).0, [round]);
            assert_eq!(next(&mut honest).0, [round]);
        }
        wait_until("their end", || stage.publisher.subscribers().len() == 1);
        before.comes_back_but_for_a_spare();
        assert!(stage.kept_bytes() <= 32_768);
    });
}

/// Returns the code with which a listener refuses a Hello.
fn refusal(name: &str, hello: &[u8]) -> Option<u32> {
    let socket = raw::dial(name);
    let (fd, _memory) = raw::segment(Hello::honest().segment_len());
    raw::send(&socket, hello, &[fd.as_fd()]).unwrap();
    let (packet, _) = raw::receive(&socket).expect("an answer");
    raw::refusal_code(&packet)
}

#[test]
fn each_wrong_hello_has_its_refusal() {
    let mut stage = Stage::new(quick().subscriber_limit(2));
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let of = |policy, depth| Hello::subscriber(policy, depth);
    for (hello, code) in [
        (Hello::honest(), 5),
        (Hello::publisher(), 5),
        (Hello { role: 3, ..of(EVERY, 0) }, 2),
        (Hello { role: u32::MAX, ..of(EVERY, 0) }, 2),
        (of(0, 0), 2),
        (of(4, 0), 2),
        (of(u32::MAX, 0), 2),
        (of(EVERY, 1), 2),
        (of(LATEST, 1), 2),
        (of(NEWEST, 0), 2),
        (of(NEWEST, 9), 7),
        (of(NEWEST, u32::MAX), 7),
        (Hello { policy: 1, ..Hello::publisher() }, 2),
    ] {
        assert_eq!(refusal(&stage.name, &hello.encode()), Some(code), "{hello:?}");
    }
    for at in [80, 127] {
        let mut hello = of(EVERY, 0).encode();
        hello[at] = 1;
        assert_eq!(refusal(&stage.name, &hello), Some(2), "byte {at}");
    }
    // The publisher counts behind the handshake.
    let _second = join(&stage, of(LATEST, 0));
    let mut third = RawPeer::greet(raw::dial(&stage.name), of(LATEST, 0));
    third.meet();
    let (packet, _) = raw::receive(&third.socket).expect("a Refusal");
    assert_eq!(raw::refusal_code(&packet), Some(8));
    goes_on(&mut stage, &mut honest, 20);

    let lossy = Stage::new(quick().every(false));
    assert_eq!(refusal(&lossy.name, &of(EVERY, 0).encode()), Some(7));
    let met = lossy.context.subscribe(&lossy.name, SubscribeOptions::every()).unwrap_err();
    assert_eq!(*met.kind(), ErrorKind::PolicyRefused);

    let name = unique_name();
    let mut listener = lossy.context.listen(&name).unwrap();
    let asks = std::thread::spawn(move || refusal(&name, &of(EVERY, 0).encode()));
    wait_until("the refusal", || {
        assert!(listener.try_accept().unwrap().is_none());
        listener.stats().refused == 1
    });
    assert_eq!(asks.join().unwrap(), Some(6));
}

#[test]
fn a_side_of_another_version_is_told_both_versions() {
    let stage = Stage::new(PublishOptions::default());
    let hello = Hello { version_min: 2, version_max: 3, ..Hello::subscriber(EVERY, 0) };
    assert_eq!(refusal(&stage.name, &hello.encode()), Some(2));
    // A publisher that speaks later versions alone, and a listener that refuses the Hello because it knows no broadcast.
    for (versions, expected) in [
        ((2, 3), ErrorKind::NoCommonVersion { ours: (1, 1), theirs: (2, 3) }),
        ((1, 1), ErrorKind::RefusedByPeer { code: 2 }),
    ] {
        let name = unique_name();
        let listener = raw::listen(&name);
        let asking = std::thread::spawn(move || {
            let options = SubscribeOptions::latest().reconnect(false);
            Context::new().unwrap().subscribe(&name, options).map(drop).unwrap_err()
        });
        let socket = raw::accept(&listener);
        raw::receive(&socket).expect("a Hello");
        raw::send(&socket, &raw::refusal_packet(versions, 2), &[]).unwrap();
        let met = asking.join().unwrap();
        assert_eq!(*met.kind(), expected);
        let text = met.to_string();
        assert!(text.contains(if versions.0 == 1 { "knows no broadcasts" } else { "3" }), "{text}");
    }
}

#[test]
fn another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: another user needs root to become one");
        return;
    }
    let name = unique_name();
    let mut other = Other::start("another_user_is_refused", &name, |name| {
        // SAFETY: sets an id of this process, in which nobody else relies on it.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        let wait = SubscribeOptions::latest().wait_for_publisher(Duration::from_secs(20));
        let met = Context::new().unwrap().subscribe(name, wait.clone()).unwrap_err();
        assert_eq!(*met.kind(), ErrorKind::PeerNotAdmitted { uid: 0 });
        let open = Context::with_options(Options::new().peer_policy(PeerPolicy::Anyone)).unwrap();
        let met = open.subscribe(name, wait).unwrap_err();
        assert_eq!(*met.kind(), ErrorKind::NotAdmittedByPeer);
        say("done");
    });
    let context = Context::new().unwrap();
    let publisher = context.publish(&name, PublishOptions::default()).unwrap();
    other.expect("done");
    other.succeeds();
    assert!(publisher.take_events().is_empty());
}

/// A subscriber that joins a publisher made by hand, which sends `answer` behind its Hello.
pub fn joins(
    options: SubscribeOptions,
    answer: impl FnOnce(&OwnedFd),
) -> (slipring::Result<Subscriber>, RawPeer) {
    let name = unique_name();
    let listener = raw::listen(&name);
    let joining = std::thread::spawn(move || {
        Context::new().unwrap().subscribe(&name, options.reconnect(false))
    });
    let socket = raw::accept(&listener);
    let (packet, fds) = raw::receive(&socket).expect("a Hello");
    let mut peer = RawPeer::greet(socket, Hello::publisher());
    peer.heard(&packet, &fds);
    answer(&peer.socket);
    (joining.join().unwrap(), peer)
}

#[test]
fn a_publisher_of_files_that_hang_cannot_use_up_the_descriptors() {
    const LIMIT: u64 = 1024;
    alone("a_publisher_of_files_that_hang_cannot_use_up_the_descriptors", || {
        let Some(file) = HangingFile::open() else { return };
        let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let join = |_| {
            let name = unique_name();
            let listener = raw::listen(&name);
            let joining = std::thread::spawn(move || {
                let options = SubscribeOptions::latest().reconnect(false);
                let patient = Options::new().handshake_timeout(HANG);
                Context::with_options(patient).unwrap().subscribe(&name, options).map(drop)
            });
            let socket = raw::accept(&listener);
            let (packet, fds) = raw::receive(&socket).expect("a Hello");
            let mut peer = RawPeer::greet(socket, Hello::publisher());
            peer.heard(&packet, &fds);
            (joining, peer)
        };
        // All of them have joined before the first one is overdrawn.
        let waiting: Vec<_> = (0..8).map(join).collect();
        let topic = topic_packet(16, 256, 4, 0);
        for (joining, peer) in waiting {
            raw::send(&peer.socket, &topic, &[file.as_fd(); 200]).unwrap();
            joining.join().unwrap().unwrap_err();
        }
        assert!(descriptors() < LIMIT as usize * 3 / 4, "{} are open", descriptors());
        drop(file);
        wait_until("the closes", || descriptors() < 200);
    });
}

const SLOTS: u64 = 16;
const SLOT: u64 = 256;
const ROOM: u64 = SLOT - 16;

/// A topic made by hand, with a subscriber.
pub struct Topic {
    memory: Memory,
    pub peer: RawPeer,
}

impl Topic {
    /// A topic that has said nothing but a number of the newest message.
    pub fn new(options: SubscribeOptions, newest: u64) -> (Subscriber, Self) {
        let (fd, memory) = raw::segment(page() + (SLOTS * SLOT).next_multiple_of(page()));
        memory.store(NEWEST_WORD, newest);
        let (subscriber, peer) = joins(options, |socket| {
            let packet = topic_packet(SLOTS as u32, SLOT as u32, 4, 0);
            raw::send(socket, &packet, &[fd.as_fd()]).unwrap();
        });
        (subscriber.unwrap(), Self { memory, peer })
    }

    fn slot(&self, message: u64) -> usize {
        (page() + message % SLOTS * SLOT) as usize
    }

    pub fn publish(&self, message: u64, word: u64, payload: &[u8]) {
        let slot = self.slot(message);
        self.memory.store(slot, 0);
        self.memory.store(slot + 8, word);
        self.memory.write(slot + 16, payload);
        self.memory.store(slot, message << 1);
        self.memory.store(NEWEST_WORD, message);
    }

    fn fill(&self, state: u64) {
        (0..SLOTS).for_each(|slot| self.memory.store(self.slot(slot), state));
    }
}

#[test]
fn topics_that_cannot_be_are_faults() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let len = page() + (SLOTS * SLOT).next_multiple_of(page());
    let (right, _memory) = raw::segment(len);
    let good = topic_packet(16, 256, 4, 0);
    let met = |answer: &dyn Fn(&OwnedFd)| fault(joins(SubscribeOptions::latest(), answer).0);
    for (field, packet) in [
        ("topic.slots", topic_packet(0, 256, 4, 0)),
        ("topic.slots", topic_packet(1, 256, 4, 0)),
        ("topic.slots", topic_packet(15, 256, 4, 0)),
        ("topic.slots", topic_packet(1 << 17, 256, 4, 0)),
        ("topic.slot_len", topic_packet(16, 0, 4, 0)),
        ("topic.slot_len", topic_packet(16, 32, 4, 0)),
        ("topic.slot_len", topic_packet(16, 255, 4, 0)),
        ("topic.slot_len", topic_packet(16, 1 << 22, 4, 0)),
        ("topic.hold_limit", topic_packet(16, 256, 0, 0)),
        ("topic.hold_limit", topic_packet(16, 256, 65, 0)),
        ("topic.history", topic_packet(16, 256, 4, 16)),
        ("topic.history", topic_packet(16, 256, 4, u32::MAX)),
    ] {
        let met = met(&|socket| raw::send(socket, &packet, &[right.as_fd()]).unwrap());
        assert!(matches!(met, Fault::Field { field: name, .. } if name == field), "{met:?}");
    }
    let none = met(&|socket| raw::send(socket, &good, &[]).unwrap());
    assert_eq!(none, Fault::DescriptorCount { count: 0, expected: 1 });
    let two = [right.as_fd(), right.as_fd()];
    let two = met(&|socket| raw::send(socket, &good, &two).unwrap());
    assert_eq!(two, Fault::DescriptorCount { count: 2, expected: 1 });
    let short = met(&|socket| raw::send(socket, &good[..127], &[right.as_fd()]).unwrap());
    assert!(matches!(short, Fault::PacketLength { .. }), "{short:?}");
    let long = [&good[..], &[0]].concat();
    let long = met(&|socket| raw::send(socket, &long, &[right.as_fd()]).unwrap());
    assert!(matches!(long, Fault::Truncated | Fault::PacketLength { .. }), "{long:?}");
    let wake = met(&|socket| raw::send(socket, &raw::wake_packet(1), &[]).unwrap());
    assert!(matches!(wake, Fault::Field { field: "kind", value: 5 }), "{wake:?}");

    let (small, _memory) = raw::segment(len - page());
    let small = met(&|socket| raw::send(socket, &good, &[small.as_fd()]).unwrap());
    assert!(matches!(small, Fault::MemorySize { .. }), "{small:?}");
    let (open, _memory) = raw::memfd(len, true, rustix::fs::SealFlags::SHRINK);
    let open = met(&|socket| raw::send(socket, &good, &[open.as_fd()]).unwrap());
    assert!(matches!(open, Fault::Seals { .. }), "{open:?}");
    let (sparse, _memory) = raw::memfd(len, false, raw::SEALS);
    let sparse = met(&|socket| raw::send(socket, &good, &[sparse.as_fd()]).unwrap());
    assert!(matches!(sparse, Fault::Sparse { .. }), "{sparse:?}");

    let refusal = raw::refusal_packet((1, 1), 8);
    let (met, _peer) = joins(SubscribeOptions::latest(), |socket| {
        raw::send(socket, &refusal, &[]).unwrap();
    });
    assert_eq!(*met.unwrap_err().kind(), ErrorKind::RefusedByPeer { code: 8 });
    goes_on(&mut stage, &mut honest, 20);
}

#[test]
fn headers_that_cannot_be_are_faults() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let tensors = |attachments: u64, version: u64| 7 | attachments << 16 | version << 24;
    let mut words: Vec<u64> = vec![0, u64::MAX, 1 << 63];
    words.extend([2, 3, 4, 5, 6, 8, 9, 10, 255].map(|kind| header(kind, 8)));
    words.extend(
        [MORE, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 24].map(|bit| header(MESSAGE, 8) | bit),
    );
    words.extend([ROOM + 1, 1 << 20, u64::from(u32::MAX)].map(|len| header(MESSAGE, len)));
    words.extend([0, 31, 33].map(|len| header(MESSAGE | POOLED, len)));
    words.extend([0, 1, 9].map(|len| header(MESSAGE | META, len)));
    words.extend([1, 32, ROOM, (1 << 20) + 1].map(|len| header(MESSAGE | SPILLED, len)));
    words.push(header(tensors(0, 0), 0));
    words.push(header(tensors(1, 1), 31));
    words.push(header(tensors(255, 1), ROOM));
    words.push(header(tensors(0, 1) | POOLED, 32));
    words.push(header(tensors(0, 1), 3));
    for word in words {
        for options in [SubscribeOptions::every(), SubscribeOptions::latest()] {
            let (mut subscriber, topic) = Topic::new(options, 0);
            topic.publish(1, word, &[0xFF; ROOM as usize]);
            for _ in 0..2 {
                let met = subscriber.recv_deadline(soon()).map(|_| word);
                fault(met);
            }
        }
    }
    goes_on(&mut stage, &mut honest, 20);
}

#[test]
fn blocks_that_are_not_in_the_pool_are_faults() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let right = Lent { segment: 0, slot: 0, offset: 64, len: 1000, generation: 0 };
    let lies = [
        Lent { slot: 64, ..right },
        Lent { slot: 1 << 31, ..right },
        Lent { offset: 8, ..right },
        Lent { offset: page(), ..right },
        Lent { offset: u64::MAX - 63, ..right },
        Lent { len: page(), ..right },
        Lent { len: u64::MAX, ..right },
        Lent { segment: 9, ..right },
    ];
    for flag in [POOLED, SPILLED] {
        let word = |len: u64| header(MESSAGE | flag, if flag == POOLED { 32 } else { len });
        for lie in lies {
            let (mut subscriber, mut topic) = Topic::new(SubscribeOptions::every(), 0);
            topic.peer.send_segment(0, page());
            topic.publish(1, word(lie.len.clamp(ROOM + 1, 1 << 20)), &lie.encode());
            fault(subscriber.recv_deadline(soon()).map(drop));
        }
        let (mut subscriber, mut topic) = Topic::new(SubscribeOptions::every(), 0);
        topic.peer.send_segment(0, page());
        topic.publish(1, word(1000), &right.encode());
        assert_eq!(next(&mut subscriber).0, [0; 1000]);
        // The buffer has room for the slots that follow.
        topic.publish(2, header(MESSAGE, ROOM), &[2; ROOM as usize]);
        assert_eq!(next(&mut subscriber).0, [2; ROOM as usize]);
    }
    // The length in the header is another one than that in the descriptor.
    let (mut subscriber, mut topic) = Topic::new(SubscribeOptions::every(), 0);
    topic.peer.send_segment(0, page());
    topic.publish(1, header(MESSAGE | SPILLED, 999), &right.encode());
    fault(subscriber.recv_deadline(soon()).map(drop));
    // A lossy subscriber misses what it was not told of.
    let (mut subscriber, topic) = Topic::new(SubscribeOptions::latest(), 0);
    topic.publish(1, header(MESSAGE | POOLED, 32), &right.encode());
    assert!(matches!(subscriber.try_recv(), Err(TryRecvError::Empty)));
    topic.publish(2, header(MESSAGE, 2), b"ok");
    assert_eq!(next(&mut subscriber), (b"ok".to_vec(), 1));
    goes_on(&mut stage, &mut honest, 20);
}

#[test]
fn messages_that_never_come_end_with_the_deadline() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    for options in
        [SubscribeOptions::every(), SubscribeOptions::newest(4), SubscribeOptions::latest()]
    {
        for newest in [0, 1, 1 << 40, u64::MAX - 1, u64::MAX] {
            for state in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 33] {
                for uses_descriptor in [false, true] {
                    let (mut subscriber, topic) = Topic::new(options.clone(), newest);
                    topic.fill(state);
                    if uses_descriptor {
                        assert!(subscriber.descriptor().is_some());
                    }
                    let start = Instant::now();
                    let _ = subscriber.try_recv().map(drop);
                    let _ = subscriber.recv_deadline(start + Duration::from_millis(5)).map(drop);
                    let late = start.elapsed();
                    assert!(
                        late < Duration::from_secs(5),
                        "{options:?} {newest} {state}: {late:?}"
                    );
                }
            }
        }
    }
    goes_on(&mut stage, &mut honest, 20);
}

#[test]
fn messages_that_never_come_cost_a_reactor_no_time() {
    let context = Context::new().unwrap();
    let reactor = slipring::Reactor::spawn(&context).unwrap();
    let mut topics = Vec::new();
    for state in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let (subscriber, topic) = Topic::new(SubscribeOptions::latest(), 0);
        topic.fill(state);
        reactor.subscribe(subscriber, |_| std::ops::ControlFlow::Continue(())).unwrap();
        topics.push(topic);
    }
    let used = crate::reactors::time_of_thread(&reactor);
    assert!(used < 0.05, "{:.2} % of a processor", used * 100.0);
}

#[test]
fn messages_that_are_withdrawn_without_end_end_with_the_deadline() {
    let mut stage = Stage::new(quick());
    let mut honest = stage.subscribe(SubscribeOptions::every());
    for options in [SubscribeOptions::newest(4), SubscribeOptions::latest()] {
        let (mut subscriber, topic) = Topic::new(options, 0);
        let flag = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = Over(&flag);
            scope.spawn(|| {
                let mut message = 1;
                while !flag.load(Ordering::Relaxed) {
                    topic.memory.store(topic.slot(message), message << 1 | 1);
                    topic.memory.store(NEWEST_WORD, message);
                    message += 1;
                }
            });
            for _ in 0..20 {
                let start = Instant::now();
                let _ = subscriber.try_recv().map(drop);
                let _ = subscriber.recv_deadline(start + Duration::from_millis(5)).map(drop);
                assert!(start.elapsed() < Duration::from_secs(5));
            }
            drop(over);
        });
    }
    goes_on(&mut stage, &mut honest, 20);
}

#[test]
fn an_evicted_subscriber_hears_so_before_its_socket_ends() {
    for (word, cause) in [(1, Eviction::Stalled), (2, Eviction::Asked), (3, Eviction::Overdrawn)] {
        let (mut subscriber, topic) = Topic::new(SubscribeOptions::every(), 0);
        topic.publish(1, header(MESSAGE, 2), b"ok");
        assert_eq!(next(&mut subscriber).0, b"ok");
        topic.peer.own.store(0x0d0, word);
        topic.memory.store(topic.slot(2), 2 << 1 | 1);
        for _ in 0..2 {
            let met = subscriber.recv_deadline(soon()).map(drop).unwrap_err();
            assert_eq!(*met.kind(), ErrorKind::Evicted { cause });
        }
    }
}

#[test]
fn words_of_an_end_that_cannot_be_end_one_subscriber() {
    let (mut subscriber, topic) = Topic::new(SubscribeOptions::latest(), 0);
    // The evicted word.
    topic.peer.own.store(0x0d0, u64::MAX);
    topic.publish(1, header(MESSAGE, 2), b"ok");
    assert_eq!(next(&mut subscriber).0, b"ok");
    drop(topic);
    let met = subscriber.recv_deadline(soon()).map(drop).unwrap_err();
    assert_eq!(*met.kind(), ErrorKind::Evicted { cause: Eviction::Asked });
}

#[test]
fn an_evicted_subscriber_blames_nobody_for_what_it_finds() {
    let block = Lent { segment: 0, slot: 0, offset: 64, len: 1000, generation: 0 };
    let found: [&dyn Fn(&Topic); 3] = [
        // The publisher has overwritten the message,
        &|topic| topic.memory.store(topic.slot(2), (2 + 16) << 1),
        // has announced the segment to all but this subscriber,
        &|topic| {
            topic.publish(2, header(MESSAGE | POOLED, 32), &Lent { segment: 9, ..block }.encode())
        },
        // or has taken the memory back, which the revoked word says.
        &|topic| {
            topic.peer.own.store(0x0c8, 1);
            topic.publish(2, header(MESSAGE | SPILLED, 1000), &block.encode());
        },
    ];
    for find in found {
        let (mut subscriber, mut topic) = Topic::new(SubscribeOptions::every(), 0);
        topic.peer.send_segment(0, page());
        topic.publish(1, header(MESSAGE, 2), b"ok");
        assert_eq!(next(&mut subscriber).0, b"ok");
        // The evicted word. The end of the socket comes later.
        topic.peer.own.store(0x0d0, 1);
        find(&topic);
        for _ in 0..2 {
            let met = subscriber.recv_deadline(soon()).map(drop).unwrap_err();
            assert_eq!(*met.kind(), ErrorKind::Evicted { cause: Eviction::Stalled });
        }
    }
}

#[test]
fn positions_that_advance_a_little_do_not_hold_a_message_of_many_blocks() {
    let options = PublishOptions::new().slots(128).stall_after(Duration::from_millis(300));
    let mut stage = Stage::with(Options::new().pool_quota(8 << 20), options);
    let liar = join(&stage, Hello::subscriber(EVERY, 0));
    // The pool is full.
    let mut sent = 0;
    while stage.publisher.try_send(&[0; 65_536]).is_ok() {
        sent += 1;
    }
    let mut set = TensorSet::new();
    for _ in 0..40 {
        set.push(Tensor::from_slice([65_536], &[1u8; 65_536]).unwrap());
    }
    let (flag, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let over = Over(&flag);
        scope.spawn(|| {
            // Each of its steps frees one block, in time. The send needs 40 of them, which would take 8 seconds.
            for position in 2..=sent {
                std::thread::sleep(Duration::from_millis(200));
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                liar.own.store(raw::POSITION, position);
                steps.store(position, Ordering::Relaxed);
            }
        });
        stage.publisher.send_tensors(&set).unwrap();
        drop(over);
    });
    assert_eq!(evictions(&stage), 1);
    assert!(steps.load(Ordering::Relaxed) < 20, "{steps:?}");
}
