//! A publisher that lies in all that it writes: the topic packet, the slots and their headers, pool segments, its words, the
//! packets behind the join, and the end of the link.
//!
//! The input is a byte for the subscriber's policy, one that says whether the topic packet is right and what it limits, and
//! the number of the newest message, then a list of steps: a byte, modulo 16, and the bytes that the step takes, as `step`
//! reads them. The subscriber is a real one, joined over a socket; the publisher is the one of the hostile tests. Whatever is
//! said, every call returns in time, numbers of messages rise, positions never go back, what is held keeps its bytes as long as the
//! publisher leaves its pool alone, and in the end nothing is held.
#![no_main]

#[path = "../../tests/support/raw.rs"]
#[allow(dead_code)]
mod raw;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use raw::{Hello, Lent, MESSAGE, META, MORE, Memory, POOLED, RawPeer, header};
use slipring::broadcast::{OwnedSample, SubscribeOptions, Subscriber};
use slipring::options::Spin;
use slipring::{Context, Options};

/// How long anything may take.
const HANG: Duration = Duration::from_secs(5);

const PAGE: u64 = 4096;
const SLOTS: u64 = 8;
const SLOT: u64 = 256;
const ROOM: u64 = SLOT - 16;
const SPILLED: u64 = 1 << 12;
const TENSORS: u64 = 7 | 1 << 16 | 1 << 24;
const NEWEST: usize = 0x040;
/// Words of the topic's head, and one that is none.
const HEAD: [usize; 3] = [NEWEST, 0x080, 0x200];
/// Words of the publisher's segment: states, bells, *revoked*, *evicted*, and words that mean nothing here.
const CONTROL: [usize; 9] = [
    raw::RECEIVER_STATE,
    raw::SENDER_STATE,
    raw::ROOM_BELL,
    raw::DATA_BELL,
    raw::POSITION,
    0x0c0,
    0x0c8,
    0x0d0,
    0x100,
];
/// Pool segments that the publisher announces.
const SEGMENTS: usize = 4;

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// A number: near `around`, small, near a power of two, or any.
    fn word(&mut self, around: u64) -> u64 {
        match self.byte() {
            255 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            byte @ 192.. => {
                (1u64 << (byte - 192)).wrapping_add(u64::from(self.byte()) % 16).wrapping_sub(8)
            }
            byte @ 128.. => u64::from(byte - 128),
            byte => around.wrapping_add(u64::from(byte)).wrapping_sub(64),
        }
    }
}

/// A publisher made by hand, and its subscriber.
struct Stage {
    memory: Memory,
    peer: RawPeer,
    subscriber: Subscriber,
    /// What the subscriber holds, each with the bytes that it read first.
    held: Vec<(OwnedSample, Option<Vec<u8>>)>,
    /// The publisher has written into its pool, which it may.
    is_changed: bool,
    hold_limit: u32,
    /// The message that is published next.
    next: u64,
    /// The number of the last one that was received, and the position that was told last.
    last: u64,
    position: u64,
}

/// One context for all inputs: an input that spoils it is found by the next.
static CONTEXT: Mutex<Option<Context>> = Mutex::new(None);

fn context() -> Context {
    let options =
        Options::new().peer_pool_limit(64 * PAGE).handshake_timeout(HANG).spin(Spin::Never);
    Context::with_options(options).unwrap()
}

