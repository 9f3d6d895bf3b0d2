//! Random use harms nothing: two honest sides with tight limits, and a peer that writes random bytes.
//!
//! Each test runs a list of seeds. A run depends on its seed alone, and a failure prints it. With
//! `SLIPRING_TESTS=whole` each test runs further seeds for a minute.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::support::raw::{self, *};
use crate::support::{Stage, pair_of, sample, soon};
use rustix::net::Shutdown;
use slipring::error::{TryRecvError, TrySendError};
use slipring::message::MessageKind;
use slipring::options::Spin;
use slipring::{Connection, Context, ErrorKind, Options};

/// How long one operation of some milliseconds may take on a busy machine.
const LATE: Duration = Duration::from_secs(5);

/// How long a test runs further seeds in a whole run.
const WHOLE: Duration = Duration::from_secs(60);

/// A xorshift generator: the same numbers from the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Neighbouring seeds give runs that have nothing in common.
        let mut random = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn size(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// Once in so many times.
    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.size(all.len())]
    }
}

/// Runs `run` with the first `count` seeds, and in a whole run with more of them for [`WHOLE`].
fn with_seeds(count: u64, run: impl Fn(&mut Random)) {
    let start = Instant::now();
    let longer = |_: &u64| sample::is_whole() && start.elapsed() < WHOLE;
    for seed in (1..=count).chain((count + 1..).take_while(longer)) {
        let ran = catch_unwind(AssertUnwindSafe(|| run(&mut Random::new(seed))));
        if let Err(panic) = ran {
            eprintln!("failed with seed {seed}");
            resume_unwind(panic);
        }
    }
}

/// Bytes of a message that no other message of the run has.
fn body(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at * 31 + salt * 7 + 1) as u8 | 1).collect()
}

/// One direction of an honest link: what was sent and not received yet.
#[derive(Default)]
struct Way {
    under_way: VecDeque<Vec<u8>>,
    salt: u64,
    longest: usize,
}

impl Way {
    fn next(&mut self, len: usize) -> Vec<u8> {
        self.salt += 1;
        body(len, self.salt)
    }

    /// Sends something in some way, or not.
    fn send(&mut self, random: &mut Random, from: &mut Connection) {
        let reach = random.of(&[64, 600, 1100, 5000, 100_000, self.longest + 1]);
        let len = random.size(reach).min(self.longest);
        let message = self.next(len);
        match random.below(6) {
            0 | 1 => {
                if went(from.sender().try_send(&message)) {
                    self.under_way.push_back(message);
                }
            }
            2 => match from.sender().send_deadline(&message, Instant::now()) {
                Ok(()) => self.under_way.push_back(message),
                Err(error) => assert!(error.is_timeout(), "{error}"),
            },
            3 => self.reserve(random, from, message),
            _ => self.batch(random, from),
        }
    }

    fn reserve(&mut self, random: &mut Random, from: &mut Connection, mut message: Vec<u8>) {
        let mut room = match from.sender().try_reserve(message.len()) {
            Ok(room) => room,
            Err(error) => return assert!(!went(Err(error))),
        };
        room.copy_from_slice(&message);
        if random.one_in(4) {
            return;
        }
        while random.one_in(2) {
            message.truncate(random.size(message.len() + 1));
            room.truncate(message.len());
        }
        assert_eq!(&room[..], message);
        room.publish().unwrap();
        self.under_way.push_back(message);
    }

