//! 8 bytes each way, both sides really asleep in `FUTEX_WAIT` when the message comes.
//!
//! Nobody spins on the word. To force the sleep, each side idles `GAP` between having received and
//! sending, by which time the other has gone to sleep; without it the answer is often there before
//! the wait begins, and the figure is bimodal. `Idle` is the same for floor and subject, and the
//! harness takes it out of both: twice `GAP` a round trip.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::memory::{Mapping, PAGE};
use crate::payload::{self, FROM_FOLLOWER, FROM_LEADER};

/// How long a side idles before it sends.
pub const GAP: Duration = Duration::from_micros(50);

/// Lets the peer fall asleep, without a system call.
pub fn idle() {
    let start = Instant::now();
    while start.elapsed() < GAP {}
}

/// Word 0 of a side's line is the futex (the number of its last message), word 1 the payload.
pub struct Futex {
    mine: Mapping,
    theirs: Mapping,
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

impl Futex {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let (mine, theirs) = setup.segments(PAGE, false)?;
        let salts = match setup.role {
            Role::Leader => (FROM_LEADER, FROM_FOLLOWER),
            Role::Follower => (FROM_FOLLOWER, FROM_LEADER),
        };
        Ok(Box::new(Futex { mine, theirs, sent: 0, received: 0, salts }))
    }

    fn send(&mut self) -> Outcome<()> {
        // Relaxed: published by the number below.
        self.mine.word(8).store(payload::seed(self.sent, self.salts.0), Ordering::Relaxed);
        self.sent += 1;
        let number = self.mine.futex(0);
        // Pairs with the Acquire load in `receive`: the payload is visible with its number.
        number.store(self.sent as u32, Ordering::Release);
        futex::wake(number, futex::Flags::empty(), 1)?;
        Ok(())
    }

    fn receive(&mut self) -> Outcome<()> {
        let number = self.theirs.futex(0);
        loop {
            match futex::wait(number, futex::Flags::empty(), self.received as u32, None) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // Pairs with the Release store in `send`.
            if number.load(Ordering::Acquire) != self.received as u32 {
                break;
            }
        }
        let got = self.theirs.watch(8).load();
        payload::check(got, payload::seed(self.received, self.salts.1), self.received)?;
        self.received += 1;
        Ok(())
    }
}

impl Exchange for Futex {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            idle();
            self.send()?;
            self.receive()?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.receive()?;
            idle();
            self.send()?;
        }
        Ok(())
    }
}
