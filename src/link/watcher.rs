//! The watcher: a thread that sleeps until a peer ends.
//!
//! Two things can end: the peer's side of the socket (the peer closed it, or its last process died), and the peer's
//! process (its forked child may hold the socket open).
//!
//! 1. The thread watches both of each link, edge-triggered. So data on the socket does not wake it, and an end wakes it
//!    once.
//! 2. The watcher holds every link of its context, also one without a session, while the peer reads its loans.
//! 3. Its drop stops and joins the thread. A forked child has no such thread, and its drop does nothing.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::link::link::Link;
use crate::link::registry::LinkRegistry;
use crate::pool::Pool;
use crate::shm::fork::Generation;

/// The key of the descriptor that stops the thread; links have others.
const STOP: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    generation: Generation,
}

struct Shared {
    epoll: OwnedFd,
    stop: OwnedFd,
    registry: LinkRegistry<Link>,
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
    /// Starts the thread.
    pub(crate) fn start(pool: Pool) -> Result<Self> {
        let os = |call| move |errno: Errno| Error::os(call, errno);
        let generation = Generation::current()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os("epoll_create1"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = eventfd(0, flags).map_err(os("eventfd"))?;
        let data = EventData::new_u64(STOP);
        epoll::add(&epoll, &stop, data, EventFlags::IN).map_err(os("epoll_ctl"))?;
        let shared = Arc::new(Shared { epoll, stop, registry: LinkRegistry::new(pool) });
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
        self.shared.registry.enter(link.borrower(), link.clone());
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

    /// Notes that the session of a link is over. Drops the link unless the peer reads its loans.
    pub(crate) fn retire(&self, link: &Arc<Link>) {
        let gone = self.shared.registry.retire(link.borrower(), link.health_word());
        self.shared.forget(gone);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A forked child has no such thread, and shares the descriptors with its parent.
        let Some(thread) = self.thread.take() else { return };
        if !self.generation.is_current() {
            // In the child, the handle may name another thread with the same stack.
            std::mem::forget(thread);
            return;
        }
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut events = [MaybeUninit::<Event>::uninit(); 64];
        loop {
            let ready = match epoll::wait(&self.epoll, &mut events, None) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                // Does not happen with open descriptors of this process.
                Err(_) => return,
            };
            for event in ready {
                let key = event.data.u64();
                if key == STOP {
                    return;
                }
                if let Some(link) = self.registry.find(key / 2) {
                    self.ended(&link, key, event.flags);
                }
            }
        }
    }

    /// Handles the end of a peer's socket or process.
    fn ended(&self, link: &Arc<Link>, key: u64, flags: EventFlags) {
        if key & 1 == 1 {
            link.die();
        } else if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            link.hang_up();
        } else {
            return;
        }
        self.forget(self.registry.ended(link.borrower(), link.health_word(), key & 1 == 1));
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
