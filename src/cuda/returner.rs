//! The thread that gives loans of peers back, and that hears of peers while the threads of the user sleep: of their ends, and of
//! what they withdraw. It waits for no stream, so a peer whose work never ends keeps no other peer's loan.
//!
//! ```text
//!   asleep until ── an object comes, or a watch is rung ── the bell
//!                ├─ a peer's process ends ──────────────── its pidfd
//!                ├─ a peer withdraws memory ────────────── the link's socket
//!                └─ the next look at running work ──────── a pause, while there is some
//! ```
//!
//! 1. The work of one stream ends in its order, so one question a stream tells which of its loans go back.
//! 2. A watch looks when its own descriptor has got something or its own bell is rung, and no other one does then.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::cuda::library::is_ours;
use crate::cuda::parked::{Lane, PAUSE, Parked};
use crate::error::contain;

/// An object that waits for a peer.
pub(super) trait Watch: Send + Sync {
    /// Does what is due. It does not wait.
    fn look(&self) -> Next;
}

/// When a watch looks next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// When something comes on its descriptor, or it is rung.
    Event,
    /// After the next pause at the latest.
    Pause,
    /// Never.
    Over,
}

/// The descriptor of a watch. The thread keeps it open.
pub(super) struct Source {
    fd: Box<dyn AsFd + Send>,
    events: EventFlags,
}

impl Source {
    /// A descriptor on which something comes.
    pub(super) fn readable(fd: impl AsFd + Send + 'static) -> Self {
        Self { fd: Box::new(fd), events: EventFlags::IN }
    }

    /// A socket whose other end reads.
    pub(super) fn writable(fd: OwnedFd) -> Self {
        Self { fd: Box::new(fd), events: EventFlags::OUT }
    }
}

/// A watch that the thread has. Its drop ends the watch, and lets go of the descriptor.
#[derive(Debug)]
pub(super) struct Watched {
    key: u64,
}

impl Watched {
    /// Has the watch look.
    pub(super) fn ring(&self) {
        self.tell(|arrived| arrived.rung.push(self.key));
    }

    fn tell(&self, what: impl FnOnce(&mut Arrived)) {
        if let Some(desk) = DESK.get() {
            what(&mut desk.arrived());
            desk.ring();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if is_ours() {
            self.tell(|arrived| arrived.ended.push(self.key));
        }
    }
}

/// The way to the thread.
struct Desk {
    bell: OwnedFd,
    epoll: OwnedFd,
    arrived: Mutex<Arrived>,
}

/// What the thread has not taken yet.
#[derive(Default)]
struct Arrived {
    parked: Vec<(Lane, Box<dyn Parked>)>,
    watches: Vec<(u64, Entry)>,
    rung: Vec<u64>,
    ended: Vec<u64>,
}

struct Entry {
    watch: Weak<dyn Watch>,
    source: Option<Source>,
    /// The kernel does not watch the descriptor: the watch looks after each pause.
    is_polled: bool,
}

/// The number of objects that are not dropped yet.
static LEFT: AtomicUsize = AtomicUsize::new(0);

static DESK: OnceLock<Arc<Desk>> = OnceLock::new();

/// An object of a GPU that the thread holds, or is to hold. It counts as [left](left).
#[derive(Debug)]
pub(super) struct Held(());

impl Held {
    pub(super) fn new() -> Self {
        LEFT.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        LEFT.fetch_sub(1, Ordering::Release);
    }
}

/// Drops an object on that thread as soon as nothing uses it. Its drop does not wait.
pub(super) fn give_back(lane: Lane, parked: impl Parked + 'static) {
    if !is_ours() {
        return std::mem::forget(parked);
    }
    LEFT.fetch_add(1, Ordering::Relaxed);
    let parked: Box<dyn Parked> = Box::new(parked);
    match Desk::get() {
        Some(desk) => {
            desk.arrived().parked.push((lane, parked));
            desk.ring();
        }
        None => {
            tracing::warn!("no thread to give loans of GPUs back: the thread that drops one waits");
            wait_for(&*parked);
            drop(parked);
            LEFT.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Waits until nothing uses an object, where there is no thread that does. Its drop leaves memory to `slipring-cuda`.
#[cold]
fn wait_for(parked: &dyn Parked) {
    let mut pause = PAUSE.0;
    while !parked.is_over() {
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE.1);
    }
}

/// Has the thread look at `watch`, for the first time at once. In the process that loaded the driver. Returns `None` if the
/// system has no thread or descriptor now.
pub(super) fn watch(source: Option<Source>, watch: Weak<dyn Watch>) -> Option<Watched> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let desk = Desk::get()?;
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    desk.arrived().watches.push((key, Entry { watch, source, is_polled: false }));
    desk.ring();
    Some(Watched { key })
}

/// Returns the number of objects that are not dropped yet.
pub(super) fn left() -> usize {
    LEFT.load(Ordering::Acquire)
}

impl Desk {
    /// Returns the way to the thread, which the first call starts. `None`: the system has no thread or descriptor for it now, and
    /// the next call tries once more.
    fn get() -> Option<&'static Self> {
        static STARTING: Mutex<()> = Mutex::new(());
        if let Some(desk) = DESK.get() {
            return Some(desk);
        }
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(desk) = DESK.get() {
            return Some(desk);
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).ok()?;
        let desk = Arc::new(Self { bell, epoll, arrived: Mutex::default() });
        let (thread, own) = (std::thread::Builder::new(), desk.clone());
        thread.name("slipring-loans".into()).spawn(move || own.run()).ok()?;
        Some(DESK.get_or_init(|| desk))
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // A bell that is full is rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        let (mut returns, mut watches) = (Returns::default(), Watches::default());
        let mut pause = PAUSE.0;
        loop {
            let is_running = !returns.0.is_empty() || !watches.paused.is_empty();
            let is_rung = self.sleep(is_running.then_some(pause));
            pause = if is_rung { PAUSE.0 } else { (2 * pause).min(PAUSE.1) };
            let Arrived { parked, watches: new, rung, ended } =
                std::mem::take(&mut *self.arrived());
            parked.into_iter().for_each(|(lane, parked)| returns.add(lane, parked));
            returns.give_back();
            let mut due: HashSet<u64> = watches.paused.drain().chain(rung).collect();
            ended.iter().for_each(|key| watches.end(&self.epoll, *key));
            for (key, entry) in new.into_iter().filter(|(key, _)| !ended.contains(key)) {
                watches.add(&self.epoll, key, entry);
                due.insert(key);
            }
            let ready: Vec<u64> = self.ready().collect();
            due.extend(&ready);
            due.into_iter().for_each(|key| watches.look(&self.epoll, key));
            ready.into_iter().for_each(|key| watches.look_again(key));
        }
    }

    /// Sleeps until something is due, or for a pause. Returns whether the bell was rung.
    fn sleep(&self, longest: Option<Duration>) -> bool {
        let asked = [self.bell.as_fd(), self.epoll.as_fd()];
        let mut asked = asked.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let longest =
            longest.map(|longest| Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() });
        match poll(&mut asked, longest.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // No memory.
            Err(_) => std::thread::sleep(PAUSE.1),
        }
        rustix::io::read(&self.bell, &mut [0; 8]).is_ok()
    }

