//! Waiting for the peer: watch for a while, then sleep.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::transport::link::Link;
use crate::transport::receiver::TryRecvError;
use crate::wake::{Sleeper, Spin, SpinPolicy};

/// Looks without reading the clock: about a microsecond.
const LOOKS: u32 = 1000;

/// Looks between two readings of the clock.
const LOOKS_A_READING: u32 = 64;

/// The moment after `timeout`, or one that nobody lives to see.
pub(super) fn after(timeout: Duration) -> Instant {
    const LIFETIME: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + LIFETIME)
}

/// How long to wait for a message.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    None,
    Until(Instant),
    Forever,
}

/// How long whoever does not wait may be kept by a peer that has packets taken.
const MOMENT: Duration = Duration::from_millis(100);

impl Patience {
    /// Whether there is time left for somebody who began to look at `start`.
    pub(super) fn check(self, start: Instant) -> Result<(), TryRecvError> {
        match self {
            Self::None if start.elapsed() >= MOMENT => Err(TryRecvError::Empty),
            Self::Until(deadline) if Instant::now() >= deadline => {
                Err(Error::from(ErrorKind::TimedOut { after: start.elapsed() }).into())
            }
            _ => Ok(()),
        }
    }
}

/// How one half of a connection waits for one thing.
#[derive(Debug)]
pub(super) struct Waiter {
    sleeper: Sleeper,
    spin: SpinPolicy,
    /// When the wait began. A message that comes piece by piece is one wait.
    began: Instant,
    /// Pieces of a long message are coming.
    is_coming: bool,
    /// How often the waiter went to sleep.
    pub(super) sleeps: u64,
}

impl Waiter {
    pub(super) fn new(sleeper: Sleeper, spin: Spin) -> Self {
        let (began, spin) = (Instant::now(), SpinPolicy::new(spin));
        Self { sleeper, spin, began, is_coming: false, sleeps: 0 }
    }

    /// Returns whether the next wait polls before it sleeps.
    #[inline(always)]
    pub(super) fn polls(&self) -> bool {
        self.spin.polls()
    }

    /// Returns whether this half ever polls.
    pub(super) fn may_poll(&self) -> bool {
        !self.spin.is_never()
    }

    /// A poll has found something within about a microsecond.
    #[inline(always)]
    pub(super) fn caught(&mut self) {
        self.spin.caught();
    }

    /// Takes in this half's position in its ring; see [`Sleeper::progress`].
    #[inline(always)]
    pub(super) fn progress(&mut self, link: &Link, position: u64) {
        self.sleeper.progress(&link.own, position);
    }

    /// Sets whether the peer wakes this half already for a long message that is being written.
    pub(super) fn set_eager(&mut self, is_eager: bool) {
        self.sleeper.set_eager(is_eager);
        self.is_coming = false;
    }

    /// The message that this half waits for has begun to come. From now on it sleeps until all of it is there.
    pub(super) fn comes(&mut self) {
        self.sleeper.set_eager(false);
        self.is_coming = true;
    }

    /// Says that this half is about to sleep on the socket; see [`Sleeper::arm`].
    #[must_use]
    pub(super) fn arm(&mut self, link: &Link) -> bool {
        self.sleeps += 1;
        self.sleeper.arm(&link.own)
    }

    /// Says that this half is awake again.
    pub(super) fn disarm(&mut self, link: &Link) {
        self.sleeper.unpark(&link.own);
    }

    /// Says that this half never waits again.
    pub(super) fn leave(&mut self, link: &Link) {
        self.sleeper.leave(&link.own);
    }

    /// Waits until `ready`, or until the link is no longer alive. With a `slice`, for events that
    /// nobody rings for, it also returns after polling or sleeping for so long.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]: the deadline passed first.
    pub(super) fn wait(
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
