//! Waiting for the peer: watch for a while, then sleep.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::parking::Sleeper;
use crate::transport::link::Link;
use crate::transport::options::Spin;
use crate::transport::receiver::TryRecvError;
use crate::transport::watching::Watching;

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
    watching: Watching,
    /// When the wait began, of which what comes piece by piece ends parts.
    began: Instant,
    /// How often the waiter went to sleep.
    pub(super) sleeps: u64,
}

impl Waiter {
    pub(super) fn new(sleeper: Sleeper, spin: Spin) -> Self {
        Self { sleeper, watching: Watching::new(spin), began: Instant::now(), sleeps: 0 }
    }

    /// Whether this half watches at all before it sleeps.
    #[inline(always)]
    pub(super) fn watches(&self) -> bool {
        !self.watching.is_never()
    }

    /// Whether this half wants what is under way, and sleeps until that is told of.
    pub(super) fn set_eager(&mut self, is_eager: bool) {
        self.sleeper.set_eager(is_eager);
        self.watching.is_coming = false;
    }

    /// What this half waits for has begun to come; from now on it sleeps until all of it has.
    pub(super) fn comes(&mut self) {
        self.sleeper.set_eager(false);
        self.watching.is_coming = true;
    }

    /// Says that this half is about to sleep on the socket; see [`Sleeper::arm`].
    pub(super) fn arm(&mut self, link: &Link) {
        self.sleeper.arm(&link.own);
        self.sleeps += 1;
    }

    /// Says that this half is awake again.
    pub(super) fn disarm(&mut self, link: &Link) {
        self.sleeper.unpark(&link.own);
    }

    /// Says that this half will never wait again.
    pub(super) fn leave(&mut self, link: &Link) {
        self.sleeper.leave(&link.own);
    }

    /// Waits until `ready`, or until the link is no longer alive. With a `slice`, for what nobody
    /// rings for, it also returns after watching or sleeping for so long.
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
        if self.watches() {
            for _ in 0..LOOKS {
                if ready() {
                    return Ok(());
                }
            }
        }
        let start = Instant::now();
        if !self.watching.is_coming {
            self.began = start;
        }
        let began = self.began;
        let passed = |now: Instant| deadline.is_some_and(|deadline| now >= deadline);
        let timed_out = |now: Instant| -> Result<()> {
            Err(Error::new(ErrorKind::TimedOut { after: now - began }))
        };
        let mut now = start;
        while self.watching.goes_on(start, now) {
            for _ in 0..LOOKS_A_READING {
                if ready() {
                    self.watching.ended(now - start);
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            now = Instant::now();
            if passed(now) {
                self.watching.ended(Duration::MAX);
                return timed_out(now);
            }
            if slice.is_some_and(|slice| now - start >= slice) {
                return Ok(());
            }
        }
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
            let now = Instant::now();
            if !done && passed(now) {
                self.sleeper.unpark(&link.own);
                self.watching.ended(Duration::MAX);
                return timed_out(now);
            }
            if done || slice.is_some() {
                self.sleeper.unpark(&link.own);
                // What did not come within the slice a longer watch would not have caught.
                if done || slice.is_none_or(|slice| now - start >= slice) {
                    self.watching.ended(if done { now - start } else { Duration::MAX });
                }
                return slept;
            }
        }
    }
}
