//! Messages of committed buffers, made byte by byte as `docs/wire.md` says. [`Hostile`] is a client that sends any message
//! over an honest link, [`Raw`] one that does without the library, and [`Watch`] an honest client that checks the server
//! meanwhile.

#![cfg(feature = "commit")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Instant;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use slipring::Connection;
use slipring::commit::{Buffer, Client, Model, ServerOptions, Session};

use super::census::Census;
use super::raw::{self, Hello, RawPeer};
use super::service::Stage;
use super::{soon, wait_until};

pub const LOAD: u16 = 1;
pub const LOAD_DESCRIPTOR: u16 = 2;
pub const COMMIT: u16 = 3;
pub const UPDATE: u16 = 4;
pub const EXECUTE: u16 = 5;
pub const RELEASE: u16 = 6;
pub const UNLOAD: u16 = 7;
pub const DISCARD: u16 = 8;
pub const LOADED: u16 = 65;
pub const COMMITTED: u16 = 66;
pub const EXECUTED: u16 = 67;
pub const DONE: u16 = 68;
pub const FAILED: u16 = 69;

/// A message under construction.
#[derive(Debug, Clone)]
pub struct Bytes(pub Vec<u8>);

pub fn head(act: u16, count: u32, ticket: u64) -> Bytes {
    let mut bytes = act.to_le_bytes().to_vec();
    bytes.extend([0, 0]);
    Bytes(bytes).u32(count).u64(ticket)
}

impl Bytes {
    pub fn u32(mut self, word: u32) -> Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    pub fn u64(mut self, word: u64) -> Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    pub fn text(self, text: &str) -> Self {
        let mut bytes = self.u32(text.len() as u32);
        bytes.0.extend(text.as_bytes());
        bytes
    }

    /// Appends the descriptors that the message names.
    pub fn passed(self, first: u64, count: u32) -> Self {
        self.u64(first).u32(count).u32(0)
    }

    /// Appends a region in a memfd.
    pub fn memory(self, region: u32, descriptor: u32, offset: u64, len: u64) -> Self {
        self.u32(region).u32(descriptor).u32(1).u32(0).u64(offset).u64(len)
    }

    pub fn with(mut self, at: usize, word: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&word.to_le_bytes());
        self
    }
}

/// An answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Loaded(u64),
    Committed(u64),
    /// The number of executions that failed.
    Executed(u32),
    Done,
    /// The code of the fault.
    Failed(u32),
}

pub fn decode(bytes: &[u8]) -> (u64, Said) {
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let said = match half(0) as u16 {
        LOADED => Said::Loaded(word(16)),
        COMMITTED => Said::Committed(word(16)),
        EXECUTED => Said::Executed(half(4)),
        DONE => Said::Done,
        FAILED => Said::Failed(half(16)),
        act => panic!("act {act}"),
    };
    (word(8), said)
}

/// An honest client that executes beside others, and what the server held before them.
pub struct Watch {
    pub stage: Stage,
    pub client: Client,
    pub _model: Model,
    pub session: Session,
    pub buffers: Vec<Buffer>,
    pub census: Census,
}

impl Watch {
    pub fn new(options: ServerOptions) -> Self {
        let stage = Stage::with(options);
        let client = stage.client();
        let model = client.load(b"echo").unwrap();
        let session = model.session(0).unwrap();
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        // The first client makes what the process keeps.
        let mut other = Hostile::connect(&stage);
        other.load("echo");
        drop(other);
        wait_until("an end", || stage.server.stats().clients == 1);
        let census = Census::take();
        Self { stage, client, _model: model, session, buffers, census }
    }

    pub fn executes(&self, seed: u8) {
        self.buffers[0].write_at(0, &[seed; 8]).unwrap();
        self.session.execute().unwrap();
        assert_eq!(self.buffers[1].to_vec().unwrap(), [seed.wrapping_add(1); 8]);
    }