/// Joins a publisher that says what the input says. `None`: the subscriber refuses it.
fn join(context: &Context, script: &mut Script) -> Option<Stage> {
    let options = [
        SubscribeOptions::every(),
        SubscribeOptions::newest(1),
        SubscribeOptions::newest(5),
        SubscribeOptions::latest(),
    ];
    let options = options[script.below(4)].clone().reconnect(false);
    let how = script.byte();
    let (hold_limit, history) = (u32::from(how & 3) + 1, u32::from(how >> 2 & 3));
    let newest = script.word(64);
    let (fd, memory) = raw::segment(PAGE + SLOTS * SLOT);
    memory.store(NEWEST, newest);
    let name = format!("slipring-fuzz-topic-{}", std::process::id());
    let listener = raw::listen(&name);
    let context = context.clone();
    let joining = std::thread::spawn(move || context.subscribe(&name, options));
    let socket = raw::accept(&listener);
    let (packet, fds) = raw::receive(&socket).expect("a Hello");
    let mut peer = RawPeer::greet(socket, Hello::publisher());
    peer.heard(&packet, &fds);
    let mut topic = raw::topic_packet(SLOTS as u32, SLOT as u32, hold_limit, history);
    if how & 0x20 != 0 {
        topic[40..48].copy_from_slice(&script.word(newest).to_le_bytes());
    }
    if how & 0xC0 == 0xC0 {
        let at = 8 + script.below(40);
        topic[at] = script.byte();
        // The end tells a subscriber that waits for another packet.
        raw::send(&peer.socket, &topic, &[fd.as_fd()]).unwrap();
        let _ = rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Write);
    } else {
        raw::send(&peer.socket, &topic, &[fd.as_fd()]).unwrap();
    }
    let subscriber = joining.join().unwrap().ok()?;
    let next = newest.wrapping_add(1);
    let position = peer.theirs().load(raw::POSITION);
    let (held, is_changed, last) = (Vec::new(), false, 0);
    Some(Stage { memory, peer, subscriber, held, is_changed, hold_limit, next, last, position })
}

/// A header, which may be right.
fn header_of(script: &mut Script, len: u64) -> u64 {
    match script.byte() % 8 {
        0 => script.word(len),
        1 => header(MESSAGE | META, len),
        2 => header(MESSAGE | MORE, len),
        3 => header(TENSORS, len),
        4 => header(TENSORS | META | SPILLED, len),
        5 => header(MESSAGE | POOLED, len),
        6 => header(MESSAGE | SPILLED, len),
        _ => header(MESSAGE, len),
    }
}

/// A descriptor of memory that may be there.
fn descriptor(script: &mut Script) -> Vec<u8> {
    let segment = script.below(SEGMENTS + 1) as u32;
    let slot = if script.byte() & 7 == 7 { u32::MAX } else { 0 };
    let lent =
        Lent { segment, slot, offset: script.word(64), len: script.word(300), generation: 0 };
    lent.encode().to_vec()
}

impl Stage {
    fn slot(&self, message: u64) -> usize {
        (PAGE + message % SLOTS * SLOT) as usize
    }

    fn publish(&mut self, word: u64, payload: &[u8]) {
        let slot = self.slot(self.next);
        let payload = &payload[..payload.len().min(ROOM as usize)];
        self.memory.store(slot + 8, word);
        self.memory.write(slot + 16, payload);
        self.memory.store(slot, self.next << 1);
        self.memory.store(NEWEST, self.next);
        self.next = self.next.wrapping_add(1);
    }

    fn packet(&mut self, script: &mut Script) {
        let number = script.below(SEGMENTS);
        let (packet, fd): (Vec<u8>, Option<OwnedFd>) = match script.byte() % 6 {
            0 | 1 => {
                return self.peer.send_segment(number as u32, PAGE * (1 + script.below(4) as u64));
            }
            2 => (raw::retire_packet(number as u32), None),
            3 => (raw::wake_packet(script.byte().into()), None),
            4 => {
                let (fd, _memory) = raw::segment(PAGE);
                (raw::segment_packet(number as u32, script.word(PAGE)), Some(fd))
            }
            _ => {
                let mut packet = raw::segment_packet(number as u32, PAGE);
                let at = script.below(packet.len());
                packet[at] = script.byte();
                (packet, None)
            }
        };
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        let _ = raw::send(&self.peer.socket, &packet, &fds);
    }

    /// The subscriber receives, and holds some of it.
    fn receive(&mut self, script: &mut Script) {
        let received = match script.byte() & 1 {
            0 => self.subscriber.try_recv().ok().flatten(),
            _ => self.subscriber.recv_deadline(Instant::now()).ok().flatten(),
        };
        if let Some(sample) = received {
            assert!(sample.sequence() > self.last, "numbers rise");
            self.last = sample.sequence();
            assert!(sample.len() <= 64 * PAGE as usize);
            if let Ok(sample) = sample.into_owned() {
                let bytes = sample.to_vec().ok();
                self.held.push((sample, bytes));
            }
        }
        assert!(self.subscriber.held() <= self.hold_limit as usize);
        let position = self.peer.theirs().load(raw::POSITION);
        assert!(position >= self.position, "a position goes back");
        self.position = position;
    }

