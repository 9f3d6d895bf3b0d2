//! One cache line each way: the least that two cores can do to answer each other.
//!
//! Each side has a 64-byte line at the start of its own page. It writes one word of it each round trip, and polls the
//! other side's word. `line` maps both pages writable on both sides. `line-ro` maps the peer's page read-only, from a
//! sealed segment.
//!
//! The word is its own payload: it differs in every message, and the receiver checks the sum of a batch.

use std::sync::atomic::Ordering;

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::memory::{Mapping, PAGE};
use crate::payload;

/// One side.
pub struct Line {
    mine: Mapping,
    theirs: Mapping,
    role: Role,
    /// The last word that each direction carried.
    sent: u64,
    received: u64,
}

/// Odd, so that successive words differ in high and low bits and none repeats within 2^64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Line {
    /// Opens a side over segments that both processes map writable.
    pub fn writable(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Line::open(setup, false)?))
    }

    /// Opens a side over segments that the reader maps read-only.
    pub fn sealed(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Line::open(setup, true)?))
    }

    fn open(setup: &Setup, one_writer: bool) -> Outcome<Line> {
        let (mine, theirs) = setup.segments(PAGE, one_writer)?;
        Ok(Line { mine, theirs, role: setup.role, sent: 0, received: 0 })
    }

    fn exchange(&mut self, count: u64) -> Outcome<()> {
        let own = self.mine.word(0);
        let peer = self.theirs.watch(0);
        let (mut sent, mut received, mut sum) = (self.sent, self.received, 0_u64);
        let leads = self.role == Role::Leader;
        for _ in 0..count {
            if leads {
                sent = sent.wrapping_add(STEP);
                // Pairs with the fence of `until`. It publishes the word alone.
                own.store(sent, Ordering::Release);
            }
            received = peer.until(|word| word != received);
            sum = sum.wrapping_add(received);
            if !leads {
                sent = sent.wrapping_add(STEP);
                // As above.
                own.store(sent, Ordering::Release);
            }
        }
        // The k-th of `count` words is `before + k * STEP`.
        let triangle = count.wrapping_mul(count.wrapping_add(1)) / 2;
        let expected = self.received.wrapping_mul(count).wrapping_add(STEP.wrapping_mul(triangle));
        payload::check(sum, expected, count)?;
        (self.sent, self.received) = (sent, received);
        Ok(())
    }
}

impl Exchange for Line {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        self.exchange(count)
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        self.exchange(count)
    }
}
