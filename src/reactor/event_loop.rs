//! The loop: turns over hot links, events of the others, and sleep.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::error::{ErrorKind, Result};
use crate::reactor::commands::Command;
use crate::reactor::doors::Doors;
use crate::reactor::handle::{Owner, Reactor};
use crate::reactor::hot::HotSet;
use crate::reactor::links::Links;
use crate::reactor::served::{Mode, Outcome};
use crate::reactor::shared::Shared;
use crate::transport::Context;
use crate::wake::Polling;

/// Messages and triggers of one link in one turn: no other link waits for more than these. Source:
/// `ping_pong --modes noisy`, where 4 leave no trace near, and 32 double a round trip.
const SHARE: usize = 4;

/// Writes that waited for room of one link in one turn.
const WRITES: usize = 32;

/// The work between two ticks, in looks at a header: some microseconds. A message counts as 16.
const TICK: usize = 1024;

/// The polled links that a loop arms for less than a wake-up costs. Arming one takes some 0.2 µs.
const FEW: usize = 64;

/// How long the loop polls links without asking for events. The system call takes some 0.4 µs.
const EVENTS_EVERY: Duration = Duration::from_micros(50);

/// How long at most the loop sleeps while writes wait: room in the pool that others give back is not
/// told of.
const ROOM_EVERY: Duration = Duration::from_millis(10);

/// A reactor inside of your own thread or loop: serves links when it is told to.
///
/// Either [`run`](Self::run) it on a thread of yours, or wait for its descriptor (`AsFd`) beside your
/// others and call [`poll_once`](Self::poll_once) until it answers 0.
///
/// Dropping it closes every link in order.
///
/// # Examples
///
/// ```
/// use slipring::{Context, EventLoop};
///
/// let context = Context::new()?;
/// let mut events = EventLoop::new(&context)?;
/// let reactor = events.reactor(); // adopts connections, from any thread
/// while events.poll_once(1000)? > 0 {}
/// // Now sleep until `events.as_fd()` is readable, for `events.timeout()` at most.
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct EventLoop {
    pub(super) shared: Arc<Shared>,
    pub(super) links: Links,
    pub(super) doors: Doors,
    pub(super) hot: HotSet,
    /// Links that were woken up for since the last sleep.
    pub(super) woken: usize,
    /// Where in the hot set the last sweep stopped.
    stopped_at: usize,
    /// Places of links with writes that wait for room.
    pub(super) flushing: Vec<usize>,
    pub(super) polling: Polling,
    /// Work since the last tick, in looks at a header.
    work: usize,
    last_events: Instant,
    /// Nothing has come for as long as the loop watches.
    idle: bool,
    owner: Weak<Owner>,
    pub(super) stopped: bool,
}

impl std::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

impl EventLoop {
    /// A loop without links.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit),
    /// [`ErrorKind::Os`](crate::ErrorKind::Os).
    pub fn new(context: &Context) -> Result<Self> {
        Ok(Self {
            shared: Shared::new()?,
            links: Links::default(),
            doors: Doors::default(),
            hot: HotSet::default(),
            woken: 0,
            stopped_at: 0,
            flushing: Vec::new(),
            polling: Polling::new(context.spin()),
            work: 0,
            last_events: Instant::now(),
            idle: false,
            owner: Weak::new(),
            stopped: false,
        })
    }

    /// A handle.
    pub fn reactor(&mut self) -> Reactor {
        Reactor::new(&mut self.owner, &self.shared)
    }

    /// Serves links, and sleeps where there is nothing to do, until [`Reactor::shutdown`]; or until no
    /// handle is left and the last link and listener are gone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked), [`ErrorKind::Os`](crate::ErrorKind::Os).
    pub fn run(&mut self) -> Result<()> {
        self.run_until(|| false)
    }

