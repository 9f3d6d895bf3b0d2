//! Clients and services of committed buffers that lie, with every byte made here, as `docs/wire.md` says.
//!
//! After each attack an honest client executes, and the server holds what it held before.

#![allow(unsafe_code)]

mod support;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Instant;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use slipring::commit::{Buffer, Client, Model, ServerOptions, Session};
use slipring::{CommitFault, Connection, Context, DType, Error, ErrorKind, Fault, Tensor};

use support::census::{Census, leave_descriptors};
use support::other::Other;
use support::raw::{self, Hello, RawPeer};
use support::service::Stage;
use support::{soon, unique_name, wait_until};

const LOAD: u16 = 1;
const LOAD_DESCRIPTOR: u16 = 2;
const COMMIT: u16 = 3;
const UPDATE: u16 = 4;
const EXECUTE: u16 = 5;
const RELEASE: u16 = 6;
const UNLOAD: u16 = 7;
const DISCARD: u16 = 8;
const LOADED: u16 = 65;
const COMMITTED: u16 = 66;
const EXECUTED: u16 = 67;
const DONE: u16 = 68;
const FAILED: u16 = 69;

/// A message as it is made.
#[derive(Debug, Clone)]
struct Bytes(Vec<u8>);

fn head(act: u16, count: u32, ticket: u64) -> Bytes {
    let mut bytes = act.to_le_bytes().to_vec();
    bytes.extend([0, 0]);
    Bytes(bytes).u32(count).u64(ticket)
}

impl Bytes {
    fn u32(mut self, word: u32) -> Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn u64(mut self, word: u64) -> Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn text(self, text: &str) -> Self {
        let mut bytes = self.u32(text.len() as u32);
        bytes.0.extend(text.as_bytes());
        bytes
    }

    /// Which descriptors came.
    fn passed(self, first: u64, count: u32) -> Self {
        self.u64(first).u32(count).u32(0)
    }

    /// Memory of a memfd.
    fn memory(self, region: u32, descriptor: u32, offset: u64, len: u64) -> Self {
        self.u32(region).u32(descriptor).u32(1).u32(0).u64(offset).u64(len)
    }

    fn with(mut self, at: usize, word: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&word.to_le_bytes());
        self
    }
}

/// What a service answered.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Loaded(u64),
    Committed(u64),
    /// How many failed.
    Executed(u32),
    Done,
    /// The code of the fault.
    Failed(u32),
}

fn decode(bytes: &[u8]) -> (u64, Said) {
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

/// A client that executes, whatever others do, and what the server held before them.
struct Watch {
    stage: Stage,
    client: Client,
    _model: Model,
    session: Session,
    buffers: Vec<Buffer>,
    census: Census,
}

impl Watch {
    fn new(options: ServerOptions) -> Self {
        let stage = Stage::with(options);
        let client = stage.client();
        let model = client.load(b"echo").unwrap();
        let session = model.session(0).unwrap();
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        // What is made once is made.
        let mut other = Hostile::connect(&stage);
        other.load("echo");
        drop(other);
        wait_until("an end", || stage.server.stats().clients == 1);
        let census = Census::take();
        Self { stage, client, _model: model, session, buffers, census }
    }

    fn executes(&self, seed: u8) {
        self.buffers[0].write_at(0, &[seed; 8]).unwrap();
        self.session.execute().unwrap();
        assert_eq!(self.buffers[1].to_vec().unwrap(), [seed.wrapping_add(1); 8]);
    }

    /// Nobody else is left, and the honest client can do everything.
    fn is_undisturbed(&self) {
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
        self.census.comes_back_but_for_a_spare();
    }

    /// That a message, after which nothing was said, ends the link.
    fn ends(&self, why: &str, bytes: &[u8]) {
        let mut hostile = Hostile::connect(&self.stage);
        assert_eq!(hostile.ask(bytes), None, "{why}");
        self.executes(1);
    }
}

/// Runs `body` in a process of its own, in which nothing else is counted.
fn alone(test: &str, body: impl FnOnce()) {
    // Its own deadlines come first, and say what they wait for.
    Other::start(test, "", |_| body()).succeeds();
}

/// A client that says anything, over an honest connection.
struct Hostile {
    link: Connection,
}

impl Hostile {
    fn connect(stage: &Stage) -> Self {
        Self { link: stage.context.connect(&stage.name).unwrap() }
    }

    /// What is answered. `None`: the link ends.
    fn ask(&mut self, bytes: &[u8]) -> Option<(u64, Said)> {
        self.link.send(bytes).ok()?;
        self.hear()
    }

    fn hear(&mut self) -> Option<(u64, Said)> {
        match self.link.recv_deadline(soon()) {
            Ok(answer) => Some(decode(&answer?)),
            Err(error) => {
                assert!(error.is_disconnected(), "{error}");
                None
            }
        }
    }

    fn load(&mut self, model: &str) -> u64 {
        let mut bytes = head(LOAD, 0, 1).0;
        bytes.extend(model.as_bytes());
        match self.ask(&bytes) {
            Some((1, Said::Loaded(model))) => model,
            other => panic!("{other:?}"),
        }
    }
}

/// One honest message of every act that has a body, of a client that has sent no descriptors.
fn acts() -> Vec<Bytes> {
    let pieces = |bytes: Bytes| bytes.u64(1).passed(0, 1).memory(0, 0, 0, 8).memory(1, 0, 0, 8);
    vec![
        head(LOAD_DESCRIPTOR, 0, 1).u64(0).u64(0).u64(4),
        pieces(head(COMMIT, 2, 1)),
        pieces(head(UPDATE, 2, 1)),
        head(EXECUTE, 1, 1).u64(9),
        head(EXECUTE, 3, 1).u64(9).u64(10).u64(11),
        head(RELEASE, 0, 1).u64(9),
        head(UNLOAD, 0, 1).u64(9),
        head(DISCARD, 0, 1).u64(0),
    ]
}

#[test]
fn a_message_that_is_cut_or_goes_on_ends_its_link_alone() {
    alone("a_message_that_is_cut_or_goes_on_ends_its_link_alone", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        for len in 0..16 {
            watch.ends("a cut head", &head(LOAD, 0, 1).0[..len]);
        }
        for Bytes(bytes) in acts() {
            for len in (0..bytes.len()).step_by(3).chain([bytes.len() - 1]) {
                watch.ends("cut", &bytes[..len]);
            }
            for more in [1, 8, 32, 5000] {
                watch.ends("longer", &[&bytes[..], &vec![0; more]].concat());
            }
        }
        watch.is_undisturbed();
    });
}

