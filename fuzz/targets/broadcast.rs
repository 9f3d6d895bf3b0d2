//! A publisher whose subscribers lie in all that they write: positions, holds, states, and the end of the link.
//!
//! The input is two bytes that say which policies the two liars have, then a list of steps: which liar, what it is, modulo
//! 12, and the bytes that the step takes, as `step` reads them. The publisher is a real one, joined over a socket; the
//! liars are the peers of the hostile tests. An honest subscriber beside them gets every message, and when the liars are
//! gone, nothing is kept for them.
#![no_main]

#[path = "../../tests/support/raw.rs"]
#[allow(dead_code)]
mod raw;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use raw::{Hello, RawPeer};
use slipring::broadcast::{PublishOptions, Publisher, SubscribeOptions, Subscriber};
use slipring::error::{TryRecvError, TrySendError};
use slipring::options::Spin;
use slipring::{Context, ErrorKind, Options};

/// How long anything may take.
const HANG: Duration = Duration::from_secs(5);

const SLOTS: u64 = 16;
const HOLDS: u32 = 3;
/// Words that a link has, and one that it has not.
const WORDS: [usize; 9] = [
    raw::POSITION,
    raw::POSITION,
    raw::RECEIVER_STATE,
    raw::SENDER_STATE,
    raw::ROOM_BELL,
    raw::DATA_BELL,
    0x0c0,
    0x0c8,
    0x100,
];

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

    /// A number: one of a message near the newest one, small, near a power of two, or any.
    fn word(&mut self, newest: u64) -> u64 {
        match self.byte() {
            255 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            byte @ 192.. => {
                (1u64 << (byte - 192)).wrapping_add(u64::from(self.byte()) % 16).wrapping_sub(8)
            }
            byte @ 128.. => u64::from(byte - 128),
            byte => newest.wrapping_add(u64::from(byte)).wrapping_sub(64),
        }
    }
}

struct Stage {
    publisher: Publisher,
    honest: Subscriber,
    name: String,
    /// What the honest subscriber has yet to get.
    due: Vec<Vec<u8>>,
    /// What the publisher keeps for the honest subscriber alone.
    alone: u64,
}

/// One publisher for all inputs: an input that spoils it is found by the next.
static STAGE: Mutex<Option<Stage>> = Mutex::new(None);

fn stage() -> Stage {
    let options = Options::new().pool_quota(32 << 20).spin(Spin::Never);
    let name = format!("slipring-fuzz-broadcast-{}", std::process::id());
    let publish = PublishOptions::new()
        .slots(SLOTS as u32)
        .newest_limit(8)
        .hold_limit(HOLDS)
        .history(2)
        // The publisher evicts each subscriber that it would have to wait for.
        .stall_after(Duration::ZERO);
    let publisher = Context::with_options(options).unwrap().publish(&name, publish).unwrap();
    let every = SubscribeOptions::every().reconnect(false);
    let honest = Context::new().unwrap().subscribe(&name, every).unwrap();
    let mut stage = Stage { publisher, honest, name, due: Vec::new(), alone: 0 };
    stage.alone = stage.keeps();
    stage
}

/// Those that may miss messages may keep and hold all of the pool.
fn full(error: slipring::Error) -> TrySendError {
    match error.kind() {
        ErrorKind::PoolExhausted { .. } => TrySendError::Full { free: 0, needed: 0 },
        _ => TrySendError::Failed(error),
    }
}

impl Stage {
    /// The honest subscriber takes all that it is due, so that nobody waits for it.
    fn read(&mut self) {
        for message in self.due.drain(..) {
            let sample = self.honest.try_recv().unwrap().unwrap();
            assert!(sample.to_vec().unwrap() == message && sample.missed() == 0);
        }
        assert!(matches!(self.honest.try_recv(), Err(TryRecvError::Empty)));
    }

    /// Returns how much the publisher keeps when messages of one length are all that may be asked for.
    fn keeps(&mut self) -> u64 {
        for number in 0..4 {
            let message = vec![number; 300];
            self.publisher.send(&message).unwrap();
            self.due.push(message);
            self.read();
        }
        self.publisher.reclaim();
        self.publisher.kept_bytes()
    }

