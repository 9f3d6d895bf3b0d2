//! The thread that frees and closes memory of GPUs. The driver may wait within these calls for all work on the
//! GPU, and so for a peer. No other thread waits for that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::cuda::library::is_ours;
use crate::error::contain;

/// The first and the longest sleep between two checks of running work.
pub(super) const PAUSE: (Duration, Duration) =
    (Duration::from_micros(100), Duration::from_millis(20));

/// An object that is to be dropped when nothing uses it.
pub(super) trait Parked: Send {
    /// Returns whether nothing uses it any more, so that it can be dropped.
    fn is_over(&self) -> bool;
}

/// The number of objects that are not dropped yet.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Frees or closes an object on that thread as soon as nothing uses it.
pub(super) fn close(parked: impl Parked + 'static) {
    static CLOSER: OnceLock<Option<Sender<Box<dyn Parked>>>> = OnceLock::new();
    if !is_ours() {
        return std::mem::forget(parked);
    }
    let closer = CLOSER.get_or_init(|| {
        let (to, from) = mpsc::channel();
        let thread = std::thread::Builder::new().name("slipring-cuda".into());
        thread.spawn(move || run(&from)).ok().map(|_| to)
    });
    LEFT.fetch_add(1, Ordering::Relaxed);
    let parked: Box<dyn Parked> = Box::new(parked);
    let parked = match closer {
        Some(closer) => closer.send(parked).err().map(|unsent| unsent.0),
        None => Some(parked),
    };
    if let Some(parked) = parked {
        tracing::warn!("no thread to close memory of GPUs: the thread that drops it waits");
        wait_and_drop(parked, &LEFT);
    }
}

/// Returns the number of objects that are not dropped yet.
pub(super) fn left() -> usize {
    LEFT.load(Ordering::Relaxed)
}

/// Waits until all objects are dropped, at most for `patience`.
pub(super) fn wait_for_all(patience: Duration) {
    wait(|| left() == 0, Some(Instant::now() + patience));
}

/// Drops an object as soon as nothing uses it, where there is no thread that does.
#[cold]
pub(super) fn wait_and_drop(parked: Box<dyn Parked>, left: &AtomicUsize) {
    wait(|| parked.is_over(), None);
    drop(parked);
    left.fetch_sub(1, Ordering::Release);
}

fn wait(done: impl Fn() -> bool, deadline: Option<Instant>) {
    let mut pause = PAUSE.0;
    while !done() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE.1);
    }
}

/// Drops the objects that nothing uses.
pub(super) fn drop_unused(parked: &mut Vec<Box<dyn Parked>>, left: &AtomicUsize) {
    // The owner of adopted memory and a subscriber of traces are a user's code. The thread goes on if it panics.
    let is_over = |parked: &mut Box<dyn Parked>| contain(|| parked.is_over()).unwrap_or(false);
    for over in parked.extract_if(.., is_over) {
        contain(|| drop(over));
        left.fetch_sub(1, Ordering::Release);
    }
}

fn run(from: &Receiver<Box<dyn Parked>>) {
    let mut parked: Vec<Box<dyn Parked>> = Vec::new();
    let mut pause = PAUSE.0;
    loop {
        let next = if parked.is_empty() { from.recv().ok() } else { from.recv_timeout(pause).ok() };
        pause = if next.is_some() { PAUSE.0 } else { (2 * pause).min(PAUSE.1) };
        parked.extend(next);
        parked.extend(from.try_iter());
        drop_unused(&mut parked, &LEFT);
    }
}