    /// Returns the watches on whose descriptors something has come.
    fn ready(&self) -> impl Iterator<Item = u64> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        // More than these come at the next turn.
        let _ = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
        );
        events.into_iter().map(|event| event.data.u64())
    }
}

/// The objects that go when nothing uses them, by the stream that does.
#[derive(Default)]
struct Returns(HashMap<Lane, VecDeque<Box<dyn Parked>>>);

impl Returns {
    fn add(&mut self, lane: Lane, parked: Box<dyn Parked>) {
        self.0.entry(lane).or_default().push_back(parked);
    }

    /// Drops the objects that nothing uses. The first one of a stream that is in use is the last one that is asked.
    fn give_back(&mut self) {
        // A subscriber of traces is a user's code. The thread goes on if it panics.
        let is_over = |parked: &dyn Parked| contain(|| parked.is_over()).unwrap_or(false);
        self.0.retain(|stream, lane| {
            for _ in 0..lane.len() {
                let Some(first) = lane.pop_front() else { break };
                if is_over(&*first) {
                    contain(|| drop(first));
                    LEFT.fetch_sub(1, Ordering::Release);
                } else if stream.is_none() {
                    lane.push_back(first);
                } else {
                    lane.push_front(first);
                    break;
                }
            }
            !lane.is_empty()
        });
    }
}

#[derive(Default)]
struct Watches {
    entries: HashMap<u64, Entry>,
    /// Those that look after a pause.
    paused: HashSet<u64>,
}

impl Watches {
    fn add(&mut self, epoll: &OwnedFd, key: u64, mut entry: Entry) {
        if let Some(source) = &entry.source {
            // Each packet of a socket comes once. What a watch leaves there is the user's threads' to take.
            let (data, events) = (EventData::new_u64(key), source.events | EventFlags::ET);
            if let Err(errno) = epoll::add(epoll, source.fd.as_fd(), data, events) {
                let pause = PAUSE.1;
                tracing::warn!(%errno, ?pause, "epoll_ctl: a peer of a GPU is looked at after pauses");
                entry.is_polled = true;
            }
        }
        self.entries.insert(key, entry);
    }

    fn look(&mut self, epoll: &OwnedFd, key: u64) {
        let Some(entry) = self.entries.get(&key) else { return };
        // The thread may hold the last handle of it for a moment.
        let _held = Held::new();
        let next = entry.watch.upgrade().map_or(Next::Over, |watch| {
            // A subscriber of traces is a user's code.
            let next = contain(|| watch.look()).unwrap_or(Next::Pause);
            contain(|| drop(watch));
            next
        });
        match next {
            Next::Event if !entry.is_polled => {}
            Next::Event | Next::Pause => drop(self.paused.insert(key)),
            Next::Over => self.end(epoll, key),
        }
    }

    /// Something has come: a watch for room looks once more after a pause, because the kernel tells of the room just before it is
    /// there.
    fn look_again(&mut self, key: u64) {
        let source = self.entries.get(&key).and_then(|entry| entry.source.as_ref());
        if source.is_some_and(|source| source.events == EventFlags::OUT) {
            self.paused.insert(key);
        }
    }

    fn end(&mut self, epoll: &OwnedFd, key: u64) {
        self.paused.remove(&key);
        let Some(entry) = self.entries.remove(&key) else { return };
        if let Some(source) = entry.source.filter(|_| !entry.is_polled) {
            let _ = epoll::delete(epoll, source.fd.as_fd());
        }
    }
}

#[cfg(test)]
mod tests;