    fn has_sent(&mut self, sent: Result<(), TrySendError>, message: Vec<u8>) {
        match sent {
            Ok(()) => self.due.push(message),
            Err(TrySendError::Full { .. }) => {}
            Err(TrySendError::Failed(error)) => panic!("{error}"),
        }
        if self.due.len() as u64 > SLOTS / 2 {
            self.read();
        }
    }

    fn step(&mut self, script: &mut Script, liars: &mut [RawPeer]) {
        let newest = self.publisher.sent();
        let liar = script.below(liars.len());
        match script.byte() % 12 {
            0 | 1 => {
                let word = WORDS[script.below(WORDS.len())];
                liars[liar].own.store(word, script.word(newest));
            }
            2 | 3 => {
                let hold = script.below(HOLDS as usize + 1);
                liars[liar].own.store(raw::RETURNS + 8 * hold, script.word(newest));
            }
            4 => {
                let state = u64::from(script.byte()) << 3 | u64::from(script.byte() & 7);
                liars[liar].own.store(raw::RECEIVER_STATE, state);
            }
            5 => {
                let message = vec![script.byte(); script.below(200)];
                let sent = self.publisher.try_send(&message);
                self.has_sent(sent, message);
            }
            6 => {
                let message = vec![script.byte(); 300 + 256 * script.below(256)];
                let sent = self.publisher.try_send(&message);
                self.has_sent(sent, message);
            }
            7 => {
                // The publisher does not wait: it evicts each subscriber that has not read.
                self.read();
                let message = vec![script.byte(); 4096 * script.below(64)];
                let sent = self.publisher.send(&message);
                self.has_sent(sent.map_err(full), message);
            }
            8 => {
                self.read();
                let (byte, len) = (script.byte(), script.below(255) * 8);
                let sent = self.publisher.reserve(len).and_then(|mut room| {
                    room.fill(byte);
                    if script.byte() & 1 == 0 { room.publish().map(|()| true) } else { Ok(false) }
                });
                match sent.map_err(full) {
                    Ok(false) => {}
                    sent => self.has_sent(sent.map(drop), vec![byte; len]),
                }
            }
            9 => {
                let infos = self.publisher.subscribers();
                let info = infos.get(script.below(liars.len() + 1));
                assert!(info.is_none_or(|info| info.held() <= HOLDS as usize));
                assert!(infos.iter().all(|info| info.lag() <= newest));
                if let Some(info) = info.filter(|info| info.policy() != self.honest.policy()) {
                    // It may be gone by now.
                    self.publisher.evict(info.id());
                }
            }
            10 => drop(rustix::net::shutdown(&liars[liar].socket, rustix::net::Shutdown::Both)),
            _ => self.read(),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut stage_of_all = STAGE.lock().unwrap();
    let stage = stage_of_all.get_or_insert_with(stage);
    let mut script = Script(bytes);
    let mut liars: Vec<RawPeer> = (0..2)
        .map(|_| {
            let (policy, depth) = [(1, 0), (2, 8), (3, 0), (2, 1)][script.below(4)];
            let mut peer = RawPeer::greet(raw::dial(&stage.name), Hello::subscriber(policy, depth));
            peer.meet();
            // The topic, behind the segments of kept messages.
            while raw::receive(&peer.socket).unwrap().0[8] == raw::SEGMENT as u8 {}
            peer
        })
        .collect();
    while !script.0.is_empty() {
        stage.step(&mut script, &mut liars);
    }
    drop(liars);
    stage.read();
    let start = Instant::now();
    while stage.publisher.subscribers().len() > 1 {
        assert!(start.elapsed() < HANG, "a liar stays");
        std::thread::yield_now();
    }
    let kept = stage.keeps();
    assert_eq!(kept, stage.alone, "nothing is kept for those that are gone");
    stage.publisher.take_events();
});