    fn batch(&mut self, random: &mut Random, from: &mut Connection) {
        let mut batch = from.sender().batch().unwrap();
        let mut pushed = Vec::new();
        for _ in 0..random.below(12) {
            let message = self.next(random.size(700));
            let answer = if random.one_in(2) {
                batch.try_push(&message)
            } else {
                batch.try_reserve(message.len()).map(|room| room.copy_from_slice(&message))
            };
            match answer {
                Ok(()) => pushed.push(message),
                Err(TrySendError::Full { .. }) => {}
                Err(TrySendError::Failed(error)) => assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::BatchTooLarge { .. } | ErrorKind::MessageTooLarge { .. }
                    ),
                    "{error}"
                ),
            }
        }
        if !random.one_in(4) {
            batch.publish().unwrap();
            self.under_way.extend(pushed);
        }
    }

    /// Receives what there is in some way: all of it, in order.
    fn receive(&mut self, random: &mut Random, to: &mut Connection) {
        match random.below(4) {
            0 => match to.receiver().try_peek() {
                Ok(received) => {
                    let received = received.unwrap();
                    assert!(received.bytes().to_vec() == self.under_way[0]);
                    if random.one_in(2) {
                        received.release().unwrap();
                        self.under_way.pop_front();
                    }
                }
                Err(error) => self.nothing(&error),
            },
            1 => {
                let most = random.size(5);
                let expected: Vec<_> =
                    self.under_way.drain(..most.min(self.under_way.len())).collect();
                let mut seen = Vec::new();
                let count = to.receiver().drain(most, |kind, bytes| {
                    assert_eq!(kind, MessageKind::Message);
                    seen.push(bytes.to_vec());
                });
                assert!(seen == expected, "{} of {} messages", seen.len(), expected.len());
                assert_eq!(count.unwrap(), expected.len());
            }
            _ => match to.receiver().try_recv() {
                Ok(message) => assert!(message == self.under_way.pop_front()),
                Err(error) => self.nothing(&error),
            },
        }
    }

    fn nothing(&self, error: &TryRecvError) {
        assert!(matches!(error, TryRecvError::Empty), "{error}");
        assert!(self.under_way.is_empty(), "{} messages are lost", self.under_way.len());
    }
}

