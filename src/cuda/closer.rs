//! The thread that frees and closes memory of GPUs. The driver may wait within these calls for all work on the GPU, and may
//! hold a lock meanwhile. So nothing is freed while a stream may wait for a peer's [word](crate::cuda::waits).
//!
//! 1. No other thread makes such a call for memory that was mapped, also not for what a call has made before it fails. While the
//!    system has no thread for it, the objects wait, and every later call tries to start it.
//! 2. An object keeps what it counts as until it is dropped: loans, and charges of a peer's account.
//! 3. [`close`] runs none of a user's code, so its caller may hold locks. A subscriber of traces is a user's code:
//!    [`tell`] is called without locks.
//! 4. The thread goes on, whatever panics.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cuda::library::is_ours;
use crate::cuda::parked::{PAUSE, Parked};
use crate::cuda::waits::{Refused, Waits};
use crate::cuda::withdrawing;
use crate::error::contain;

/// The number of objects that are not dropped yet.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Whether memory came to wait for a thread, and the log was not told.
static IS_UNTOLD: AtomicBool = AtomicBool::new(false);

/// The objects on their way to the thread. They wait there while the system has no thread for it.
struct Queue {
    to: Sender<Box<dyn Parked>>,
    /// The thread locks it as long as it runs.
    from: Mutex<Receiver<Box<dyn Parked>>>,
    thread: Mutex<Thread>,
}

#[derive(Default)]
struct Thread {
    is_running: bool,
    /// Why the system had none, when it was asked last.
    refused: Option<std::io::Error>,
}

impl Queue {
    fn get() -> &'static Self {
        static QUEUE: OnceLock<Queue> = OnceLock::new();
        QUEUE.get_or_init(|| {
            let (to, from) = mpsc::channel();
            Self { to, from: Mutex::new(from), thread: Mutex::default() }
        })
    }

    /// Starts the thread, unless it runs. Returns whether it runs. If the system has none now, the next call tries once more.
    fn start(&'static self) -> bool {
        let mut thread = self.thread();
        if thread.is_running {
            return true;
        }
        let spawned = std::thread::Builder::new().name("slipring-cuda".into());
        let spawned = spawned.spawn(|| self.run());
        thread.is_running = spawned.is_ok();
        let before = std::mem::replace(&mut thread.refused, spawned.err());
        if before.is_none() && thread.refused.is_some() {
            IS_UNTOLD.store(true, Ordering::Relaxed);
        }
        thread.is_running
    }

    fn thread(&self) -> MutexGuard<'_, Thread> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        /// Has a later call start another thread.
        struct Running<'a>(&'a Queue);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.thread().is_running = false;
            }
        }
        let _running = Running(self);
        let from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut parked, mut pause): (Vec<Waiting>, _) = (Vec::new(), PAUSE.0);
        loop {
            let next =
                if parked.is_empty() { from.recv().ok() } else { from.recv_timeout(pause).ok() };
            pause = if next.is_some() { PAUSE.0 } else { (2 * pause).min(PAUSE.1) };
            parked.extend(next.map(|next| (next, None)));
            parked.extend(from.try_iter().map(|next| (next, None)));
            drop_unused(&mut parked, &Waits::of_process());
            // A freed allocation is withdrawn.
            contain(withdrawing::follow_up);
        }
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
    queue.start();
}

/// Tells the log if memory waits for a thread. The caller holds no lock.
pub(super) fn tell() {
    if !IS_UNTOLD.load(Ordering::Relaxed) || !IS_UNTOLD.swap(false, Ordering::Relaxed) {
        return;
    }
    let refused = Queue::get().thread().refused.as_ref().map(ToString::to_string);
    if let Some(error) = refused {
        contain(|| tracing::warn!(%error, "no thread to free memory of GPUs: it is freed later"));
    }
}

/// Returns the number of objects that are not dropped yet. Those that wait for a thread get one, if the system has one now. The
/// caller holds no lock.
pub(super) fn left() -> usize {
    let left = LEFT.load(Ordering::Relaxed);
    if left > 0 {
        Queue::get().start();
        tell();
    }
    left
}

/// Waits until all objects are dropped, or something else `is_done`, at most for `patience`. It does not wait where there is no
/// thread that drops them. The caller holds no lock.
pub(super) fn wait_for_all(patience: Duration, mut is_done: impl FnMut() -> bool) {
    let (deadline, mut pause) = (Instant::now() + patience, PAUSE.0);
    if left() == 0 || !Queue::get().start() {
        return;
    }
    while !is_done() && LEFT.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE.1);
    }
}

/// An object, and when its drop had to wait for streams for the first time.
type Waiting = (Box<dyn Parked>, Option<Refused>);

/// Drops the objects that nothing uses.
fn drop_unused(parked: &mut Vec<Waiting>, waits: &Waits) {
    let mut at = 0;
    while let Some((next, refused)) = parked.get_mut(at) {
        // The owner of adopted memory and a subscriber of traces are a user's code.
        let is_over = contain(|| next.is_over()).unwrap_or(false);
        // An owner of adopted memory waits for the streams, too: it may free memory of the GPU itself.
        let asks = is_over && next.drop_waits();
        let freeing = asks.then(|| contain(|| waits.begin_freeing(refused)).flatten());
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

#[cfg(test)]
mod tests;