    /// Checks that no other client is left, and that the honest client can do everything.
    pub fn is_undisturbed(&self) {
        self.executes(7);
        let model = self.client.load(b"echo").unwrap();
        let session = model.session(0).unwrap();
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        session.execute().unwrap();
        assert_eq!(buffers[1].to_vec().unwrap(), [1; 8]);
        model.close().unwrap();
        drop((session, model, buffers));
        wait_until("the end of others", || {
            let stats = self.stage.server.stats();
            let now = (stats.clients, stats.models, stats.commits, stats.mappings);
            now == (1, 1, 1, 2) && stats.descriptors == 0
        });
        // The pool keeps a segment for the next message that is long enough.
        self.stage.context.trim();
        self.census.comes_back_but_for_a_spare();
    }

    /// Checks that a first message ends its link.
    pub fn ends(&self, why: &str, bytes: &[u8]) {
        let mut hostile = Hostile::connect(&self.stage);
        assert_eq!(hostile.ask(bytes), None, "{why}");
        self.executes(1);
    }
}

/// A client that sends any message over an honest connection.
pub struct Hostile {
    pub link: Connection,
}

impl Hostile {
    pub fn connect(stage: &Stage) -> Self {
        Self { link: stage.context.connect(&stage.name).unwrap() }
    }

    /// Sends a message, and returns the answer. `None`: the link ends.
    pub fn ask(&mut self, bytes: &[u8]) -> Option<(u64, Said)> {
        self.link.send(bytes).ok()?;
        self.hear()
    }

    pub fn hear(&mut self) -> Option<(u64, Said)> {
        match self.link.receiver().recv_deadline(soon()) {
            Ok(answer) => Some(decode(&answer?)),
            Err(error) => {
                assert!(error.is_disconnected(), "{error}");
                None
            }
        }
    }

    pub fn load(&mut self, model: &str) -> u64 {
        let mut bytes = head(LOAD, 0, 1).0;
        bytes.extend(model.as_bytes());
        match self.ask(&bytes) {
            Some((1, Said::Loaded(model))) => model,
            other => panic!("{other:?}"),
        }
    }
}

/// A client without the library.
pub struct Raw {
    pub peer: RawPeer,
    /// The control section's length, the ring's capacity, and the read position in the server's segment.
    pub control: usize,
    pub capacity: usize,
    pub read: usize,
    /// The number of descriptors sent.
    pub passed: u64,
}

