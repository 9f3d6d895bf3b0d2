//! 8 bytes each way between two loops that sleep in `epoll_wait` and are woken by eventfds. The bytes lie in shared
//! memory. Both sides idle as in [`futex`], so that the other one sleeps.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::Outcome;
use crate::exchange::{Exchange, Setup, receive_fd, send_fd};
use crate::floors::futex;
use crate::memory::{Mapping, PAGE};
use crate::payload;

/// A loop over one descriptor.
pub struct Loop {
    epoll: OwnedFd,
}

impl Loop {
    /// Makes a loop.
    pub fn new(fd: impl AsFd) -> Outcome<Loop> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Loop { epoll })
    }

    /// Sleeps until the descriptor is readable.
    pub fn sleep(&self) -> Outcome<()> {
        let mut events = [MaybeUninit::<Event>::uninit(); 1];
        match epoll::wait(&self.epoll, &mut events, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// One side. Word 0 of its segment is the number of its last message, word 1 the payload.
pub struct Events {
    mine: Mapping,
    theirs: Mapping,
    /// The peer writes to it, and this side's loop waits for it.
    bell: OwnedFd,
    their_bell: OwnedFd,
    events: Loop,
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

impl Events {
    /// Opens a side.
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let (mine, theirs) = setup.segments(PAGE, false)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        send_fd(setup.socket, 0, bell.as_fd())?;
        let (_, their_bell) = receive_fd(setup.socket)?;
        let events = Loop::new(&bell)?;
        let salts = setup.role.salts();
        Ok(Box::new(Events { mine, theirs, bell, their_bell, events, sent: 0, received: 0, salts }))
    }

    fn send(&mut self) -> Outcome<()> {
        // Relaxed: the store of the number below publishes the payload.
        self.mine.word(8).store(payload::seed(self.sent, self.salts.0), Ordering::Relaxed);
        self.sent += 1;
        // Pairs with the Acquire load in `receive`: the payload is visible with its number.
        self.mine.futex(0).store(self.sent as u32, Ordering::Release);
        rustix::io::write(&self.their_bell, &1u64.to_ne_bytes())?;
        Ok(())
    }

    fn receive(&mut self) -> Outcome<()> {
        let number = self.theirs.futex(0);
        // Pairs with the Release store in `send`.
        while number.load(Ordering::Acquire) == self.received as u32 {
            self.events.sleep()?;
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        let got = self.theirs.watch(8).load();
        payload::check(got, payload::seed(self.received, self.salts.1), self.received)?;
        self.received += 1;
        Ok(())
    }
}

impl Exchange for Events {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            futex::idle();
            self.send()?;
            self.receive()?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.receive()?;
            futex::idle();
            self.send()?;
        }
        Ok(())
    }
}
