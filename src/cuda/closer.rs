//! The thread that frees and closes memory of GPUs. The driver may wait within these calls for all work on the GPU, and may
//! hold a lock meanwhile. So nothing is freed while a stream may wait for a peer's [word](crate::cuda::waits).
//!
//! 1. No other thread makes such a call, also not for what a call has made before it fails. While the system has no thread for
//!    it, the objects wait, and every later call tries to start it.
//! 2. An object keeps what it counts as until it is dropped: loans, and charges of a peer's account.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cuda::library::is_ours;
use crate::cuda::parked::{PAUSE, Parked};
use crate::cuda::waits::{Refused, Waits};
use crate::cuda::withdrawing;
use crate::error::contain;

/// The number of objects that are not dropped yet.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// The objects on their way to the thread. They wait there while the system has no thread for it.
struct Queue {
    to: Sender<Box<dyn Parked>>,
    /// The thread locks it for good.
    from: Arc<Mutex<Receiver<Box<dyn Parked>>>>,
}

impl Queue {
    fn get() -> &'static Self {
        static QUEUE: OnceLock<Queue> = OnceLock::new();
        QUEUE.get_or_init(|| {
            let (to, from) = mpsc::channel();
            Self { to, from: Arc::new(Mutex::new(from)) }
        })
    }

    /// Starts the thread, unless it runs. If the system has none now, the next call tries once more.
    fn start(&self) -> std::io::Result<()> {
        static STARTED: OnceLock<()> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        if STARTED.get().is_some() {
            return Ok(());
        }
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if STARTED.get().is_some() {
            return Ok(());
        }
        let (thread, from) = (std::thread::Builder::new(), self.from.clone());
        let run = move || run(&from.lock().unwrap_or_else(PoisonError::into_inner));
        thread.name("slipring-cuda".into()).spawn(run)?;
        STARTED.get_or_init(|| ());
        Ok(())
    }
}

/// Frees or closes an object on that thread as soon as nothing uses it. The caller does not wait: while the system has no thread,
/// the object does.
pub(super) fn close(parked: impl Parked + 'static) {
    if !is_ours() {
        return std::mem::forget(parked);
    }
    LEFT.fetch_add(1, Ordering::Relaxed);
    let queue = Queue::get();
    // The other end stays.
    let _ = queue.to.send(Box::new(parked));
    // A subscriber of traces is a user's code, and may call this module: no lock is held.
    if let Err(error) = queue.start() {
        tracing::warn!(%error, "no thread to free memory of GPUs: it is freed later");
    }
}

/// Returns the number of objects that are not dropped yet. Those that wait for a thread get one, if the system has one now.
pub(super) fn left() -> usize {
    let left = LEFT.load(Ordering::Relaxed);
    if left > 0 {
        // The log was told when the object came.
        let _ = Queue::get().start();
    }
    left
}

/// Waits until all objects are dropped, at most for `patience`. It does not wait where there is no thread that drops them.
pub(super) fn wait_for_all(patience: Duration) {
    let (deadline, mut pause) = (Instant::now() + patience, PAUSE.0);
    if LEFT.load(Ordering::Relaxed) == 0 || Queue::get().start().is_err() {
        return;
    }
    while LEFT.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE.1);
    }
}

/// An object, and when its drop had to wait for streams for the first time.
type Waiting = (Box<dyn Parked>, Option<Refused>);

/// Drops the objects that nothing uses.
fn drop_unused(parked: &mut Vec<Waiting>) {
    let mut at = 0;
    while let Some((next, refused)) = parked.get_mut(at) {
        // The owner of adopted memory and a subscriber of traces are a user's code. The thread goes on if it panics.
        let is_over = contain(|| next.is_over()).unwrap_or(false);
        // An owner of adopted memory waits for the streams, too: it may free memory of the GPU itself.
        let waits = is_over && next.drop_waits();
        let freeing = waits.then(|| Waits::of_process().begin_freeing(refused));
        if !is_over || matches!(freeing, Some(None)) {
            at += 1;
            continue;
        }
        let over = parked.remove(at);
        contain(|| drop(over));
        drop(freeing);
        LEFT.fetch_sub(1, Ordering::Release);
    }
}

fn run(from: &Receiver<Box<dyn Parked>>) {
    let mut parked: Vec<Waiting> = Vec::new();
    let mut pause = PAUSE.0;
    loop {
        let next = if parked.is_empty() { from.recv().ok() } else { from.recv_timeout(pause).ok() };
        pause = if next.is_some() { PAUSE.0 } else { (2 * pause).min(PAUSE.1) };
        parked.extend(next.map(|next| (next, None)));
        parked.extend(from.try_iter().map(|next| (next, None)));
        drop_unused(&mut parked);
        // A freed allocation is withdrawn.
        withdrawing::follow_up();
    }
}
