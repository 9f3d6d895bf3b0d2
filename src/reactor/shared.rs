//! What handles on any thread share with the loop: the queue of commands, and how to wake it.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, ErrorKind, Result};
use crate::reactor::commands::Command;
use crate::reactor::queue::Queue;
use crate::shm::fork::Generation;

/// The key of the descriptor that wakes the loop; links and listeners have others.
pub(super) const BELL: u64 = 0;

thread_local! {
    /// The loop whose turn this thread is in, by its [`Shared::number`].
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// The side of a loop that is reached from every thread.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) epoll: OwnedFd,
    bell: OwnedFd,
    queue: Queue<Command>,
    /// Keys of links and listeners, never used twice.
    next_key: AtomicU64,
    /// Names the loop within this process.
    number: u64,
    generation: Generation,
}

impl Shared {
    pub(super) fn new() -> Result<Arc<Self>> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|errno| Error::os("epoll_create1", errno))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(|errno| Error::os("eventfd", errno))?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)
            .map_err(|errno| Error::os("epoll_ctl", errno))?;
        Ok(Arc::new(Self {
            epoll,
            bell,
            queue: Queue::new(),
            next_key: AtomicU64::new(BELL + 1),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            generation: Generation::current()?,
        }))
    }

    /// A key that nothing else of this loop has.
    pub(super) fn key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// The process that the loop belongs to: a forked child shares its descriptors, and nothing else.
    pub(super) fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Gives the loop something to do. A loop that is gone refuses it, on this thread.
    pub(super) fn post(&self, command: Command) {
        if !self.generation.is_current() {
            // Some thread of the parent's may have held the lock.
            command.refuse(&ErrorKind::Forked);
            return;
        }
        match self.queue.push(command) {
            Err(command) => command.refuse(&ErrorKind::ReactorStopped),
            Ok(true) if RUNNING.get() != self.number => {
                let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
            }
            Ok(_) => {}
        }
    }

    /// Whether there may be commands.
    #[inline(always)]
    pub(super) fn is_pending(&self) -> bool {
        self.queue.is_pending()
    }

    /// Whether nobody is left to command, and nothing was.
    pub(super) fn is_abandoned(&self, nobody: impl FnOnce() -> bool) -> bool {
        self.queue.is_abandoned(nobody)
    }

    /// Everything that was posted.
    pub(super) fn take(&self) -> Vec<Command> {
        self.queue.take()
    }

    /// The loop is gone; gives what was left.
    pub(super) fn stop(&self) -> Vec<Command> {
        self.queue.stop()
    }

    /// From now on this thread is in a turn of the loop, until the guard is dropped.
    pub(super) fn enter(&self) -> Turn {
        Turn { before: RUNNING.replace(self.number) }
    }
}

/// A turn of a loop on this thread.
pub(super) struct Turn {
    before: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        RUNNING.set(self.before);
    }
}