#[test]
fn acts_counts_and_fields_that_cannot_be_end_their_link_alone() {
    alone("acts_counts_and_fields_that_cannot_be_end_their_link_alone", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        for act in [0, 9, 64, 65, 66, 67, 68, 69, 70, 255, 256, 257, u16::MAX] {
            watch.ends("an act", &head(act, 0, 1).u64(0).0);
        }
        for Bytes(bytes) in acts() {
            let mut zero = bytes.clone();
            zero[2] = 1;
            watch.ends("a byte that is zero", &zero);
            let is = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
            for count in [0, 1, 2, 3, 1024, 1025, 4096, 4097, 1 << 27, 1 << 31, u32::MAX] {
                if count != is {
                    watch.ends("a count", &Bytes(bytes.clone()).with(4, count).0);
                }
            }
        }
        for Bytes(bytes) in &acts()[1..3] {
            let lie = |at, word| Bytes(bytes.clone()).with(at, word).0;
            // How many descriptors, and the zero behind; which, what object, and the zero behind.
            for (at, words) in [
                (32, &[0, 3, u32::MAX][..]),
                (36, &[1, u32::MAX]),
                (44, &[1, 2, u32::MAX]),
                (48, &[0, 3, u32::MAX]),
                (52, &[1]),
                (76, &[1]),
            ] {
                for word in words {
                    watch.ends(&format!("{word} at {at}"), &lie(at, *word));
                }
            }
        }
        watch.is_undisturbed();
    });
}

#[test]
fn descriptors_that_were_never_sent_end_their_link_alone() {
    alone("descriptors_that_were_never_sent_end_their_link_alone", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        for first in [0, 1, 1 << 40, u64::MAX] {
            watch.ends("load", &head(LOAD_DESCRIPTOR, 0, 1).u64(first).u64(0).u64(4).0);
            let commit = |act| head(act, 1, 1).u64(1).passed(first, 1).memory(0, 0, 0, 8).0;
            watch.ends("commit", &commit(COMMIT));
            watch.ends("update", &commit(UPDATE));
            if first > 0 {
                watch.ends("discard", &head(DISCARD, 0, 1).u64(first).0);
            }
        }
        watch.is_undisturbed();
    });
}

