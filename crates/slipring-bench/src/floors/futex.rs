//! Messages each way between two threads that sleep in `FUTEX_WAIT`, with or without a limit. Neither spins on the word.
//!
//! To force the sleep, each side idles `GAP` between receiving and sending. By then the other side sleeps. Without the gap
//! the answer is often there before the wait begins, and the figure has two modes. Floor and subject idle alike, and the
//! harness takes twice `GAP` out of each round trip.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};

use crate::Outcome;
use crate::exchange::{Exchange, Setup, Turn, Turns};
use crate::memory::{Mapping, PAGE};
use crate::payload;

/// The time that a side idles before it sends.
pub const GAP: Duration = Duration::from_micros(50);

/// The limit of a sleep that has one. The answer comes before.
const LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Idles for `GAP` without a system call, while the peer falls asleep.
pub fn idle() {
    let start = Instant::now();
    while start.elapsed() < GAP {}
}

/// One side. Word 0 of its segment is the futex, which holds the number of its last message. The payload follows.
pub struct Futex {
    mine: Mapping,
    theirs: Mapping,
    bytes: usize,
    /// Whether each side idles before it sends, so that the other sleeps.
    idles: bool,
    /// How long a sleep may take.
    limit: Option<Timespec>,
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

/// Where the payload begins.
const PAYLOAD: usize = 8;

impl Futex {
    /// Opens a side that idles before it sends.
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::with(setup, true, None)
    }

    /// Opens a side that idles before it sends, and sleeps for 10 ms at a time.
    pub fn limited(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::with(setup, true, Some(LIMIT))
    }

    /// Opens a side that answers at once.
    pub fn prompt(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::with(setup, false, None)
    }

    fn with(setup: &Setup, idles: bool, limit: Option<Timespec>) -> Outcome<Box<dyn Exchange>> {
        let (mine, theirs) = setup.segments(PAGE, false)?;
        let (salts, bytes) = (setup.role.salts(), setup.bytes);
        let futex = Futex { mine, theirs, bytes, idles, limit, sent: 0, received: 0, salts };
        Ok(Box::new(Turns(futex)))
    }

    fn wait(&self) -> Outcome<()> {
        let flags = futex::Flags::empty();
        match futex::wait(self.theirs.futex(0), flags, self.received as u32, self.limit.as_ref()) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn arrived(&self) -> bool {
        // Pairs with the Release store in `send`: the payload is visible with its number.
        self.theirs.futex(0).load(Ordering::Acquire) != self.received as u32
    }
}

impl Turn for Futex {
    fn send(&mut self) -> Outcome<()> {
        if self.idles {
            idle();
        }
        let seed = payload::seed(self.sent, self.salts.0);
        for word in 0..self.bytes / 8 {
            // Relaxed: the store of the number below publishes the payload.
            let value = seed.wrapping_add(word as u64);
            self.mine.word(PAYLOAD + 8 * word).store(value, Ordering::Relaxed);
        }
        self.sent += 1;
        let number = self.mine.futex(0);
        // Pairs with the Acquire load in `arrived`.
        number.store(self.sent as u32, Ordering::Release);
        futex::wake(number, futex::Flags::empty(), 1)?;
        Ok(())
    }

    fn receive(&mut self) -> Outcome<()> {
        // The message of a peer that idles is not there yet.
        if self.idles {
            self.wait()?;
        }
        while !self.arrived() {
            self.wait()?;
        }
        let words = (0..self.bytes / 8).map(|word| self.theirs.watch(PAYLOAD + 8 * word).load());
        let got = words.fold(0, u64::wrapping_add);
        let seed = payload::seed(self.received, self.salts.1);
        payload::check(got, payload::expected(self.bytes, seed), self.received)?;
        self.received += 1;
        Ok(())
    }
}
