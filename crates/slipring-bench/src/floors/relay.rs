//! Plain shared buffers, filled and summed in place (`rotate`) or copied in and out (`memcpy`).
//!
//! Each side owns a line with the number of its last message, and `period` buffers that it writes in turn. Lines that the
//! other core has just read are slow to write, so the period decides the speed. The harness measures all periods, and the
//! best of them is the floor.
//!
//! ```text
//! own segment:   page: number of the last message | buffer 0 | buffer 1 | … up to 64 MiB
//! ```
//!
//! Invariant: the two sides strictly alternate. The owner writes a buffer between the answer to its last message and its
//! next message. The peer reads it between that message's number and the peer's answer.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::memory::{Mapping, PAGE};
use crate::payload;

/// The most bytes that either side rotates through.
const FOOTPRINT: usize = 64 << 20;

/// Returns the periods 1, 2, 4, … up to 64 MiB of buffers.
pub fn periods(bytes: usize) -> Vec<u64> {
    (0..).map(|shift| 1 << shift).take_while(|count| *count as usize * bytes <= FOOTPRINT).collect()
}

struct Relay {
    mine: Mapping,
    theirs: Mapping,
    bytes: usize,
    period: usize,
    /// Messages that this side has sent, and received.
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

impl Relay {
    fn open(setup: &Setup, one_writer: bool) -> Outcome<Relay> {
        let len = PAGE + FOOTPRINT.max(setup.bytes);
        let (mine, theirs) = setup.segments(len, one_writer)?;
        let salts = setup.role.salts();
        Ok(Relay { mine, theirs, bytes: setup.bytes, period: 1, sent: 0, received: 0, salts })
    }

    /// Returns where message `number` begins in its sender's segment.
    fn start(&self, number: u64) -> usize {
        PAGE + (number as usize & (self.period - 1)) * self.bytes
    }

    /// Sends a message. `write` gets its buffer and seed.
    fn send(&mut self, write: impl FnOnce(&mut [u8], u64)) {
        let start = self.start(self.sent);
        // SAFETY: it is this side's turn (see the invariant). The peer has answered, hence read, all earlier messages, and
        // reads this buffer only after the store below.
        let buffer = unsafe { self.mine.bytes_mut(start..start + self.bytes) };
        write(buffer, payload::seed(self.sent, self.salts.0));
        self.sent += 1;
        // Pairs with the fence of `until` in `receive`: the peer sees the filled buffer with its number.
        self.mine.word(0).store(self.sent, Ordering::Release);
    }

    /// Receives a message. `read` gets its buffer and seed.
    fn receive(&mut self, read: impl FnOnce(&[u8], u64) -> Outcome<()>) -> Outcome<()> {
        let number = self.received;
        self.theirs.watch(0).until(|last| last > number);
        self.received += 1;
        let start = self.start(number);
        // SAFETY: the peer has published this message and writes none of its buffers before this side's next `send`, which
        // borrows `self` mutably.
        let buffer = unsafe { self.theirs.bytes(start..start + self.bytes) };
        read(buffer, payload::seed(number, self.salts.1))
    }
}

/// Every byte written in place, every byte summed in place.
pub struct Rotate(Relay);

impl Rotate {
    /// Opens a side over segments that both processes map writable.
    pub fn writable(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Rotate(Relay::open(setup, false)?)))
    }

    /// Opens a side over segments that the reader maps read-only.
    pub fn sealed(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Rotate(Relay::open(setup, true)?)))
    }

    fn sum(&mut self) -> Outcome<()> {
        let number = self.0.received;
        self.0.receive(|bytes, seed| {
            payload::check(payload::sum(bytes), payload::expected(bytes.len(), seed), number)
        })
    }
}

impl Exchange for Rotate {
    fn tune(&mut self, variant: u64) {
        self.0.period = variant as usize;
    }

    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.0.send(payload::fill);
            self.sum()?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.sum()?;
            self.0.send(payload::fill);
        }
        Ok(())
    }
}

/// Copied from private memory into the buffer, and from the buffer into private memory.
pub struct Memcpy {
    relay: Relay,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Whether every word is written and summed, in place of a few.
    is_whole: bool,
}

impl Memcpy {
    /// Opens a side that writes and checks a few words of each message.
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::side(setup, false)
    }

    /// Opens a side that fills each message in private memory, and sums what it has copied out.
    pub fn filled(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::side(setup, true)
    }

    fn side(setup: &Setup, is_whole: bool) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Memcpy {
            relay: Relay::open(setup, false)?,
            outgoing: vec![1; setup.bytes],
            incoming: vec![0; setup.bytes],
            is_whole,
        }))
    }

    fn send(&mut self) {
        self.relay.send(|bytes, seed| {
            match self.is_whole {
                true => payload::fill(&mut self.outgoing, seed),
                false => payload::mark(&mut self.outgoing, seed),
            }
            bytes.copy_from_slice(&self.outgoing);
        });
    }

    fn receive(&mut self) -> Outcome<()> {
        let number = self.relay.received;
        self.relay.receive(|bytes, seed| {
            self.incoming.copy_from_slice(bytes);
            if !self.is_whole {
                return payload::check_marks(&self.incoming, seed, number);
            }
            let (sum, len) = (payload::sum(&self.incoming), self.incoming.len());
            payload::check(sum, payload::expected(len, seed), number)
        })
    }
}

impl Exchange for Memcpy {
    fn tune(&mut self, variant: u64) {
        self.relay.period = variant as usize;
    }

    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.send();
            self.receive()?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.receive()?;
            self.send();
        }
        Ok(())
    }
}