#[test]
fn what_is_no_message_ends_its_link_alone() {
    alone("what_is_no_message_ends_its_link_alone", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        let mut hostile = Hostile::connect(&watch.stage);
        let _ = hostile.link.call_deadline(&head(LOAD, 0, 1).0, soon()).unwrap_err();
        assert_eq!(hostile.hear(), None);
        let mut hostile = Hostile::connect(&watch.stage);
        let tensor = Tensor::from_slice([2], &[1u8, 2]).unwrap();
        let _ = hostile.link.send_tensor(&tensor);
        assert_eq!(hostile.hear(), None);
        assert_eq!(tensor.dtype(), DType::Uint8);
        drop((hostile, tensor));
        watch.executes(5);
        wait_until("the end of others", || watch.stage.server.stats().clients == 1);
    });
}

#[test]
fn ids_that_are_nobodys_or_somebody_elses_are_unknown() {
    alone("ids_that_are_nobodys_or_somebody_elses_are_unknown", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        let foreign = watch.session.id().unwrap();
        let mut hostile = Hostile::connect(&watch.stage);
        let unloaded = hostile.load("echo");
        let open = hostile.load("echo");
        assert_eq!(hostile.ask(&head(UNLOAD, 0, 2).u64(unloaded).0), Some((2, Said::Done)));
        let ids = [0, 1, foreign, foreign - 1, foreign ^ 1, unloaded, open, u64::MAX];
        let unknown = Some((u64::MAX, Said::Failed(4)));
        for id in ids {
            let one = |act, count| head(act, count, u64::MAX).u64(id).0;
            assert_eq!(hostile.ask(&one(EXECUTE, 1)), unknown);
            assert_eq!(hostile.ask(&one(RELEASE, 0)), unknown);
            let all = head(EXECUTE, 3, u64::MAX).u64(id).u64(id).u64(foreign).0;
            assert_eq!(hostile.ask(&all), unknown);
            let update = head(UPDATE, 0, u64::MAX).u64(id).passed(0, 0).0;
            assert_eq!(hostile.ask(&update), unknown);
            if id != open {
                assert_eq!(hostile.ask(&one(UNLOAD, 0)), unknown);
                let commit = head(COMMIT, 0, u64::MAX).u64(id).passed(0, 0).0;
                assert_eq!(hostile.ask(&commit), unknown);
            }
            watch.executes(2);
        }
        drop(hostile);
        watch.is_undisturbed();
    });
}

#[test]
fn more_requests_than_may_wait_are_refused_one_by_one() {
    alone("more_requests_than_may_wait_are_refused_one_by_one", || {
        let watch = Watch::new(ServerOptions::new().workers(1));
        let model = watch.stage.client().load(b"slow 300").unwrap();
        let session = model.session(0).unwrap();
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        let count = watch.stage.counts.of("execute");
        let execution = session.start().unwrap();
        wait_until("the execution", || watch.stage.counts.of("execute") > count);
        // The only worker is busy.
        let mut hostile = Hostile::connect(&watch.stage);
        for ticket in 0..20 {
            hostile.link.send(&[&head(LOAD, 0, ticket).0[..], b"echo"].concat()).unwrap();
        }
        let answers: Vec<_> = (0..20).map(|_| hostile.hear().unwrap()).collect();
        let refused = answers.iter().filter(|(_, said)| *said == Said::Failed(14)).count();
        let loaded = answers.iter().filter(|(_, said)| matches!(said, Said::Loaded(_))).count();
        assert_eq!((refused, loaded), (4, 16), "{answers:?}");
        execution.wait().unwrap();
        hostile.load("echo");
        drop((hostile, session, model, buffers));
        watch.is_undisturbed();
    });
}

/// A client without the library.
struct Raw {
    peer: RawPeer,
    /// The control section and the ring of the service's segment, and where we are in it.
    control: usize,
    capacity: usize,
    read: usize,
    /// Descriptors that were sent.
    passed: u64,
}

