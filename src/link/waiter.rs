//! Waiting for the peer: a half polls for a while, then sleeps.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::link::link::Link;
use crate::wake::{Sleeper, Spin, SpinPolicy};

/// Looks without reading the clock: about a microsecond.
const LOOKS: u32 = 1000;

/// Looks between two readings of the clock.
const LOOKS_A_READING: u32 = 64;

/// How one half of a connection waits for one thing.
#[derive(Debug)]
pub(crate) struct Waiter {
    sleeper: Sleeper,
    spin: SpinPolicy,
    /// When the wait began. A message that comes piece by piece is one wait.
    began: Instant,
    /// Pieces of a long message are coming.
    is_coming: bool,
    /// How often the waiter went to sleep.
    pub(crate) sleeps: u64,
}

impl Waiter {
    pub(crate) fn new(sleeper: Sleeper, spin: Spin) -> Self {
        let (began, spin) = (Instant::now(), SpinPolicy::new(spin));
        Self { sleeper, spin, began, is_coming: false, sleeps: 0 }
    }

    /// Returns whether the next wait polls before it sleeps.
    #[inline(always)]
    pub(crate) fn polls(&self) -> bool {
        self.spin.polls()
    }

    /// Returns whether this half ever polls.
    pub(crate) fn may_poll(&self) -> bool {
        !self.spin.is_never()
    }

    /// A poll has found something within about a microsecond.
    #[inline(always)]
    pub(crate) fn caught(&mut self) {
        self.spin.caught();
    }

    /// Takes in this half's position in its ring; see [`Sleeper::progress`].
    #[inline(always)]
    pub(crate) fn progress(&mut self, link: &Link, position: u64) {
        self.sleeper.progress(&link.own, position);
    }

    /// Sets whether the peer wakes this half already for a long message that is being written.
    pub(crate) fn set_eager(&mut self, is_eager: bool) {
        self.sleeper.set_eager(is_eager);
        self.is_coming = false;
    }

    /// The message that this half waits for has begun to come. From now on it sleeps until all of it is there.
    pub(crate) fn comes(&mut self) {
        self.sleeper.set_eager(false);
        self.is_coming = true;
    }

    /// Says that this half is about to sleep on the socket; see [`Sleeper::arm`].
    #[must_use]
    pub(crate) fn arm(&mut self, link: &Link) -> bool {
        self.sleeps += 1;
        self.sleeper.arm(&link.own)
    }

    /// Says that this half is awake again.
    pub(crate) fn disarm(&mut self, link: &Link) {
        self.sleeper.unpark(&link.own);
    }

    /// Says that this half never waits again.
    pub(crate) fn leave(&mut self, link: &Link) {
        self.sleeper.leave(&link.own);
    }

    /// Waits until `ready`, or until the link is no longer alive. With a `slice`, for events that
    /// nobody rings for, it also returns after polling or sleeping for so long.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]: the deadline passed first.
    pub(crate) fn wait(
        &mut self,
        link: &Link,
        deadline: Option<Instant>,
        slice: Option<Duration>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let mut ready = || ready() || !link.is_alive();
        let polls = self.spin.polls();
        if polls {
            for _ in 0..LOOKS {
                if ready() {
                    self.spin.caught();
                    return Ok(());
                }
            }
        }
        let start = Instant::now();
        if !self.is_coming {
            self.began = start;
        }
        let began = self.began;
        let passed = |now: Instant| deadline.is_some_and(|deadline| now >= deadline);
        let timed_out = |now: Instant| -> Result<()> {
            Err(Error::new(ErrorKind::TimedOut { after: now - began }))
        };
        let mut now = start;
        while polls && now - start < self.spin.limit() {
            for _ in 0..LOOKS_A_READING {
                if ready() {
                    self.spin.caught();
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            now = Instant::now();
            if passed(now) {
                return timed_out(now);
            }
            if slice.is_some_and(|slice| now - start >= slice) {
                return Ok(());
            }
        }
        self.spin.slept();
        loop {
            let bell = self.sleeper.bell();
            let slept = self.sleeper.sleep(&link.own, &link.peer, &mut ready, |rung| {
                self.sleeps += 1;
                let slice = slice.map(|slice| start + slice);
                let until = deadline.into_iter().chain(slice).min();
                link.sleep(bell, rung, until)
            });
            let slept = slept.unwrap_or(Ok(()));
            let done = slept.is_err() || ready();
            if !done && deadline.is_some() {
                let now = Instant::now();
                if passed(now) {
                    self.sleeper.unpark(&link.own);
                    return timed_out(now);
                }
            }
            if done || slice.is_some() {
                self.sleeper.unpark(&link.own);
                return slept;
            }
        }
    }
}
