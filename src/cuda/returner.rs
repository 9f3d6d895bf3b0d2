//! The thread that gives loans of peers back, and that hears of peers while the threads of the user sleep: of their ends, and of
//! what they withdraw. It waits for no stream that may wait for a peer, so a peer whose work never ends keeps no other
//! peer's loan.
//!
//! ```text
//!   asleep until ── an object comes, or a watch ends ── the bell
//!                ├─ a peer's process ends ───────────── its pidfd
//!                ├─ a peer withdraws memory ─────────── the link's socket
//!                └─ the next look at running work ───── a pause, while there is some
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::cuda::closer::{PAUSE, Parked, drop_unused, wait_and_drop};
use crate::cuda::library::is_ours;
use crate::error::contain;

/// An object that waits for a peer.
pub(super) trait Watch: Send + Sync {
    /// Returns what the thread sleeps for until the next look.
    fn until(&self) -> Until;

    /// Does what is due. Returns whether nothing will be due any more.
    fn look(&self) -> bool;
}

/// The reason for the next look.
pub(super) enum Until {
    /// Something comes, or has come, on this descriptor.
    Readable(Arc<dyn AsFd + Send + Sync>),
    /// The longest pause is over.
    Paused,
    /// The bell is rung.
    Rung,
}

/// The way to the thread.
struct Desk {
    bell: OwnedFd,
    arrived: Mutex<Arrived>,
}

/// What the thread has not taken yet.
#[derive(Default)]
struct Arrived {
    parked: Vec<Box<dyn Parked>>,
    watches: Vec<Weak<dyn Watch>>,
}

/// The number of parked objects that are not dropped yet.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Drops an object on that thread as soon as nothing uses it. Its drop does not wait.
pub(super) fn give_back(parked: impl Parked + 'static) {
    if !is_ours() {
        return std::mem::forget(parked);
    }
    LEFT.fetch_add(1, Ordering::Relaxed);
    let parked: Box<dyn Parked> = Box::new(parked);
    match Desk::get() {
        Some(desk) => {
            desk.arrived().parked.push(parked);
            desk.ring();
        }
        None => {
            tracing::warn!("no thread to give loans of GPUs back: the thread that drops one waits");
            wait_and_drop(parked, &LEFT);
        }
    }
}

/// Has the thread look at `watch` until that is over or dropped. In the process that loaded the driver.
pub(super) fn watch(watch: Weak<dyn Watch>) {
    match Desk::get() {
        Some(desk) => {
            desk.arrived().watches.push(watch);
            desk.ring();
        }
        None => tracing::warn!("no thread to hear of the end of a peer: a stream may wait for it"),
    }
}

/// Has the thread ask all watches what they wait for. In the process that loaded the driver.
pub(super) fn ring() {
    Desk::get().into_iter().for_each(Desk::ring);
}

/// Returns the number of objects that are not dropped yet.
pub(super) fn left() -> usize {
    LEFT.load(Ordering::Acquire)
}

impl Desk {
    /// Returns the way to the thread, which the first call starts. `None`: the system has no thread or descriptor for it.
    fn get() -> Option<&'static Self> {
        static DESK: OnceLock<Option<Arc<Desk>>> = OnceLock::new();
        let desk = DESK.get_or_init(|| {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            let desk = Arc::new(Self { bell, arrived: Mutex::default() });
            let (thread, own) = (std::thread::Builder::new(), desk.clone());
            let started = thread.name("slipring-loans".into()).spawn(move || own.run());
            started.ok().map(|_| desk)
        });
        desk.as_deref()
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // A bell that is full is rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut all = Arrived::default();
        let mut pause = PAUSE.0;
        loop {
            let woken = self.sleep(&all, pause);
            pause = if woken.is_rung { PAUSE.0 } else { (2 * pause).min(PAUSE.1) };
            let Arrived { parked, watches } = std::mem::take(&mut *self.arrived());
            all.parked.extend(parked);
            all.watches.extend(watches);
            drop_unused(&mut all.parked, &LEFT);
            all.watches.retain(|watch| {
                let Some(watch) = watch.upgrade() else { return false };
                // A subscriber of traces is a user's code.
                !woken.is_due || contain(|| watch.look()) != Some(true)
            });
        }
    }

    /// Sleeps until something is due.
    fn sleep(&self, all: &Arrived, pause: Duration) -> Woken {
        let mut longest = if all.parked.is_empty() { None } else { Some(pause) };
        let (mut awaited, mut is_due) = (Vec::new(), false);
        for watch in all.watches.iter().filter_map(Weak::upgrade) {
            match watch.until() {
                Until::Readable(fd) => awaited.push(fd),
                Until::Paused => {
                    is_due = true;
                    longest = longest.or(Some(PAUSE.1));
                }
                Until::Rung => {}
            }
        }
        let all = std::iter::once(self.bell.as_fd()).chain(awaited.iter().map(|fd| fd.as_fd()));
        let mut asked: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let longest =
            longest.map(|longest| Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() });
        match poll(&mut asked, longest.as_ref()) {
            Ok(_) => is_due |= asked[1..].iter().any(|asked| !asked.revents().is_empty()),
            Err(Errno::INTR) => {}
            // No memory, or more descriptors than the process may open: nothing is known, and it looks at all.
            Err(_) => {
                std::thread::sleep(PAUSE.1);
                is_due = true;
            }
        }
        let is_rung = rustix::io::read(&self.bell, &mut [0; 8]).is_ok();
        Woken { is_rung, is_due }
    }
}

/// Why the thread is awake.
struct Woken {
    is_rung: bool,
    /// A descriptor is readable, or a watch is looked at after a pause.
    is_due: bool,
}