impl Raw {
    fn connect(stage: &Stage) -> Self {
        let mut peer = RawPeer::greet(raw::dial(&stage.name), Hello::honest());
        let (packet, fds) = raw::receive(&peer.socket).unwrap();
        peer.heard(&packet, &fds);
        let word = |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().unwrap()) as usize;
        Self { peer, control: word(32), capacity: word(40), read: 0, passed: 0 }
    }

    /// A Descriptors packet that says anything.
    fn packet(&self, first: u64, count: u32, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let mut bytes = b"slipring".to_vec();
        bytes.extend([6, 0, 0, 0]);
        bytes.extend(count.to_le_bytes());
        bytes.extend(first.to_le_bytes());
        bytes.resize(128, 0);
        raw::send(&self.peer.socket, &bytes, fds)
    }

    /// Sends descriptors: gives the number of the first.
    fn pass(&mut self, fds: &[BorrowedFd<'_>]) -> u64 {
        let first = self.passed;
        self.packet(first, fds.len() as u32, fds).unwrap();
        self.passed += fds.len() as u64;
        first
    }

    /// What is answered. `None`: the link ends.
    fn ask(&mut self, bytes: &[u8]) -> Option<(u64, Said)> {
        self.peer.say(bytes);
        self.hear()
    }

    fn hear(&mut self) -> Option<(u64, Said)> {
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

    /// Whether the service has closed its socket.
    fn is_over(&self) -> bool {
        use rustix::event::{PollFd, PollFlags};
        let fds = &mut [PollFd::new(&self.peer.socket, PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(fds, Some(&none)).unwrap();
        fds[0].revents().contains(PollFlags::HUP)
    }

    fn load(&mut self) -> u64 {
        match self.ask(&[&head(LOAD, 0, 1).0[..], b"echo"].concat()) {
            Some((1, Said::Loaded(model))) => model,
            other => panic!("{other:?}"),
        }
    }

    /// Commits the two regions of `echo`: each a descriptor, an offset and a length.
    fn commit(&mut self, model: u64, regions: [(&dyn AsFd, u64, u64); 2]) -> Option<(u64, Said)> {
        let first = self.pass(&[regions[0].0.as_fd(), regions[1].0.as_fd()]);
        let message = head(COMMIT, 2, 3).u64(model).passed(first, 2);
        let message = message.memory(0, 0, regions[0].1, regions[0].2);
        self.ask(&message.memory(1, 1, regions[1].1, regions[1].2).0)
    }

    /// That it still is a client like any other.
    fn works(&mut self, model: u64) {
        let (x, y) = (memfd(8, SealFlags::SHRINK), memfd(8, SealFlags::SHRINK));
        let Some((3, Said::Committed(id))) = self.commit(model, [(&x, 0, 8), (&y, 0, 8)]) else {
            panic!("no commit")
        };
        assert_eq!(self.ask(&head(EXECUTE, 1, 4).u64(id).0), Some((4, Said::Executed(0))));
        let mut bytes = [0; 8];
        rustix::io::pread(&y, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [1; 8]);
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

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// What it holds ends with it.
fn commits_what_cannot_be(watch: &Watch) {
    let mut raw = Raw::connect(&watch.stage);
    let model = raw.load();
    let good = memfd(16, SealFlags::SHRINK);
    let (reader, _writer) = std::io::pipe().unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let event = rustix::event::eventfd(8, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let path = rustix::fs::open("/dev/shm", OFlags::PATH, Mode::empty()).unwrap();
    let (socket, _peer) = raw::socketpair();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
    let epoll = epoll.unwrap();
    let loose = memfd(8, SealFlags::empty());
    let growing = memfd(8, SealFlags::GROW);
    let frozen = memfd(8, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&good));
    let readable = rustix::fs::open(again, OFlags::RDONLY, Mode::empty()).unwrap();
    type Region<'a> = (&'a dyn AsFd, u64, u64);
    let x: Region<'_> = (&good, 0, 8);
    let y: Region<'_> = (&good, 8, 8);
    let mut cases: Vec<(u32, [Region<'_>; 2])> = vec![
        (7, [(&good, 0, 7), y]),
        (7, [(&good, 0, 9), y]),
        (7, [x, (&good, 8, 0)]),
        (7, [x, (&good, 8, u64::MAX)]),
        (6, [x, (&good, 9, 8)]),
        (6, [x, (&good, 16, 8)]),
        (6, [x, (&good, 1 << 62, 8)]),
        (6, [(&good, u64::MAX, 8), y]),
        (6, [(&good, u64::MAX - 7, 8), y]),
        (6, [(&good, 1 << 63, 8), y]),
        (10, [x, (&good, 7, 8)]),
        (11, [(&loose, 0, 8), y]),
        (11, [x, (&growing, 0, 8)]),
        (12, [x, (&frozen, 0, 8)]),
        (12, [x, (&readable, 8, 8)]),
    ];
    let kinds: [&dyn AsFd; 8] = [&reader, &folder, &file, &null, &event, &path, &socket, &epoll];
    for kind in kinds {
        cases.push((13, [(kind, 0, 8), y]));
        cases.push((13, [x, (kind, 0, 8)]));
    }
    for (number, (code, regions)) in cases.into_iter().enumerate() {
        let answer = raw.commit(model, regions);
        assert_eq!(answer, Some((3, Said::Failed(code))), "case {number}");
        raw.works(model);
        watch.executes(3);
    }
    // Regions twice, too few, too many, and one that there is not.
    for (code, regions) in
        [(13, &[0, 0][..]), (8, &[0]), (8, &[]), (13, &[0, 1, 1]), (16, &[0, 7]), (8, &[0, 1, 2])]
    {
        let first = raw.pass(&[good.as_fd()]);
        let count = regions.len() as u32;
        let message = head(COMMIT, count, 3).u64(model).passed(first, count.min(1));
        let message = (0..)
            .zip(regions)
            .fold(message, |message, (at, region)| message.memory(*region, 0, at * 8 % 16, 8));
        assert_eq!(raw.ask(&message.0), Some((3, Said::Failed(code))), "{regions:?}");
        raw.works(model);
    }
    // A memfd that is said to be a dmabuf.
    let first = raw.pass(&[good.as_fd()]);
    let message = head(COMMIT, 2, 3).u64(model).passed(first, 1).memory(0, 0, 0, 8);
    let message = message.memory(1, 0, 8, 8).with(48, 2);
    assert_eq!(raw.ask(&message.0), Some((3, Said::Failed(13))));
    // Models from what is none.
    for kind in kinds {
        let first = raw.pass(&[kind.as_fd()]);
        let load = head(LOAD_DESCRIPTOR, 0, 9).u64(first).u64(0).u64(4).0;
        assert_eq!(raw.ask(&load), Some((9, Said::Failed(13))));
    }
    for (offset, len) in [(13, 4), (u64::MAX, 4), (0, u64::MAX), (0, 17)] {
        let first = raw.pass(&[good.as_fd()]);
        let load = head(LOAD_DESCRIPTOR, 0, 9).u64(first).u64(offset).u64(len).0;
        assert_eq!(raw.ask(&load), Some((9, Said::Failed(6))), "{len} at {offset}");
    }
    let first = raw.pass(&[good.as_fd()]);
    let empty = raw.ask(&head(LOAD_DESCRIPTOR, 0, 9).u64(first).u64(0).u64(0).0);
    assert!(matches!(empty, Some((9, Said::Loaded(_) | Said::Failed(_)))), "{empty:?}");
    raw.works(model);
}

#[test]
fn a_commit_of_what_cannot_be_committed_is_refused_and_the_next_one_works() {
    alone("a_commit_of_what_cannot_be_committed_is_refused_and_the_next_one_works", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        commits_what_cannot_be(&watch);
        watch.is_undisturbed();
    });
}

/// What it holds ends with it.
fn commits_holes(watch: &Watch) {
    let mut raw = Raw::connect(&watch.stage);
    let model = raw.load();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let sparse = rustix::fs::memfd_create("sparse", flags).unwrap();
    rustix::fs::ftruncate(&sparse, 1 << 46).unwrap();
    rustix::fs::fcntl_add_seals(&sparse, SealFlags::SHRINK).unwrap();
    let far = (1 << 46) - 8;
    let answer = raw.commit(model, [(&sparse, 0, 8), (&sparse, far, 8)]);
    match answer {
        Some((3, Said::Committed(id))) => {
            let done = raw.ask(&head(EXECUTE, 1, 4).u64(id).0);
            assert_eq!(done, Some((4, Said::Executed(0))));
        }
        other => assert_eq!(other, Some((3, Said::Failed(11)))),
    }
    raw.works(model);
}

#[test]
fn memory_with_holes_is_committed_or_refused_and_never_ends_the_service() {
    alone("memory_with_holes_is_committed_or_refused_and_never_ends_the_service", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        commits_holes(&watch);
        watch.is_undisturbed();
    });
}

/// What it holds ends with it.
fn sends_descriptors_that_lie(watch: &Watch) {
    let good = memfd(16, SealFlags::SHRINK);
    let fd = good.as_fd();
    // Taken twice, or dropped by a later one.
    for first in [0, 1] {
        let mut raw = Raw::connect(&watch.stage);
        let model = raw.load();
        raw.works(model);
        let message = head(COMMIT, 1, 3).u64(model).passed(first, 1).memory(0, 0, 0, 8);
        assert_eq!(raw.ask(&message.0), None);
    }
    let mut raw = Raw::connect(&watch.stage);
    let model = raw.load();
    raw.pass(&[fd; 5]);
    raw.works(model);
    raw.pass(&[fd; 5]);
    let before = raw.passed;
    raw.peer.say(&head(DISCARD, 0, 0).u64(before).0);
    raw.works(model);
    assert_eq!(raw.ask(&head(DISCARD, 0, 0).u64(before - 1).0), None);
    // Descriptors that go past those that were sent.
    let mut raw = Raw::connect(&watch.stage);
    let model = raw.load();
    raw.pass(&[fd]);
    let message = head(COMMIT, 2, 3).u64(model).passed(0, 2).memory(0, 0, 0, 8);
    assert_eq!(raw.ask(&message.memory(1, 1, 8, 8).0), None);
    // Packets.
    let many = vec![fd; 253];
    let packets: [(u64, u32, &[BorrowedFd<'_>]); 9] = [
        (1, 1, &[fd]),
        (u64::MAX, 1, &[fd]),
        (0, 0, &[]),
        (0, 0, &[fd]),
        (0, 1, &[]),
        (0, 1, &[fd, fd]),
        (0, 2, &[fd]),
        (0, 254, &many),
        (0, u32::MAX, &many),
    ];
    for (first, count, fds) in packets {
        let mut raw = Raw::connect(&watch.stage);
        let model = raw.load();
        let _ = raw.packet(first, count, fds);
        let message = head(COMMIT, 1, 3).u64(model).passed(0, 1).memory(0, 0, 0, 8);
        assert_eq!(raw.ask(&message.0), None, "{count} from {first}");
        watch.executes(9);
    }
    let mut raw = Raw::connect(&watch.stage);
    raw.load();
    let _ = raw.packet(0, 253, &many);
    drop(raw);
}

#[test]
fn descriptors_are_taken_once_and_packets_that_lie_end_their_link_alone() {
    alone("descriptors_are_taken_once_and_packets_that_lie_end_their_link_alone", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        sends_descriptors_that_lie(&watch);
        watch.is_undisturbed();
    });
}

/// What it holds ends with it.
fn sends_descriptors_without_end(watch: &Watch) {
    let good = memfd(16, SealFlags::SHRINK);
    let many = vec![good.as_fd(); 253];
    let mut raw = Raw::connect(&watch.stage);
    raw.load();
    // A service that sleeps leaves them on the socket; whoever names one has it take them.
    for sent in 0..40 {
        if raw.packet(253 * sent, 253, &many).is_err() {
            break;
        }
    }
    let message = head(COMMIT, 1, 3).u64(1).passed(253 * 40 - 1, 1).memory(0, 0, 0, 8);
    assert_eq!(raw.ask(&message.0), None);
}

#[test]
fn descriptors_without_end_end_their_link_alone() {
    alone("descriptors_without_end_end_their_link_alone", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        sends_descriptors_without_end(&watch);
        watch.is_undisturbed();
    });
}

/// What a client that calls `act` gets when the service, after so many honest answers, says `lie`.
fn lied_to<T: std::fmt::Debug>(
    honest: &[fn(u64) -> Bytes],
    lie: impl Fn(u64) -> Option<Bytes> + Sync,
    act: impl FnOnce(&Client) -> Result<T, Error>,
) -> ErrorKind {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut listener = context.listen(&name).unwrap();
    thread::scope(|scope| {
        let lie = &lie;
        scope.spawn(move || {
            let mut link = listener.accept_deadline(soon()).unwrap();
            let mut answers = honest.iter();
            while let Ok(Some(asked)) = link.recv_deadline(soon()) {
                let ticket = u64::from_le_bytes(asked[8..16].try_into().unwrap());
                let answer = match answers.next() {
                    Some(answer) => Some(answer(ticket)),
                    None => lie(ticket),
                };
                match answer {
                    Some(Bytes(bytes)) => {
                        let _ = link.send(&bytes);
                    }
                    None => return,
                }
            }
        });
        let client = Client::connect(&context, &name).unwrap();
        let kind = act(&client).unwrap_err().kind().clone();
        // The link is over, and says so.
        if matches!(kind, ErrorKind::Fault(_)) {
            let again = client.load(b"x").unwrap_err();
            assert_eq!(*again.kind(), kind);
        }
        kind
    })
}

/// The description of `echo`, of two buffers: each field can be another one.
fn description(ticket: u64) -> Bytes {
    let region = |bytes: Bytes| bytes.u64(8).u32(0).text("");
    let bytes = region(region(head(LOADED, 2, ticket).u64(5).u64(2)));
    (0..2).fold(bytes, |bytes, at| {
        let bytes = bytes.u32(at).u32(0).u32(at).u32(uint8() | 1 << 8).u64(0).u64(8).u32(0);
        bytes.u32(1).u32(1).u32(1).u32(8).u32(1).u64(8).text("")
    })
}

/// Where the first buffer starts in it.
const BUFFER: usize = 16 + 16 + 2 * 16;

fn uint8() -> u32 {
    u32::from(DType::Uint8.code())
}

fn field(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Fault(Fault::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_to_what_was_not_asked_end_the_clients_link() {
    let load = |client: &Client| client.load(b"echo");
    type Lie = fn(u64) -> Option<Bytes>;
    let lies: [(&str, Lie); 12] = [
        ("commit.ticket", |ticket| Some(description(ticket + 1))),
        ("commit.ticket", |_| Some(description(0))),
        ("commit.ticket", |_| Some(description(u64::MAX))),
        ("commit.ticket", |ticket| Some(head(DONE, 0, ticket))),
        ("commit.ticket", |ticket| Some(head(EXECUTED, 0, ticket))),
        ("commit.ticket", |ticket| Some(head(COMMITTED, 0, ticket).u64(1))),
        ("commit.act", |ticket| Some(head(LOAD, 0, ticket))),
        ("commit.act", |ticket| Some(head(0, 0, ticket))),
        ("commit.act", |ticket| Some(head(70, 0, ticket))),
        ("commit.count", |ticket| Some(head(DONE, 1, ticket))),
        ("commit.len", |_| Some(Bytes(vec![]))),
        ("commit.len", |ticket| {
            let mut bytes = description(ticket);
            bytes.0.push(0);
            Some(bytes)
        }),
    ];
    for (name, lie) in lies {
        assert_eq!(field(&lied_to(&[], lie, load)), name);
    }
    let gone = lied_to(&[], |_| None, load);
    assert!(matches!(gone, ErrorKind::PeerClosed | ErrorKind::PeerDied), "{gone:?}");
}

#[test]
fn descriptions_that_cannot_be_are_refused_by_the_client() {
    let load = |client: &Client| client.load(b"echo");
    // What cannot be read ends the link; what can, and makes no sense, fails the load alone.
    for (at, word, name) in [
        (BUFFER, 3, "commit.direction"),
        (BUFFER + 12, 0xff, "commit.dtype"),
        (BUFFER + 12, uint8() | 1 << 9, "commit.dtype"),
        (BUFFER + 52, 9, "commit.count"),
        (4, 4097, "commit.count"),
        (4, 3, "commit.len"),
        (24, 4097, "commit.regions"),
        (24, u32::MAX, "commit.regions"),
        (32 + 12, 256, "commit.text"),
        (32 + 12, u32::MAX, "commit.text"),
    ] {
        let lie = |ticket| Some(description(ticket).with(at, word));
        assert_eq!(field(&lied_to(&[], lie, load)), name, "{word} at {at}");
    }
    for (at, word) in [
        // Another region than there is; another index; offsets and sizes past the region.
        (BUFFER + 8, 2),
        (BUFFER + 8, u32::MAX),
        (BUFFER + 4, 1),
        (BUFFER + 16, 1),
        (BUFFER + 20, u32::MAX),
        (BUFFER + 24, 9),
        (BUFFER + 28, u32::MAX),
        (32, 0),
    ] {
        let lie = |ticket| Some(description(ticket).with(at, word));
        let kind = lied_to(&[], lie, load);
        let refused = matches!(kind, ErrorKind::Commit(CommitFault::Description { .. }));
        assert!(refused, "{word} at {at}: {kind:?}");
    }
}

/// Loads, commits and executes.
fn execute(client: &Client) -> Result<(), Error> {
    let model = client.load(b"echo")?;
    let session = model.session(0)?;
    let _buffers = session.allocate_all()?;
    session.commit()?;
    session.execute()
}

/// As [`execute`], of two sessions at once.
fn execute_all(client: &Client) -> Result<(), Error> {
    let model = client.load(b"echo")?;
    let sessions = model.sessions(2)?;
    let _buffers = [sessions[0].allocate_all()?, sessions[1].allocate_all()?];
    sessions[0].commit()?;
    sessions[1].commit()?;
    model.execute_all()?.into_iter().try_for_each(|(_, outcome)| outcome)
}

fn failure(bytes: Bytes, at: u32) -> Bytes {
    bytes.u32(at).u32(3).u64(0).u64(0).u64(0).text("")
}

#[test]
fn answers_to_commits_and_executions_that_cannot_be_end_the_clients_link() {
    let committed: fn(u64) -> Bytes = |ticket| head(COMMITTED, 0, ticket).u64(ticket | 1 << 20);
    type Lie = fn(u64) -> Bytes;
    let zero: Lie = |ticket| head(COMMITTED, 0, ticket).u64(0);
    let kind = lied_to(&[description], |ticket| Some(zero(ticket)), execute);
    assert_eq!(field(&kind), "commit.ticket");
    let of_one: [(&str, Lie); 5] = [
        ("commit.ticket", |ticket| failure(head(EXECUTED, 1, ticket), 1)),
        ("commit.ticket", |ticket| failure(failure(head(EXECUTED, 2, ticket), 0), 1)),
        ("commit.ticket", |ticket| head(DONE, 0, ticket)),
        ("commit.count", |ticket| head(EXECUTED, 1025, ticket)),
        ("commit.len", |ticket| head(EXECUTED, 1, ticket)),
    ];
    for (name, lie) in of_one {
        let kind = lied_to(&[description, committed], |ticket| Some(lie(ticket)), execute);
        assert_eq!(field(&kind), name);
    }
    let of_two: [Lie; 4] = [
        |ticket| failure(head(EXECUTED, 1, ticket), 2),
        |ticket| failure(head(EXECUTED, 1, ticket), u32::MAX),
        |ticket| failure(failure(head(EXECUTED, 2, ticket), 1), 0),
        |ticket| failure(failure(head(EXECUTED, 2, ticket), 1), 1),
    ];
    for lie in of_two {
        let honest = [description, committed, committed];
        let kind = lied_to(&honest, |ticket| Some(lie(ticket)), execute_all);
        assert_eq!(field(&kind), "commit.ticket");
    }
    // An honest failure of the second one.
    let honest = [description, committed, committed];
    let kind = lied_to(&honest, |ticket| Some(failure(head(EXECUTED, 1, ticket), 1)), execute_all);
    assert_eq!(kind, ErrorKind::Commit(CommitFault::Panicked));
}

#[test]
fn faults_of_any_number_are_told_and_change_nothing() {
    for code in [0, 1, 4, 9, 10, 14, 17, 18, u32::MAX] {
        let lie = |ticket| {
            let bytes = head(FAILED, 0, ticket).u32(code).u64(u64::MAX).u64(u64::MAX);
            Some(bytes.u64(u64::MAX).text("x"))
        };
        let kind = lied_to(&[description], lie, execute);
        assert!(matches!(kind, ErrorKind::Commit(_)), "{kind:?}");
    }
    let long = |ticket| {
        let bytes = head(FAILED, 0, ticket).u32(2).u64(0).u64(0).u64(0);
        Some(bytes.text(&"x".repeat(1025)))
    };
    assert_eq!(field(&lied_to(&[description], long, execute)), "commit.text");
}

/// In a process of its own: lets its service run out of descriptors.
fn runs_out(stage: &Stage) {
    // A client whose memory lies in as few descriptors of its own as can be.
    let client = stage.client();
    let model = client.load(b"many 20").unwrap();
    let session = model.session(0).unwrap();
    let buffers = session.allocate_all().unwrap();
    let honest = client.load(b"echo").unwrap().session(0).unwrap();
    let echo = honest.allocate_all().unwrap();
    honest.commit().unwrap();
    for free in [0, 1, 5, 20] {
        let before = leave_descriptors(free);
        let lacking = session.commit().unwrap_err();
        let resource = rustix::process::Resource::Nofile;
        // What is committed needs no descriptors.
        echo[0].write_at(0, &[free as u8; 8]).unwrap();
        honest.execute().unwrap();
        rustix::process::setrlimit(resource, before).unwrap();
        let kind = lacking.kind();
        assert!(matches!(kind, ErrorKind::Commit(CommitFault::Resources { .. })), "{kind:?}");
        assert_eq!(echo[1].to_vec().unwrap(), [free as u8 + 1; 8]);
        assert_eq!(stage.server.stats().commits, 2);
        session.commit().unwrap();
        session.execute().unwrap();
        assert_eq!(buffers[20].to_vec().unwrap(), 0u64.to_le_bytes());
        session.release().unwrap();
    }
}

#[test]
fn a_service_without_descriptors_says_so_and_a_retry_works() {
    alone("a_service_without_descriptors_says_so_and_a_retry_works", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        runs_out(&watch.stage);
        watch.executes(1);
    });
}

#[test]
fn a_service_that_sends_no_messages_is_left() {
    for what in 0..2 {
        let (context, name) = (Context::new().unwrap(), unique_name());
        let mut listener = context.listen(&name).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut link = listener.accept_deadline(soon()).unwrap();
                link.recv_deadline(soon()).unwrap();
                if what == 0 {
                    link.send_tensor(Tensor::from_slice([1], &[1u8]).unwrap()).unwrap();
                } else {
                    link.submit(&head(DONE, 0, 1).0).unwrap();
                }
                let _ = link.recv_deadline(soon());
            });
            let client = Client::connect(&context, &name).unwrap();
            let kind = client.load(b"echo").unwrap_err().kind().clone();
            assert_eq!(field(&kind), "commit.kind");
            assert_eq!(*client.load(b"echo").unwrap_err().kind(), kind);
        });
    }
}
