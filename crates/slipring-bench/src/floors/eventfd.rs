//! Messages each way between two threads that sleep in `read` on an eventfd each. The payload lies in shared memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};

use crate::Outcome;
use crate::exchange::{Exchange, Setup, Turn, Turns, receive_fd, send_fd};
use crate::memory::{Mapping, PAGE};
use crate::payload;

/// One side. Its segment holds the payload of its last message.
pub struct Eventfd {
    mine: Mapping,
    theirs: Mapping,
    bytes: usize,
    /// The peer writes to it when a message is there.
    bell: OwnedFd,
    their_bell: OwnedFd,
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

impl Eventfd {
    /// Opens a side that answers at once.
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let (mine, theirs) = setup.segments(PAGE, false)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
        send_fd(setup.socket, 0, bell.as_fd())?;
        let (_, their_bell) = receive_fd(setup.socket)?;
        let (bytes, salts) = (setup.bytes, setup.role.salts());
        let side = Eventfd { mine, theirs, bytes, bell, their_bell, sent: 0, received: 0, salts };
        Ok(Box::new(Turns(side)))
    }
}

impl Turn for Eventfd {
    fn send(&mut self) -> Outcome<()> {
        let seed = payload::seed(self.sent, self.salts.0);
        for word in 0..self.bytes / 8 {
            // Relaxed: the system calls `write` and `read` order the payload.
            self.mine.word(8 * word).store(seed.wrapping_add(word as u64), Ordering::Relaxed);
        }
        self.sent += 1;
        rustix::io::write(&self.their_bell, &1u64.to_ne_bytes())?;
        Ok(())
    }

    fn receive(&mut self) -> Outcome<()> {
        rustix::io::retry_on_intr(|| rustix::io::read(&self.bell, &mut [0; 8]))?;
        let words = (0..self.bytes / 8).map(|word| self.theirs.watch(8 * word).load());
        let got = words.fold(0, u64::wrapping_add);
        let seed = payload::seed(self.received, self.salts.1);
        payload::check(got, payload::expected(self.bytes, seed), self.received)?;
        self.received += 1;
        Ok(())
    }
}
