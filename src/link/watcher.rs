//! The watcher: a thread that sleeps until a peer ends.
//!
//! Two things can end: the peer's side of the socket (the peer closed it, or its last process died), and the peer's
//! process (its forked child may hold the socket open).
//!
//! 1. The thread watches both of each link, edge-triggered. So data on the socket does not wake it, and an end wakes it
//!    once.
//! 2. The watcher holds every link of its context, also one without a session, while the peer reads its loans.
//! 3. The thread also sleeps until the first deadline of a peer's loans. Then it revokes them.
//! 4. Its drop stops and joins the thread. A forked child has no such thread, and its drop does nothing.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::link::link::Link;
use crate::link::registry::{LinkRegistry, PeerEnd};
use crate::pool::Holder;
use crate::pool::Pool;
use crate::shm::fork::Generation;

/// The key of the descriptor that wakes the thread; links have others.
const BELL: u64 = u64::MAX;

/// Of the descriptors that this process may open, links whose loans have a deadline keep at most one in so many links. A
/// link has two descriptors, so these are a quarter of them.
pub(crate) const SHARE: u64 = 8;

#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    generation: Generation,
}

struct Shared {
    epoll: OwnedFd,
    /// Wakes the thread.
    bell: OwnedFd,
    stopped: AtomicBool,
    registry: LinkRegistry<Link>,
}

/// Returns the most links that have a deadline.
fn most_with_deadline() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    (limit.current.unwrap_or(u64::MAX) / SHARE).max(1) as usize
}

/// Returns the key of a link's socket. The odd key after it is that of the peer's process.
fn key(link: &Link) -> u64 {
    link.borrower().number() * 2
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl Watcher {
    /// Starts the thread. After `grace` it ends the loans of a peer that are to end.
    pub(crate) fn start(pool: Pool, grace: Option<Duration>) -> Result<Self> {
        let os = |call| move |errno: Errno| Error::os(call, errno);
        let generation = Generation::current()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os("epoll_create1"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(os("eventfd"))?;
        let data = EventData::new_u64(BELL);
        epoll::add(&epoll, &bell, data, EventFlags::IN | EventFlags::ET)
            .map_err(os("epoll_ctl"))?;
        let (stopped, registry) = (AtomicBool::new(false), LinkRegistry::new(pool, grace));
        let shared = Arc::new(Shared { epoll, bell, stopped, registry });
        let watched = shared.clone();
        let thread = std::thread::Builder::new()
            .name("slipring-watch".into())
            .spawn(move || watched.run())
            .map_err(|error| Error::os("thread spawn", error))?;
        Ok(Self { shared, thread: Some(thread), generation })
    }

    /// Enters a link and watches it.
    pub(crate) fn watch(&self, link: &Arc<Link>) -> Result<()> {
        let key = key(link);
        let peer = link.identity();
        let holder = Holder { uid: peer.uid(), pid: peer.pid() };
        self.shared.registry.enter(link.borrower(), holder, link.clone());
        let add = |fd: BorrowedFd<'_>, key, events: EventFlags| {
            let data = EventData::new_u64(key);
            epoll::add(&self.shared.epoll, fd, data, events | EventFlags::ET)
        };
        let mut added = add(link.socket().as_fd(), key, EventFlags::RDHUP);
        if let (Ok(()), Some(pidfd)) = (added, link.identity().pidfd()) {
            added = add(pidfd, key + 1, EventFlags::IN);
        }
        added.map_err(|errno| {
            self.shared.registry.strike(link.borrower());
            Error::os("epoll_ctl", errno)
        })
    }

    /// Notes that the last half of a link is dropped: the peer's loans end after the grace.
    pub(crate) fn leave(&self, link: &Arc<Link>) {
        if self.shared.limit(link) {
            self.shared.wake();
        }
    }

    /// Notes that the session of a link is over. Drops the link unless the peer reads its loans.
    pub(crate) fn retire(&self, link: &Arc<Link>) {
        let gone = self.shared.registry.retire(link.borrower(), link.health_word());
        if gone.is_none() && self.shared.limit(link) {
            self.shared.wake();
        }
        self.shared.forget(gone);
    }

    /// Stops the thread, and does not wait for its end. The caller may hold locks.
    pub(crate) fn detach(mut self) {
        drop(self.stop());
    }

    /// Tells the thread to end. `None`: this process has no such thread.
    fn stop(&mut self) -> Option<JoinHandle<()>> {
        // A forked child has no such thread, and shares the descriptors with its parent.
        let thread = self.thread.take()?;
        if !self.generation.is_current() {
            // In the child, the handle may name another thread with the same stack.
            std::mem::forget(thread);
            return None;
        }
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.wake();
        Some(thread)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(thread) = self.stop()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut events = [MaybeUninit::<Event>::uninit(); 64];
        loop {
            let now = Instant::now();
            let is_retired = |link: &Link| link.health_word().is_retired();
            for link in self.registry.revoke_due(now, most_with_deadline(), is_retired) {
                self.forget(Some(link));
            }
            let left =
                self.registry.next_deadline().map(|next| next.saturating_duration_since(now));
            // Deadlines too far for the kernel's clock are looked at later.
            let timeout = left.map(|left| Timespec {
                tv_sec: left.as_secs().min(1 << 20) as i64,
                tv_nsec: left.subsec_nanos().into(),
            });
            let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                // Does not happen with open descriptors of this process.
                Err(_) => return,
            };
            for event in ready {
                let key = event.data.u64();
                if key == BELL {
                    // Pairs with the drop of the watcher, which reads nothing of this thread's.
                    if self.stopped.load(Ordering::Acquire) {
                        return;
                    }
                } else if let Some(link) = self.registry.find(key / 2) {
                    self.ended(&link, key, event.flags);
                }
            }
        }
    }

    /// Handles the end of a peer's socket or process.
    fn ended(&self, link: &Arc<Link>, key: u64, flags: EventFlags) {
        let has_ended = key & 1 == 1;
        if !has_ended && !flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        let is_news = link.take_news();
        if has_ended {
            link.die();
        } else {
            link.hang_up();
        }
        if is_news && link.peer_left() {
            tracing::debug!(peer = link.peer_name(), "the peer has closed the link");
        } else if is_news {
            let exit = link.identity().exit();
            tracing::warn!(peer = link.peer_name(), exit, "the peer has died");
        }
        let borrower = link.borrower();
        let end = match has_ended {
            false if link.peer_released() => PeerEnd::Released,
            // Without a limit, only the end of the process ends the loans.
            false if self.registry.limits() || link.identity().pidfd().is_some() => PeerEnd::Cut,
            _ => PeerEnd::Process,
        };
        // This thread computes its sleep next.
        let now = Instant::now();
        self.forget(self.registry.ended(borrower, link.health_word(), end, now));
    }

    /// Gives the loans of a link's peer a deadline. Returns whether the thread has to look at it.
    fn limit(&self, link: &Link) -> bool {
        self.registry.limit(link.borrower(), Instant::now(), most_with_deadline)
    }

    /// Wakes the thread, which then looks at the deadlines.
    fn wake(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Stops watching a link that the registry dropped.
    fn forget(&self, gone: Option<Arc<Link>>) {
        if let Some(link) = gone {
            let _ = epoll::delete(&self.epoll, link.socket());
            if let Some(pidfd) = link.identity().pidfd() {
                let _ = epoll::delete(&self.epoll, pidfd);
            }
        }
    }
}
