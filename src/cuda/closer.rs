//! The two threads that drop what is no longer used: one that may wait in the driver, and one that never does.
//!
//! 1. `slipring-cuda` frees and closes memory. The driver may wait within these calls for all work on the GPU, and so for
//!    a peer. No other thread waits for that.
//! 2. `slipring-loans` gives loans of peers back. It asks the driver what is over and waits for nothing, so a peer whose
//!    work never ends keeps no other peer's loan.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::cuda::library::is_ours;
use crate::error::contain;

/// The first and the longest sleep between two checks of running work.
const PAUSE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));

/// An object that is to be dropped when nothing uses it.
pub(super) trait Parked: Send {
    /// Returns whether nothing uses it any more, so that it can be dropped.
    fn is_over(&self) -> bool;
}

/// A thread that drops objects as soon as nothing uses them.
struct Worker {
    name: &'static str,
    /// `None`: the system has no thread for it.
    queue: OnceLock<Option<Sender<Box<dyn Parked>>>>,
    /// The number of objects that are not dropped yet.
    left: AtomicUsize,
}

static CLOSER: Worker = Worker::new("slipring-cuda");
static RETURNER: Worker = Worker::new("slipring-loans");

/// Frees or closes an object, on a thread that may wait in the driver, as soon as nothing uses it.
pub(super) fn close(parked: impl Parked + 'static) {
    CLOSER.end(Box::new(parked));
}

/// Drops an object, on the thread that never waits in the driver, as soon as nothing uses it. Its drop does not wait either.
pub(super) fn give_back(parked: impl Parked + 'static) {
    RETURNER.end(Box::new(parked));
}

/// Returns the number of objects that are not dropped yet.
pub(super) fn left() -> usize {
    // An object of the second thread leaves one of the first behind it.
    let returning = RETURNER.left.load(Ordering::Acquire);
    returning + CLOSER.left.load(Ordering::Relaxed)
}

/// Waits until all memory is freed and closed that is to be, at most for `patience`.
pub(super) fn wait_for_closer(patience: Duration) {
    let closed = || CLOSER.left.load(Ordering::Relaxed) == 0;
    wait(closed, Some(Instant::now() + patience));
}

fn wait(done: impl Fn() -> bool, deadline: Option<Instant>) {
    let mut pause = PAUSE.0;
    while !done() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE.1);
    }
}

impl Worker {
    const fn new(name: &'static str) -> Self {
        Self { name, queue: OnceLock::new(), left: AtomicUsize::new(0) }
    }

    fn end(&'static self, parked: Box<dyn Parked>) {
        if !is_ours() {
            return std::mem::forget(parked);
        }
        let queue = self.queue.get_or_init(|| {
            let (to, from) = mpsc::channel();
            let thread = std::thread::Builder::new().name(self.name.into());
            thread.spawn(move || self.run(&from)).ok().map(|_| to)
        });
        self.left.fetch_add(1, Ordering::Relaxed);
        let parked = match queue {
            Some(queue) => queue.send(parked).err().map(|unsent| unsent.0),
            None => Some(parked),
        };
        if let Some(parked) = parked {
            let thread = self.name;
            tracing::warn!(thread, "no thread: the one that drops memory of a GPU waits");
            wait(|| parked.is_over(), None);
            drop(parked);
            self.left.fetch_sub(1, Ordering::Release);
        }
    }

    fn run(&self, from: &Receiver<Box<dyn Parked>>) {
        let mut parked: Vec<Box<dyn Parked>> = Vec::new();
        let mut pause = PAUSE.0;
        loop {
            let next =
                if parked.is_empty() { from.recv().ok() } else { from.recv_timeout(pause).ok() };
            pause = if next.is_some() { PAUSE.0 } else { (2 * pause).min(PAUSE.1) };
            parked.extend(next);
            parked.extend(from.try_iter());
            // The owner of adopted memory and a subscriber of traces are a user's code. The loop goes on if it panics.
            let is_over =
                |parked: &mut Box<dyn Parked>| contain(|| parked.is_over()).unwrap_or(false);
            for over in parked.extract_if(.., is_over) {
                contain(|| drop(over));
                self.left.fetch_sub(1, Ordering::Release);
            }
        }
    }
}
