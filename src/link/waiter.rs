//! Waiting for the peer: a half polls for a while, then sleeps.
//!
//! The waiter owns the half's sleeper, its spin policy, and its line of the status page.
//!
//! 1. A wait ends when what it waits for is there, when the link ends, or at its deadline.
//! 2. After a wait the state word says that the half is awake.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::link::link::Link;
use crate::shm::PeerMapping;
use crate::status::layout::SLEEPS;
use crate::status::{Awaited, Half, State};
use crate::wake::{Sleeper, Spin, SpinPolicy};

/// Polls before the first reading of the clock: about a microsecond.
const POLLS: u32 = 1000;

/// Polls between two readings of the clock.
const POLLS_A_READING: u32 = 64;

/// The waits of one half of a connection, for messages or for room.
#[derive(Debug)]
pub(crate) struct Waiter {
    sleeper: Sleeper,
    /// The memory with the bell, if it is not the peer's segment.
    bells: Option<PeerMapping>,
    spin: SpinPolicy,
    /// The start of the wait. A message that comes piece by piece is one wait.
    began: Instant,
    /// Pieces of a long message are coming.
    is_coming: bool,
    /// The number of sleeps.
    pub(crate) sleeps: u64,
    status: Half,
}

impl Waiter {
    pub(crate) fn new(sleeper: Sleeper, spin: Spin, status: Half) -> Self {
        let (began, spin) = (Instant::now(), SpinPolicy::new(spin));
        Self { sleeper, bells: None, spin, began, is_coming: false, sleeps: 0, status }
    }

    /// Makes the half sleep on a bell in other memory than the peer's segment.
    pub(crate) fn on(mut self, bells: PeerMapping) -> Self {
        self.bells = Some(bells);
        self
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

    /// Notes that a poll found something within about a microsecond.
    #[inline(always)]
    pub(crate) fn caught(&mut self) {
        self.spin.caught();
    }

    /// Passes this half's position in its ring to [`Sleeper::progress`].
    #[inline(always)]
    pub(crate) fn progress(&mut self, link: &Link, position: u64) {
        self.sleeper.progress(link.own(), position);
    }

    /// Takes over the state of a link whose state word says whether this half is hot. [`is_hot`](Self::is_hot) tells what it
    /// says after the wait.
    pub(crate) fn set_hot(&mut self, is_hot: bool) {
        self.sleeper.set_hot(is_hot);
    }

    /// Returns whether this half is hot.
    pub(crate) fn is_hot(&self) -> bool {
        self.sleeper.is_hot()
    }

    /// Sets whether the peer wakes this half for a long message as soon as it writes the first part.
    pub(crate) fn set_eager(&mut self, is_eager: bool) {
        self.sleeper.set_eager(is_eager);
        self.is_coming = false;
    }

    /// Notes that the awaited message has begun to come. The half then sleeps until all of it is there.
    pub(crate) fn comes(&mut self) {
        self.sleeper.set_eager(false);
        self.is_coming = true;
    }

    /// Returns this half's line of the status page.
    #[inline(always)]
    pub(crate) fn status(&mut self) -> &mut Half {
        &mut self.status
    }

    /// Announces that this half is about to sleep on the socket. Returns what [`Sleeper::arm`] returns.
    #[must_use]
    pub(crate) fn arm(&mut self, link: &Link, awaited: Awaited) -> bool {
        self.sleeps += 1;
        self.status.store(SLEEPS, self.sleeps);
        self.learn(link);
        self.status.wait(State::Armed, awaited);
        self.sleeper.arm(link.own())
    }

    /// Reads the command of the peer, which nobody can do after its end. The first sleep is not put off by that: it can be the wait
    /// for the first answer of a new peer.
    fn learn(&self, link: &Link) {
        if self.sleeps > 1 {
            link.learn_command();
        }
    }

    /// Announces that this half is awake, if it was armed.
    #[inline]
    pub(crate) fn disarm(&mut self, link: &Link) {
        self.status.run();
        self.sleeper.unpark(link.own());
    }

    /// Announces that this half has ended.
    pub(crate) fn leave(&mut self, link: &Link) {
        self.status.leave();
        self.sleeper.leave(link.own());
    }

    /// Waits for `awaited`, until `ready` returns true or the link ends. With a `slice`, for events without a bell, also returns
    /// after polling or sleeping for this long; the status page then says that the half waits, until it [runs](Half::run).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]: the deadline passed first.
    pub(crate) fn wait(
        &mut self,
        link: &Link,
        awaited: Awaited,
        (deadline, slice): (Option<Instant>, Option<Duration>),
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let mut ready = || ready() || !link.is_alive();
        let polls = self.spin.polls();
        if polls {
            for _ in 0..POLLS {
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
        if polls {
            self.status.wait(State::Polling, awaited);
        }
        let passed = |now: Instant| deadline.is_some_and(|deadline| now >= deadline);
        let timed_out = |now: Instant| -> Result<()> {
            let late = Error::new(ErrorKind::TimedOut { after: now - began });
            Err(late.waiting_for(what_lacks(link, awaited)))
        };
        let mut now = start;
        while polls && now - start < self.spin.limit() {
            for _ in 0..POLLS_A_READING {
                if ready() {
                    self.spin.caught();
                    self.status.run();
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            now = Instant::now();
            if passed(now) {
                self.spin.slept();
                self.status.run();
                return timed_out(now);
            }
            if slice.is_some_and(|slice| now - start >= slice) {
                self.spin.slept();
                return Ok(());
            }
        }
        self.spin.slept();
        self.learn(link);
        self.status.wait(State::Parked, awaited);
        loop {
            let bell = self.sleeper.bell();
            let bells = self.bells.as_ref().unwrap_or(link.peer());
            let slept = self.sleeper.sleep(link.own(), bells, &mut ready, |rung| {
                self.sleeps += 1;
                self.status.store(SLEEPS, self.sleeps);
                let slice = slice.map(|slice| start + slice);
                let until = deadline.into_iter().chain(slice).min();
                link.sleep(bells, bell, rung, until)
            });
            let slept = slept.unwrap_or(Ok(()));
            let done = slept.is_err() || ready();
            if !done && deadline.is_some() {
                let now = Instant::now();
                if passed(now) {
                    self.sleeper.unpark(link.own());
                    self.status.run();
                    return timed_out(now);
                }
            }
            if done || slice.is_some() {
                self.sleeper.unpark(link.own());
                if slice.is_none() {
                    self.status.run();
                    tell_of_stall(link, awaited, began);
                }
                return slept;
            }
        }
    }
}

/// The shortest wait for room that is told of.
const STALL: Duration = Duration::from_secs(1);

/// Tells of a sender that has waited for long.
#[cold]
pub(crate) fn tell_of_stall(link: &Link, awaited: Awaited, began: Instant) {
    let waited = began.elapsed();
    if awaited != Awaited::Message && waited >= STALL {
        tracing::warn!(peer = link.peer_name(), ?waited, ?awaited, "a send has waited");
    }
}

/// Returns what did not come in time, for an error.
#[cold]
fn what_lacks(link: &Link, awaited: Awaited) -> String {
    let peer = link.peer_name();
    match awaited {
        Awaited::Message => format!("no message came from {peer}"),
        Awaited::Room => format!("{peer} makes no room: it receives too slowly"),
        Awaited::Memory => format!("{peer} keeps what it was lent"),
        Awaited::Packets => format!("{peer} does not read its socket"),
    }
}