    /// As [`run`](Self::run), also until `done` answers true; it is asked once a turn.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) -> Result<()> {
        self.shared.generation().check()?;
        let _turn = self.shared.enter();
        self.polling.forget();
        while !self.is_finished() && !done() {
            if self.turn(usize::MAX)? > 0 {
                self.polling.end();
            }
            if std::mem::take(&mut self.idle) && self.fall_asleep() {
                self.take_events(self.timeout())?;
                self.polling.end();
            }
        }
        Ok(())
    }

    /// Serves what has come, up to about `budget` messages, without waiting. Gives how much was done.
    /// After 0 whoever has the descriptor may sleep on it, for [`timeout`](Self::timeout) at most.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn poll_once(&mut self, budget: usize) -> Result<usize> {
        self.shared.generation().check()?;
        let _turn = self.shared.enter();
        let mut done = self.turn(budget.max(1))?;
        if done == 0 {
            done = self.take_events(Some(Duration::ZERO))?;
        }
        if done == 0 && !self.fall_asleep() {
            done = 1;
        }
        // Whoever asks decides how long to wait.
        self.polling.forget();
        Ok(done)
    }

    /// How long whoever sleeps on the descriptor may do so. `None`: until it is readable.
    pub fn timeout(&self) -> Option<Duration> {
        let room = (!self.flushing.is_empty()).then_some(ROOM_EVERY);
        self.doors.timeout().into_iter().chain(room).min()
    }

    fn is_finished(&self) -> bool {
        let unused = self.links.len() == 0 && self.doors.is_empty();
        self.stopped || unused && self.shared.is_abandoned(|| self.owner.strong_count() == 0)
    }

    /// Looks at everything once. Gives how much was done.
    fn turn(&mut self, budget: usize) -> Result<usize> {
        let mut done = 0;
        if self.shared.is_pending() {
            done += self.obey()?;
        }
        done += self.sweep(budget);
        if !self.flushing.is_empty() {
            done += self.flush();
        }
        self.work += 1 + self.hot.len() + 16 * done;
        if self.work >= TICK {
            done += self.pass_tick(done == 0)?;
        }
        self.idle |= done == 0 && !self.is_sleep_dear() && self.polling.sleeps_at_once();
        Ok(done)
    }

    /// What need not be looked at in every turn.
    fn pass_tick(&mut self, is_silent: bool) -> Result<usize> {
        let now = Instant::now();
        self.work = 0;
        let mut done = 0;
        if now - self.last_events >= EVENTS_EVERY {
            self.last_events = now;
            // The peer may be a thread that waits for this CPU.
            rustix::thread::sched_yield();
            done = self.take_events(Some(Duration::ZERO))?;
        }
        if done == 0 && is_silent {
            self.idle = !self.polling.goes_on(now, self.is_sleep_dear());
        }
        Ok(done)
    }

    /// Returns whether to fall asleep takes longer than a wait is worth: each polled link is armed for it, and then
    /// woken for.
    fn is_sleep_dear(&self) -> bool {
        self.hot.len() > FEW && !self.polling.is_never()
    }

    /// Serves the hot links that have something, from where it stopped when the budget was used up.
    fn sweep(&mut self, budget: usize) -> usize {
        if self.hot.begin_turn() {
            let cooling = self.hot.cooling();
            self.arm(&cooling, Mode::Armed, false);
        }
        let (mut done, mut at) = (0, std::mem::take(&mut self.stopped_at));
        if at >= self.hot.len() {
            at = 0;
        }
        while let Some(ready) = self.hot.next_ready(at) {
            if done >= budget {
                self.stopped_at = ready;
                break;
            }
            let hot = self.hot.see(ready);
            let place = hot.place;
            at = ready + 1;
            let Some(served) = self.links.get(place) else { continue };
            if served.link.is_changing() {
                continue;
            }
            let (count, outcome) = served.serve(SHARE.min(budget - done), &self.shared);
            served.receiver.advance(&mut hot.watch);
            done += count.max(1);
            // Where its place is taken by another one, that is looked at in the next turn.
            self.conclude(place, outcome);
        }
        done
    }

    /// Serves one link, hot or not.
    pub(super) fn serve(&mut self, place: usize) {
        let Some(served) = self.links.get(place) else { return };
        if served.link.is_changing() {
            self.shared.post(Command::Look(served.link.clone()));
            return;
        }
        if served.mode.is_armed() {
            served.mode = Mode::Hot;
            served.receiver.wake();
        }
        let (_, outcome) = served.serve(SHARE, &self.shared);
        self.conclude(place, outcome);
        self.warm(place);
    }

    /// Serves one link, on whose socket something may have come.
    pub(super) fn look(&mut self, place: usize) {
        let Some(served) = self.links.get(place) else { return };
        if served.socket.take_in() {
            self.shared.post(Command::Look(served.link.clone()));
        }
        self.serve(place);
    }

    /// What follows from a link's turn.
    fn conclude(&mut self, place: usize, outcome: Outcome) {
        match outcome {
            Outcome::Caught | Outcome::More => {
                if let Some(served) = self.links.get(place)
                    && !served.is_watched()
                {
                    self.shared.post(Command::Look(served.link.clone()));
                }
            }
            Outcome::Stalled => {
                self.hot.remove(place);
                if let Some(served) = self.links.get(place) {
                    served.mode = Mode::Stalled;
                }
            }
            Outcome::Over(result) => self.end(place, result, None),
        }
    }

    /// A link that is not stalled is hot, and watched where its next record will show.
    pub(super) fn warm(&mut self, place: usize) {
        let Some(served) = self.links.get(place) else { return };
        if served.mode == Mode::Hot {
            self.hot.insert(served.watch(), place);
        }
    }

    /// Sends what waits for room. Gives how many writes were done.
    pub(super) fn flush(&mut self) -> usize {
        let mut done = 0;
        for place in std::mem::take(&mut self.flushing) {
            let Some(served) = self.links.get(place) else { continue };
            done += served.flush(WRITES);
            let (waiting, closing) = {
                let outgoing = served.link.outgoing();
                (outgoing.is_waiting(), outgoing.is_closing())
            };
            served.flushing = waiting;
            if waiting {
                self.flushing.push(place);
            } else if closing {
                self.end(place, Ok(()), Some(ErrorKind::LinkClosed));
            }
        }
        done
    }

    pub(super) fn end(&mut self, place: usize, result: Result<()>, by_us: Option<ErrorKind>) {
        let Some(served) = self.links.remove(place) else { return };
        self.hot.remove(place);
        self.flushing.retain(|flushing| *flushing != place);
        let _ = epoll::delete(&self.shared.epoll, &served.socket);
        served.end(result, by_us);
    }
}

/// Readable when there is something to do. Call [`poll_once`](EventLoop::poll_once) until it answers 0
/// before each sleep, the first one included.
impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.epoll.as_fd()
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // A forked child shares the descriptors with its parent, and has none of its links.
        if !self.shared.generation().is_current() {
            return;
        }
        let shared = self.shared.clone();
        let _turn = shared.enter();
        self.end_all();
        self.refuse_all();
    }
}
