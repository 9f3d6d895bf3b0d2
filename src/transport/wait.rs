//! Waiting for the peer: watch for a while, then sleep.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::parking::Sleeper;
use crate::transport::link::Link;
use crate::transport::options::Spin;
use crate::transport::receiver::TryRecvError;

/// Looks without reading the clock: about a microsecond.
const LOOKS: u32 = 1000;

/// Looks between two readings of the clock.
const LOOKS_A_READING: u32 = 64;

/// How often whoever watches lets other threads have the CPU. To nobody that takes less than a
/// microsecond.
const YIELD_EVERY: Duration = Duration::from_micros(20);

/// Whoever is back later than this keeps others from the CPU by watching.
const CONTENDED: Duration = Duration::from_micros(200);

/// So long it then does not watch: a sleeper that is woken comes before those that compute.
const SLEEP_FOR: Duration = Duration::from_millis(50);

/// The shortest time that an adaptive watch takes.
const SHORTEST: Duration = Duration::from_micros(2);

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

/// How long to watch before going to sleep, as [`Spin`] says and as it has paid lately.
#[derive(Debug, Clone)]
pub(crate) struct Watching {
    spin: Spin,
    /// How long an adaptive one watches now.
    pub(crate) budget: Duration,
    /// What is watched for has begun to come: an adaptive watch is as long as it may be.
    is_coming: bool,
    /// When others get the CPU next.
    next_yield: Instant,
    /// Others need the CPU; asked anew from then on.
    contended_until: Instant,
}

impl Watching {
    pub(crate) fn new(spin: Spin) -> Self {
        let budget = match spin {
            Spin::Adaptive { max } => max,
            Spin::For(time) => time,
            Spin::Never => Duration::ZERO,
            Spin::Forever => Duration::MAX,
        };
        let now = Instant::now();
        Self { spin, budget, is_coming: false, next_yield: now, contended_until: now }
    }

    /// Whether there is no watching at all.
    #[inline(always)]
    pub(crate) fn is_never(&self) -> bool {
        self.spin == Spin::Never
    }

    /// Whether watching goes by what has paid.
    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.spin, Spin::Adaptive { .. })
    }

    /// Whether somebody who watches since `since` goes on. From time to time others get the CPU in
    /// between; where some need it, the answer is no for a while.
    #[inline]
    pub(crate) fn goes_on(&mut self, since: Instant, now: Instant) -> bool {
        let budget = match self.spin {
            Spin::Adaptive { max } if self.is_coming => max,
            _ => self.budget,
        };
        now - since < budget
            && (now < self.next_yield || !self.is_adaptive() || !self.is_contended(now))
    }

    fn is_contended(&mut self, now: Instant) -> bool {
        if now < self.contended_until {
            return true;
        }
        rustix::thread::sched_yield();
        let back = Instant::now();
        if back - now < CONTENDED {
            self.next_yield = back + YIELD_EVERY;
            return false;
        }
        self.contended_until = back + SLEEP_FOR;
        true
    }

    /// After a sleep: a longer watch would have caught what ended it, or would have been in vain.
    pub(crate) fn adapt(&mut self, waited: Duration) {
        if let Spin::Adaptive { max } = self.spin {
            self.budget =
                if waited <= max { max } else { (self.budget / 2).max(SHORTEST.min(max)) };
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
                return timed_out(now);
            }
            if done || slice.is_some() {
                self.sleeper.unpark(&link.own);
                // What did not come within the slice a longer watch would not have caught.
                self.watching.adapt(if done { now - start } else { Duration::MAX });
                return slept;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_goes_on_as_its_spin_says() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!Watching::new(Spin::Never).goes_on(now, now));
        assert!(Watching::new(Spin::Forever).goes_on(now, now + second));
        let mut timed = Watching::new(Spin::For(second));
        assert!(timed.goes_on(now, now + second / 2));
        assert!(!timed.goes_on(now, now + second));
    }

    #[test]
    fn adaptive_watching_stops_for_a_while_where_others_need_the_cpu() {
        let now = Instant::now();
        let mut watching = Watching::new(Spin::Adaptive { max: Duration::from_secs(3600) });
        watching.next_yield = now;
        watching.contended_until = now + SLEEP_FOR;
        assert!(!watching.goes_on(now, now));
        assert!(!watching.goes_on(now, now + SLEEP_FOR / 2));
        // Until somebody needs it, the next yield is what is waited for.
        watching.next_yield = now + 2 * SLEEP_FOR;
        assert!(watching.goes_on(now, now + SLEEP_FOR));
    }

    #[test]
    fn what_has_begun_to_come_is_watched_for_as_long_as_may_be() {
        let (now, max) = (Instant::now(), Duration::from_secs(3600));
        let mut watching = Watching::new(Spin::Adaptive { max });
        watching.next_yield = now + 2 * max;
        watching.budget = SHORTEST;
        assert!(!watching.goes_on(now, now + max / 2));
        watching.is_coming = true;
        assert!(watching.goes_on(now, now + max / 2) && !watching.goes_on(now, now + max));
        // Whoever says for how long, or never, is believed.
        for spin in [Spin::For(SHORTEST), Spin::Never] {
            let mut watching = Watching::new(spin);
            watching.is_coming = true;
            assert!(!watching.goes_on(now, now + max / 2));
        }
    }

    #[test]
    fn a_watch_that_would_have_caught_what_ended_a_sleep_is_long() {
        let max = Duration::from_micros(200);
        let mut watching = Watching::new(Spin::Adaptive { max });
        watching.adapt(max * 2);
        assert_eq!(watching.budget, max / 2);
        (0..20).for_each(|_| watching.adapt(max * 2));
        assert_eq!(watching.budget, SHORTEST);
        watching.adapt(max);
        assert_eq!(watching.budget, max);
    }
}
