//! The thread that frees and closes memory of GPUs. The driver may wait within these calls for all work on the GPU, and may
//! hold a lock meanwhile. So nothing is freed while a stream may wait for a peer's [word](crate::cuda::waits).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cuda::library::is_ours;
use crate::cuda::parked::{PAUSE, Parked};
use crate::cuda::waits::{Refused, Waits};
use crate::cuda::withdrawing;
use crate::error::contain;

type Closer = Sender<Box<dyn Parked>>;

/// The number of objects that are not dropped yet.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Frees or closes an object on that thread as soon as nothing uses it.
pub(super) fn close(parked: impl Parked + 'static) {
    if !is_ours() {
        return std::mem::forget(parked);
    }
    LEFT.fetch_add(1, Ordering::Relaxed);
    let parked: Box<dyn Parked> = Box::new(parked);
    let parked = match closer() {
        Some(closer) => closer.send(parked).err().map(|unsent| unsent.0),
        None => Some(parked),
    };
    if let Some(parked) = parked {
        tracing::warn!("no thread to close memory of GPUs: the thread that drops it waits");
        wait_and_drop(parked, &LEFT);
    }
}

/// Returns the way to the thread, which the first call starts. `None`: the system has no thread now, and the next call tries once
/// more.
fn closer() -> Option<&'static Closer> {
    static CLOSER: OnceLock<Closer> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(closer) = CLOSER.get() {
        return Some(closer);
    }
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(closer) = CLOSER.get() {
        return Some(closer);
    }
    let (to, from) = mpsc::channel();
    let thread = std::thread::Builder::new().name("slipring-cuda".into());
    thread.spawn(move || run(&from)).ok()?;
    Some(CLOSER.get_or_init(|| to))
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
