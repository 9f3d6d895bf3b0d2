//! The part of a loop that every thread reaches: the queue of commands, and the bell that wakes the loop.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, ErrorKind, Result};
use crate::reactor::command_queue::CommandQueue;
use crate::shm::fork::Generation;

/// The key of the bell. Links and listeners have other keys.
const BELL: u64 = 0;

thread_local! {
    /// The loop that this thread runs, by its [`Mailbox::number`].
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// The part of a loop that every thread reaches.
#[derive(Debug)]
pub(super) struct Mailbox<C> {
    epoll: OwnedFd,
    bell: OwnedFd,
    queue: CommandQueue<C>,
    /// The key of the next link or listener. No key is used twice.
    next_key: AtomicU64,
    /// The loop's number in this process.
    number: u64,
    generation: Generation,
}

impl<C> Mailbox<C> {
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
            queue: CommandQueue::new(),
            next_key: AtomicU64::new(BELL + 1),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            generation: Generation::current()?,
        }))
    }

    /// Adds `source` to the loop's epoll set. Returns its key.
    pub(super) fn watch(&self, source: impl AsFd, events: EventFlags) -> Result<u64> {
        let key = self.key();
        epoll::add(&self.epoll, source, EventData::new_u64(key), events)
            .map_err(|errno| Error::os("epoll_ctl", errno))?;
        Ok(key)
    }

    /// Returns a key that no other source has.
    pub(super) fn key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether `key` is the bell's.
    pub(super) fn is_bell(key: u64) -> bool {
        key == BELL
    }

    /// Returns the process that has the loop. A forked child shares the descriptors, and nothing else.
    pub(super) fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Hands the loop a command, and wakes the loop unless this thread runs it. Returns the command, and why, if the
    /// loop cannot take it.
    pub(super) fn send(&self, command: C) -> Result<(), (C, ErrorKind)> {
        if !self.generation.is_current() {
            // A thread of the parent may have held the lock when it forked.
            return Err((command, ErrorKind::Forked));
        }
        match self.queue.push(command) {
            Err(command) => return Err((command, ErrorKind::ReactorStopped)),
            Ok(true) if RUNNING.get() != self.number => {
                let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
            }
            Ok(_) => {}
        }
        Ok(())
    }

    /// Returns whether commands may wait.
    #[inline(always)]
    pub(super) fn is_pending(&self) -> bool {
        self.queue.is_pending()
    }

    /// Returns whether no handle is left, as `nobody` says, and no command either.
    pub(super) fn is_abandoned(&self, nobody: impl FnOnce() -> bool) -> bool {
        self.queue.is_abandoned(nobody)
    }

    /// Takes every command.
    pub(super) fn take(&self) -> Vec<C> {
        self.queue.take()
    }

    /// Ends the mailbox: it admits no further command. Returns the commands that it held.
    pub(super) fn stop(&self) -> Vec<C> {
        self.queue.stop()
    }

    /// Marks this thread as the one that runs the loop, until the caller drops the guard.
    pub(super) fn enter(&self) -> Turn {
        Turn { before: RUNNING.replace(self.number) }
    }
}

impl<C> AsFd for Mailbox<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
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