/// Whether something was sent, for operations that fail for want of room only.
fn went(answer: Result<(), TrySendError>) -> bool {
    match answer {
        Ok(()) => true,
        Err(TrySendError::Full { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Both ends of one link, used at random by one thread.
fn use_honestly(random: &mut Random) {
    let longest = random.of(&[1, 100, 9000, 300_000]);
    let options = Options::new()
        .ring_capacity(random.of(&[4096, 8192, 65_536]))
        .inline_max(random.of(&[0, 1, 100, 4096, u64::MAX]))
        .loan_slots(random.of(&[1, 2, 5, 256]))
        .pool_quota(random.of(&[1 << 20, 3 << 20, 2 << 30]))
        .peer_pool_limit(random.of(&[1 << 20, 2 << 20, 4 << 30]))
        .max_message(longest as u64)
        .pool_footprint(random.of(&[1, 1 << 20, 2 << 20]))
        .spin(random.of(&[Spin::Never, Spin::For(Duration::ZERO)]));
    let context = Context::with_options(options).unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let way = || Way { longest, ..Way::default() };
    let (mut out, mut back) = (way(), way());
    for _ in 0..1500 {
        match random.below(5) {
            0 => out.send(random, &mut near),
            1 => back.send(random, &mut far),
            2 => out.receive(random, &mut far),
            3 => back.receive(random, &mut near),
            _ if random.one_in(40) => drop(context.trim()),
            _ => {}
        }
    }
    while !out.under_way.is_empty() {
        out.receive(random, &mut far);
    }
    while !back.under_way.is_empty() {
        back.receive(random, &mut near);
    }
    // Everything is given back, so any length goes again.
    for len in [0, 40, 5000, 250_000].map(|len: usize| len.min(longest)) {
        let message = body(len, 3);
        near.sender().send_deadline(&message, soon()).unwrap();
        assert!(far.receiver().recv_deadline(soon()).unwrap().unwrap() == message);
        far.sender().send_deadline(&message, soon()).unwrap();
        assert!(near.receiver().recv_deadline(soon()).unwrap().unwrap() == message);
    }
    drop((near, far));
    crate::support::trim(&context);
}

#[test]
fn honest_use_with_tight_limits_loses_and_changes_nothing() {
    with_seeds(24, use_honestly);
}

/// Bytes of every pool segment of a liar.
const SEGMENT_LEN: u64 = 64 << 10;

/// Something that a peer writes, possibly nonsense.
fn lie(random: &mut Random, peer: &mut RawPeer, fd: &OwnedFd) {
    let number = random.below(4) as u32;
    match random.below(14) {
        0..=2 => {
            let len = random.below(900);
            let flags = random.of(&[0, MORE, TIGHT, MORE | TIGHT]);
            let kind = random.of(&[MESSAGE, MESSAGE, REQUEST, RESPONSE]);
            let mut payload: Vec<u8> = (0..len).map(|_| random.below(3) as u8).collect();
            // A small number, where it is an id.
            let id_end = payload.len().min(8);
            payload[id_end.min(1)..id_end].fill(0);
            // Where the next record starts is wrong behind MORE.
            peer.publish(header(kind | flags, len), &payload);
        }
        3 | 4 => peer.lend(Lent {
            segment: number,
            slot: random.below(257) as u32,
            offset: 64 * random.below(1030),
            len: random.below(66_000),
            generation: random.below(5),
        }),
        5 => drop(raw::send(&peer.socket, &segment_packet(number, SEGMENT_LEN), &[fd.as_fd()])),
        6 => drop(raw::send(&peer.socket, &retire_packet(number), &[])),
        7 => peer.position(8 * random.below(600)),
        8 => {
            let state = random.of(&[0, 0, 1, 5, 9, 2, 3, 4, 6]);
            peer.own.store(random.of(&[RECEIVER_STATE, SENDER_STATE]), state);
        }
        9 => (0..3).for_each(|slot| peer.give_back(slot, random.below(6))),
        10 => {
            let at = peer.hello.control_len as usize + 8 * random.size(512);
            let word = random.below(8) | random.below(4) << 8 | random.below(5000) << 32;
            peer.own.store(at, word);
        }
        11 => peer.publish(header(PACKETS | random.of(&[0, TIGHT, MORE]), 0), &[]),
        12 if random.one_in(20) => {
            let side = random.of(&[Shutdown::Read, Shutdown::Write, Shutdown::Both]);
            let _ = rustix::net::shutdown(&peer.socket, side);
        }
        _ => {}
    }
}

/// Uses a link in some way, whatever comes of it.
fn act(random: &mut Random, link: &mut Connection) {
    let soon = Instant::now() + Duration::from_millis(random.below(2));
    match random.below(12) {
        0 => drop(link.receiver().try_recv()),
        1 => drop(link.receiver().recv_deadline(soon)),
        2 => drop(link.receiver().recv_request_deadline(soon)),
        3 => drop(link.call_deadline(&[1; 30], soon)),
        4 => drop(link.call_deadline(&[1; 20_000], soon)),
        5 => drop(link.sender().send_deadline(&vec![1; random.size(1500)], soon)),
        6 => drop(link.sender().try_send(&vec![1; random.size(60_000)])),
        7 => {
            if let Ok(Some(received)) = link.receiver().try_peek() {
                assert_eq!(received.bytes().to_vec().len(), received.len());
                received.bytes().lines().for_each(|line| {
                    std::hint::black_box(line);
                });
                if random.one_in(2) {
                    let _ = received.release();
                }
            }
        }
        8 => drop(link.receiver().drain(3, |_, bytes| drop(std::hint::black_box(bytes.to_vec())))),
        9 => {
            if let Ok(mut batch) = link.sender().batch() {
                (0..5).for_each(|_| drop(batch.try_push(&[1; 100])));
                if random.one_in(2) {
                    let _ = batch.publish();
                }
            }
        }
        10 => {
            if let Ok(id) = link.submit(&[1; 8])
                && random.one_in(2)
            {
                link.abandon(id);
            }
        }
        _ => {
            if let Ok(mut room) = link.sender().try_reserve(random.size(20_000)) {
                let len = room.len();
                room.fill(3);
                room.truncate(len / 2);
                if random.one_in(2) {
                    let _ = room.publish();
                }
            }
        }
    }
}

/// Links to peers that lie at random, none of which disturbs another, and no operation of which
/// hangs.
fn meet_liars(random: &mut Random) {
    let spins =
        [Spin::Never, Spin::For(Duration::ZERO), Spin::Adaptive { max: Duration::from_micros(20) }];
    let options = Options::new()
        .spin(random.of(&spins))
        .ring_capacity(4096)
        .backlog_limit(5000)
        .send_timeout(Duration::from_millis(3));
    let mut stage = Stage::new(options);
    let (fd, _memory) = segment(SEGMENT_LEN);
    for _ in 0..30 {
        let hello = Hello {
            ring_capacity: page(),
            loan_slots: 1 + random.below(3) as u32,
            flags: random.below(2) as u32,
            ..Hello::honest()
        };
        let (mut link, mut peer) = stage.link_with(hello);
        for _ in 0..60 {
            lie(random, &mut peer, &fd);
            let start = Instant::now();
            act(random, &mut link);
            assert!(start.elapsed() < LATE, "some milliseconds became {:?}", start.elapsed());
        }
    }
    stage.is_undisturbed();
}

#[test]
fn a_peer_that_writes_at_random_disturbs_nobody() {
    with_seeds(24, meet_liars);
}
