//! Helpers of the integration tests.
//!
//! | module | what it offers |
//! |---|---|
//! | [`other`] | runs a body in another process |
//! | [`python`] | runs an independent peer |
//! | [`raw`] | is a peer that can lie in every byte it writes |
//! | [`callbacks`] | reports the calls of callbacks |
//! | [`census`] | counts what a process holds |
//! | [`in_flight`] | uses up the descriptors that a user may send |
//! | [`sample`] | says how much a test tries |
//! | [`trace`], [`faulty`], [`steps`] | stop another process at its system calls, let those fail, stop it at its instructions |
//! | [`quiet`] | forbids system calls |
//! | [`published`] | makes messages of a topic, and checks them |
//! | [`stream`], [`traffic`] | are the data between two ends while something happens to one of them |
//! | [`service`], [`commit`] | are a service of committed buffers, and clients that lie to it |
//! | [`dmabuf`] | makes device memory |
//! | [`fake_cuda`], [`cuda_driver`], `gpus` | start a CUDA driver without a GPU, call it or a real one, and let two processes exchange over it |

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub mod callbacks;
pub mod census;
pub mod commit;
pub mod cuda_driver;
pub mod dmabuf;
pub mod fake_cuda;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod faulty;
#[cfg(feature = "cuda")]
pub mod gpus;
pub mod hanging;
pub mod in_flight;
pub mod lingering;
pub mod other;
pub mod published;
pub mod python;
pub mod quiet;
pub mod raw;
pub mod sample;
pub mod service;
#[cfg(target_arch = "x86_64")]
pub mod steps;
pub mod stream;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod trace;
pub mod traffic;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use slipring::error::{Fault, TryRecvError, TrySendError};
use slipring::{Connection, Context, Error, ErrorKind, Listener, Options};

use raw::{Hello, RawPeer};

/// The time after which an operation counts as hanging.
pub const HANG: Duration = Duration::from_secs(20);

pub fn soon() -> Instant {
    Instant::now() + HANG
}

/// Returns an abstract name that no other test has.
pub fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("slipring-test-{}-{number}", std::process::id())
}

/// Waits until `done`, or panics with `what`.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(Instant::now() < deadline, "{what} does not come about");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the pool of `context` is empty. What a link has lent comes back after its end, on another thread, and
/// stays in the pool if it was trimmed before.
pub fn trim(context: &Context) {
    wait_until("the memory", || {
        context.trim();
        context.pool_bytes() == 0
    });
}

/// Two ends in one process, each of its own context.
pub fn pair_with(near: Options, far: Options) -> (Connection, Connection) {
    pair_of(&Context::with_options(near).unwrap(), &Context::with_options(far).unwrap())
}

/// Two ends in one process, of one context.
pub fn pair(options: Options) -> (Connection, Connection) {
    let context = Context::with_options(options).unwrap();
    pair_of(&context, &context)
}

/// Two ends in one process: `near` connects, `far` accepts.
pub fn pair_of(near: &Context, far: &Context) -> (Connection, Connection) {
    let name = unique_name();
    let mut listener = far.listen(&name).unwrap();
    thread::scope(|scope| {
        let connector = scope.spawn(|| near.connect_deadline(&name, soon()).unwrap());
        let accepted = listener.accept_deadline(soon()).unwrap();
        (connector.join().unwrap(), accepted)
    })
}

/// A link that must not notice what happens to others.
#[derive(Debug)]
pub struct Witness {
    near: Connection,
    far: Connection,
    round: u8,
    /// The longest message to try, where options forbid longer ones.
    pub longest: usize,
}

impl Witness {
    pub fn new(context: &Context) -> Self {
        let (near, far) = pair_of(context, context);
        Self { near, far, round: 0, longest: 20_000 }
    }

    /// Moves short and long messages both ways.
    pub fn check(&mut self) {
        self.round = self.round.wrapping_add(1);
        for len in [0, 48, 300, 20_000].into_iter().filter(|len| *len <= self.longest) {
            let message = vec![self.round; len];
            self.near.send(&message).unwrap();
            assert_eq!(self.far.receiver().recv_deadline(soon()).unwrap().unwrap(), message);
            self.far.send(&message).unwrap();
            let back = self.near.receiver().recv_deadline(soon()).unwrap().unwrap();
            assert_eq!(back, message);
        }
    }
}

/// A context with a listener and a witness, ready for raw peers.
#[derive(Debug)]
pub struct Stage {
    pub context: Context,
    pub name: String,
    pub listener: Listener,
    pub witness: Witness,
}

impl Stage {
    pub fn new(options: Options) -> Self {
        let context = Context::with_options(options).unwrap();
        let name = unique_name();
        let listener = context.listen(&name).unwrap();
        let witness = Witness::new(&context);
        Self { context, name, listener, witness }
    }

    /// A link whose other end is a raw peer that was honest so far.
    pub fn link(&mut self) -> (Connection, RawPeer) {
        self.link_with(Hello::honest())
    }

    pub fn link_with(&mut self, hello: Hello) -> (Connection, RawPeer) {
        let mut peer = RawPeer::greet(raw::dial(&self.name), hello);
        let link = self.listener.accept_deadline(soon()).unwrap();
        peer.meet();
        (link, peer)
    }

    /// Waits until the listener has refused one more peer, and has accepted none. One call of `try_accept` may not be
    /// enough: after a peer that took long the listener rests.
    pub fn refuses_one(&mut self) {
        let refused = self.listener.stats().refused;
        wait_until("a refusal", || {
            assert!(self.listener.try_accept().unwrap().is_none(), "accepted");
            self.listener.stats().refused > refused
        });
    }

    /// Asserts that an honest peer is accepted, and that the other link works.
    pub fn is_undisturbed(&mut self) {
        let Self { context, name, listener, .. } = self;
        let (mut near, mut far) = thread::scope(|scope| {
            let connector = scope.spawn(|| context.connect_deadline(&*name, soon()).unwrap());
            let accepted = listener.accept_deadline(soon()).unwrap();
            (connector.join().unwrap(), accepted)
        });
        near.send(b"honest").unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"honest");
        self.witness.check();
    }
}

/// Returns the fault of an operation that must have failed with one.
pub fn fault<T: std::fmt::Debug>(answer: Result<T, Error>) -> Fault {
    match answer.map_err(|error| error.kind().clone()) {
        Err(ErrorKind::Fault(fault)) => fault,
        other => panic!("a fault was due, not {other:?}"),
    }
}

/// Asserts that every further use of a link gives the same fault.
pub fn stays_faulty(link: &mut Connection, expected: Fault) {
    for _ in 0..2 {
        assert_eq!(fault(link.receiver().recv_deadline(soon())), expected);
        assert_eq!(fault(link.recv_request()), expected);
        assert_eq!(fault(link.send(b"late")), expected);
        assert_eq!(fault(link.send(&[0; 20_000])), expected);
        assert_eq!(fault(link.call(b"late")), expected);
        assert_eq!(fault(link.sender().reserve(10).map(drop)), expected);
        assert_eq!(fault(link.receiver().peek().map(drop)), expected);
        match link.receiver().try_recv() {
            Err(TryRecvError::Failed(error)) => assert_eq!(fault::<()>(Err(error)), expected),
            other => panic!("{other:?}"),
        }
        match link.sender().try_send(b"late") {
            Err(TrySendError::Failed(error)) => assert_eq!(fault::<()>(Err(error)), expected),
            other => panic!("{other:?}"),
        }
    }
}