impl Raw {
    pub fn connect(stage: &Stage) -> Self {
        let mut peer = RawPeer::greet(raw::dial(&stage.name), Hello::honest());
        let (packet, fds) = raw::receive(&peer.socket).unwrap();
        peer.heard(&packet, &fds);
        let word = |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().unwrap()) as usize;
        Self { peer, control: word(32), capacity: word(40), read: 0, passed: 0 }
    }

    /// Sends a Descriptors packet with any fields.
    pub fn packet(&self, first: u64, count: u32, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let mut bytes = b"slipring".to_vec();
        bytes.extend([6, 0, 0, 0]);
        bytes.extend(count.to_le_bytes());
        bytes.extend(first.to_le_bytes());
        bytes.resize(128, 0);
        raw::send(&self.peer.socket, &bytes, fds)
    }

    /// Sends descriptors, and has the server read them. Returns the number of the first.
    pub fn pass(&mut self, fds: &[BorrowedFd<'_>]) -> u64 {
        let first = self.passed;
        self.packet(first, fds.len() as u32, fds).unwrap();
        self.passed += fds.len() as u64;
        self.peer.announce();
        first
    }

    /// Sends a message, and returns the answer. `None`: the link ends.
    pub fn ask(&mut self, bytes: &[u8]) -> Option<(u64, Said)> {
        self.peer.say(bytes);
        self.hear()
    }

    pub fn hear(&mut self) -> Option<(u64, Said)> {
        let deadline = soon();
        let at = self.control + self.read % self.capacity;
        loop {
            self.peer.wake_loop();
            fence(Ordering::SeqCst);
            let word = self.peer.theirs().load(at);
            let (kind, len) = (word & 0xff, (word >> 32) as usize);
            if kind == raw::CLOSE || self.is_over() {
                return None;
            }
            if kind == raw::MESSAGE {
                assert_eq!(word & (raw::MORE | raw::POOLED), 0, "too long for this reader");
                let tight = word & raw::TIGHT != 0;
                let lead = if len <= 56 || tight { 8 } else { 64 };
                let unit = if tight { 8 } else { 64 };
                let place = |byte: usize| self.control + (self.read + lead + byte) % self.capacity;
                let words = (0..len).step_by(8).map(|byte| self.peer.theirs().load(place(byte)));
                let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
                self.read = (self.read + lead + len).next_multiple_of(unit);
                self.peer.position(self.read as u64);
                return Some(decode(&bytes[..len]));
            }
            assert!(Instant::now() < deadline, "no answer");
            thread::yield_now();
        }
    }

    /// Returns whether the server has closed its socket.
    pub fn is_over(&self) -> bool {
        use rustix::event::{PollFd, PollFlags};
        let fds = &mut [PollFd::new(&self.peer.socket, PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(fds, Some(&none)).unwrap();
        fds[0].revents().contains(PollFlags::HUP)
    }

    pub fn load(&mut self) -> u64 {
        match self.ask(&[&head(LOAD, 0, 1).0[..], b"echo"].concat()) {
            Some((1, Said::Loaded(model))) => model,
            other => panic!("{other:?}"),
        }
    }

    /// Commits the two regions of `echo`: each a descriptor, an offset and a length.
    pub fn commit(
        &mut self,
        model: u64,
        regions: [(&dyn AsFd, u64, u64); 2],
    ) -> Option<(u64, Said)> {
        let first = self.pass(&[regions[0].0.as_fd(), regions[1].0.as_fd()]);
        let message = head(COMMIT, 2, 3).u64(model).passed(first, 2);
        let message = message.memory(0, 0, regions[0].1, regions[0].2);
        self.ask(&message.memory(1, 1, regions[1].1, regions[1].2).0)
    }

    /// Checks that the server still serves this client as any other.
    pub fn works(&mut self, model: u64) {
        let (x, y) = (memfd(8, SealFlags::SHRINK), memfd(8, SealFlags::SHRINK));
        let Some((3, Said::Committed(id))) = self.commit(model, [(&x, 0, 8), (&y, 0, 8)]) else {
            panic!("no commit")
        };
        assert_eq!(self.ask(&head(EXECUTE, 1, 4).u64(id).0), Some((4, Said::Executed(0))));
        let mut bytes = [0; 8];
        rustix::io::pread(&y, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [1; 8]);
        // One unknown id stops the whole request before any execution.
        rustix::io::pwrite(&y, &[0; 8], 0).unwrap();
        for nobody in [0, id + (1 << 40), u64::MAX] {
            let one_of_two = head(EXECUTE, 2, 5).u64(id).u64(nobody).0;
            assert_eq!(self.ask(&one_of_two), Some((5, Said::Failed(4))));
        }
        rustix::io::pread(&y, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [0; 8]);
        let twice = head(EXECUTE, 2, 5).u64(id).u64(id).0;
        assert_eq!(self.ask(&twice), Some((5, Said::Failed(5))));
        assert_eq!(self.ask(&head(EXECUTE, 1, 6).u64(id).0), Some((6, Said::Executed(0))));
        assert_eq!(self.ask(&head(RELEASE, 0, 7).u64(id).0), Some((7, Said::Done)));
        for act in [RELEASE, EXECUTE] {
            let stale = head(act, u32::from(act == EXECUTE), 8).u64(id).0;
            assert_eq!(self.ask(&stale), Some((8, Said::Failed(4))));
        }
    }
}

pub fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}
