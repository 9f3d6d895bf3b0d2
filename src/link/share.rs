//! The share of a thread's time that the socket of one link may take, where the thread serves several peers.
//!
//! A peer decides how many packets it sends and how much memory they announce: the kernel counts the pages of a GiB in some
//! 10 ms. Each packet costs its link the time that this thread computes for it, from an allowance that grows with the
//! clock. A link that has
//! spent more than it had rests: its socket is not read until the allowance is positive, and a record that names memory
//! which has not come waits in the ring. Other records before it, and other links, go on.
//!
//! 1. One packet, or one part of a long segment, may overdraw the allowance. So a segment of any length comes through.
//! 2. One look takes about a millisecond, also where other processes leave this thread so little of its CPU that the
//!    allowance grows as fast as it is spent.
//! 3. Only packets cost anything. A link whose socket is silent reads no clock.

use std::time::{Duration, Instant};

/// The most that a link saves up, in nanoseconds: the time for segments of some 400 MiB.
const MOST: i64 = 4_000_000;

/// The part of the time by which the allowance grows: one in so many nanoseconds.
const PART: i64 = 4;

/// The time after which a look ends, in nanoseconds.
const LOOK: i64 = 1_000_000;

/// A packet that announces nothing, in nanoseconds.
pub(crate) const PACKET: i64 = 2_000;

/// Returns the time that this thread has computed, in nanoseconds. The time in which other threads had its CPU costs a
/// peer nothing.
pub(crate) fn computed() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// The allowance of one link.
#[derive(Debug)]
pub(crate) struct SocketShare {
    /// In nanoseconds. The link rests while it is not positive.
    left: i64,
    /// The cost of this look, in nanoseconds.
    look: i64,
    /// When the allowance grew last.
    at: Instant,
}

impl SocketShare {
    pub(crate) fn new() -> Self {
        Self { left: MOST, look: 0, at: Instant::now() }
    }

    /// Begins a look at the socket.
    pub(crate) fn begin_look(&mut self) {
        self.look = 0;
    }

    /// Takes a cost off the allowance.
    pub(crate) fn spend(&mut self, cost: i64, now: impl FnOnce() -> Instant) {
        if self.left <= cost {
            self.grow(now());
        }
        self.left = self.left.saturating_sub(cost);
        self.look = self.look.saturating_add(cost);
    }

    /// Returns whether the link rests, or this look has taken long enough.
    pub(crate) fn rests(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.left <= 0 {
            self.grow(now());
        }
        self.left <= 0 || self.look >= LOOK
    }

    /// Returns the time until the allowance is positive. `None`: it is.
    pub(crate) fn rest(&mut self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        if self.left <= 0 {
            self.grow(now());
        }
        let lacks = u64::try_from(1 - self.left).ok().filter(|lacks| *lacks > 0)?;
        Some(Duration::from_nanos(lacks.saturating_mul(PART as u64)))
    }

    fn grow(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_nanos();
        let grown = i64::try_from(passed).unwrap_or(i64::MAX) / PART;
        self.left = self.left.saturating_add(grown).min(MOST);
        self.at = now;
    }
}

#[cfg(test)]
mod tests;
