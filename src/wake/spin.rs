//! The time that a waiter polls before it sleeps.
//!
//! 1. [`Spin`] is the user's choice, [`SpinPolicy`] what a waiter makes of it.
//! 2. Only [`Spin::Adaptive`] learns: each wait that polled in vain makes the next polls rarer.

use std::time::{Duration, Instant};

/// The time that a waiter polls before it sleeps.
///
/// Waking a sleeper costs its peer a system call and both sides about 10 µs (30 to 50 µs in a virtual machine whose
/// CPU is idle). Polling costs a CPU.
///
/// # Examples
///
/// ```
/// use slipring::options::Spin;
/// use slipring::{Context, Options};
/// use std::time::Duration;
///
/// let context = Context::with_options(Options::new().spin(Spin::For(Duration::from_micros(50))))?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spin {
    /// Poll for up to `max`, but rarely if the latest polls found nothing.
    Adaptive {
        /// The longest time to poll.
        max: Duration,
    },
    /// Poll for this long, then sleep.
    For(Duration),
    /// Sleep at once.
    Never,
    /// Never sleep.
    Forever,
}

/// After a wait that polled in vain, the next waits sleep at once: after the second such wait one, then three, seven,
/// and so on up to 127. So polling in vain takes a small part of the time where it never pays.
const MOST_FAILURES: u32 = 8;

/// A [`Spin`], and how often the latest polls found something.
#[derive(Debug, Clone)]
pub(crate) struct SpinPolicy {
    /// How long to poll.
    limit: Duration,
    is_never: bool,
    is_adaptive: bool,
    /// Waits that polled in vain, less those that polled with success.
    failures: u32,
    /// Waits that are to sleep at once.
    skip: u32,
}

impl SpinPolicy {
    pub(crate) fn new(spin: Spin) -> Self {
        let (limit, is_adaptive) = match spin {
            Spin::Adaptive { max } => (max, true),
            Spin::For(time) => (time, false),
            Spin::Never => (Duration::ZERO, false),
            Spin::Forever => (Duration::MAX, false),
        };
        let is_never = spin == Spin::Never;
        Self { limit, is_never, is_adaptive, failures: 0, skip: 0 }
    }

    /// Returns whether no wait ever polls.
    #[inline(always)]
    pub(crate) fn is_never(&self) -> bool {
        self.is_never
    }

    /// Returns whether the next wait polls.
    #[inline(always)]
    pub(crate) fn polls(&self) -> bool {
        self.skip == 0 && !self.is_never()
    }

    /// Returns how long a wait polls.
    #[inline(always)]
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Notes that a wait polled with success.
    #[inline(always)]
    pub(crate) fn caught(&mut self) {
        self.failures = self.failures.saturating_sub(1);
    }

    /// Notes that a wait slept, after it polled in vain or at once.
    pub(crate) fn slept(&mut self) {
        if self.skip > 0 {
            self.skip -= 1;
        } else if self.is_adaptive {
            self.failures = MOST_FAILURES.min(self.failures + 1);
            self.skip = (1 << (self.failures - 1)) - 1;
        }
    }
}

/// A wait of a thread that does other things between two polls.
#[derive(Debug, Clone)]
pub(crate) struct Polling {
    policy: SpinPolicy,
    /// The start of the wait, once the clock was read.
    since: Option<Instant>,
    /// A poll of this wait has found nothing.
    waits: bool,
    gave_up: bool,
}

impl Polling {
    pub(crate) fn new(policy: SpinPolicy) -> Self {
        Self { policy, since: None, waits: false, gave_up: false }
    }

    /// Returns whether no wait ever polls.
    #[inline(always)]
    pub(crate) fn is_never(&self) -> bool {
        self.policy.is_never()
    }

    /// Notes that a poll found nothing, without reading the clock. Returns whether the caller sleeps at once. `is_dear`: a
    /// sleep costs more than polling in vain, so no wait sleeps at once unless none ever polls.
    #[inline(always)]
    pub(crate) fn sleeps_at_once(&mut self, is_dear: bool) -> bool {
        self.waits = true;
        let sleeps = self.is_never() || !is_dear && !self.policy.polls();
        self.gave_up |= sleeps;
        sleeps
    }

    /// Notes that a poll at `now` found nothing. Returns whether to poll on; else the caller sleeps. `is_dear`: as in
    /// [`sleeps_at_once`](Self::sleeps_at_once).
    pub(crate) fn goes_on(&mut self, now: Instant, is_dear: bool) -> bool {
        if self.is_never() {
            return false;
        }
        self.waits = true;
        let since = *self.since.get_or_insert(now);
        let polls = self.policy.polls() || is_dear;
        let goes_on = polls && now - since < self.policy.limit();
        self.gave_up |= !goes_on;
        goes_on
    }

    /// Returns how long ago the clock was first read in this wait. Zero: it was not.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now - since)
    }

    /// Notes that a poll found something, or a sleep ended.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.since = None;
        let waited = std::mem::take(&mut self.waits);
        if std::mem::take(&mut self.gave_up) {
            self.policy.slept();
        } else if waited {
            self.policy.caught();
        }
    }

    /// Ends a wait that was given up, if there is one: it polled in vain.
    pub(crate) fn abandon(&mut self) {
        if self.waits {
            self.gave_up = true;
            self.end();
        }
    }

    /// Drops the wait without learning from it.
    pub(crate) fn forget(&mut self) {
        self.since = None;
        self.waits = false;
        self.gave_up = false;
    }
}

#[cfg(test)]
mod tests;