    fn step(&mut self, script: &mut Script) {
        let around = self.next;
        match script.byte() % 16 {
            0 => {
                let word = HEAD[script.below(HEAD.len())];
                self.memory.store(word, script.word(around));
            }
            1 => {
                let slot = self.slot(script.word(around));
                let state = script.word(around) << 1 | u64::from(script.byte() & 1);
                self.memory.store(slot, state);
            }
            2 => {
                let at = script.below((SLOTS * SLOT / 8) as usize) * 8;
                self.memory.store(PAGE as usize + at, script.word(around));
            }
            3 | 4 => {
                let payload = vec![script.byte(); script.below(ROOM as usize + 1)];
                self.publish(header(MESSAGE, payload.len() as u64), &payload);
            }
            5 => {
                let count = script.below(64);
                let payload = script.bytes(count);
                let len = script.word(count as u64);
                let word = header_of(script, len);
                self.publish(word, &payload);
            }
            6 => {
                let payload = descriptor(script);
                let len = if script.byte() & 1 == 0 { 32 } else { script.word(300) };
                let word = header_of(script, len);
                self.publish(word, &payload);
            }
            7 => {
                let mut payload = descriptor(script);
                let count = script.below(128);
                payload.extend(script.bytes(count));
                self.publish(header(TENSORS, payload.len() as u64), &payload);
            }
            8 | 9 => self.packet(script),
            10 => {
                let word = CONTROL[script.below(CONTROL.len())];
                self.peer.own.store(word, script.word(around));
            }
            11 => {
                let (which, at, count) =
                    (script.below(SEGMENTS), script.word(64), script.below(64));
                let bytes = script.bytes(count);
                if let Some((_, memory)) = self.peer.pool.get(which)
                    && at.is_multiple_of(8)
                    && at < PAGE - 64
                {
                    memory.write(at as usize, &bytes);
                    self.is_changed = true;
                }
            }
            12 => {
                if let Some((sample, before)) = self.held.get(script.below(8)) {
                    if let (Ok(bytes), Some(before), false) =
                        (sample.to_vec(), before, self.is_changed)
                    {
                        assert_eq!(&bytes, before, "what is held changes");
                    }
                    for (_, tensor) in sample.tensors() {
                        let _ = tensor.to_vec::<u8>();
                    }
                }
            }
            13 => {
                let at = script.below(8);
                if at < self.held.len() {
                    self.held.swap_remove(at);
                }
            }
            14 => match script.byte() % 8 {
                0 => drop(rustix::net::shutdown(&self.peer.socket, rustix::net::Shutdown::Both)),
                1 => drop(self.subscriber.descriptor()),
                _ => self.receive(script),
            },
            _ => self.receive(script),
        }
    }
}

/// LeakSanitizer does not see what a thread has that is about to start or to end. The library closes what it refuses by the exits of
/// threads.
#[unsafe(no_mangle)]
extern "C" fn __lsan_default_suppressions() -> *const std::ffi::c_char {
    c"leak:slipring::handshake::exits\nleak:__cxa_thread_atexit_impl\n".as_ptr()
}

fuzz_target!(|bytes: &[u8]| {
    let mut context_of_all = CONTEXT.lock().unwrap();
    let context = context_of_all.get_or_insert_with(context);
    let mut script = Script(bytes);
    let Some(mut stage) = join(context, &mut script) else { return };
    while !script.0.is_empty() {
        let start = Instant::now();
        stage.step(&mut script);
        assert!(start.elapsed() < HANG, "a call takes long");
    }
    stage.held.clear();
    assert_eq!(stage.subscriber.held(), 0);
    for hold in 0..stage.hold_limit as usize {
        assert_eq!(stage.peer.theirs().load(raw::RETURNS + 8 * hold), 0, "it is held");
    }
});
