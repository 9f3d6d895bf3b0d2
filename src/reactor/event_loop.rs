//! The loop: turns over hot links, events of the others, and sleep.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::parking::Barrier;
use crate::reactor::commands::{Accepting, Command};
use crate::reactor::handle::{Owner, Reactor};
use crate::reactor::hot::HotSet;
use crate::reactor::link::Link;
use crate::reactor::served::{Mode, Outcome, Served};
use crate::reactor::shared::{BELL, Shared};
use crate::transport::{Context, Watching};

/// Messages, or writes that waited, of one link in one turn: the others wait for no more than these.
const SHARE: usize = 32;

/// Connections of one listener in one turn.
const ACCEPTS: usize = 16;

/// The work between two ticks, in looks at a header: some microseconds. A message counts as 16.
const TICK: usize = 1024;

/// How long the loop turns without asking for events while links are armed, and while none is.
const EVENTS_EVERY: Duration = Duration::from_micros(20);
const EVENTS_RARELY: Duration = Duration::from_millis(1);

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
    shared: Arc<Shared>,
    links: Vec<Option<Served>>,
    free: Vec<usize>,
    /// Key → place in `links`.
    places: HashMap<u64, usize>,
    listeners: Vec<Accepting>,
    hot: HotSet,
    /// Where in the hot set the last sweep stopped.
    stopped_at: usize,
    /// Places of links with writes that wait for room.
    flushing: Vec<usize>,
    watching: Watching,
    /// Work since the last tick, in looks at a header.
    work: usize,
    /// Messages since the last tick.
    lively: bool,
    tick: u64,
    /// When nothing had happened for the first time.
    idle_since: Option<Instant>,
    last_events: Instant,
    /// The last events brought something.
    eager: bool,
    /// Nothing has come for as long as the loop watches.
    idle: bool,
    owner: Weak<Owner>,
    stopped: bool,
}

impl std::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop").field("links", &self.places.len()).finish_non_exhaustive()
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
            links: Vec::new(),
            free: Vec::new(),
            places: HashMap::new(),
            listeners: Vec::new(),
            hot: HotSet::default(),
            stopped_at: 0,
            flushing: Vec::new(),
            watching: context.watching(),
            work: 0,
            lively: false,
            tick: 0,
            idle_since: None,
            last_events: Instant::now(),
            eager: false,
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
        self.shared.generation().check()?;
        let shared = self.shared.clone();
        let _turn = shared.enter();
        while !self.is_finished() {
            self.turn(usize::MAX)?;
            if std::mem::take(&mut self.idle) && self.fall_asleep() {
                let slept_from = self.idle_since.unwrap_or_else(Instant::now);
                self.take_events(self.timeout())?;
                self.watching.adapt(slept_from.elapsed());
                self.idle_since = None;
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
        let shared = self.shared.clone();
        let _turn = shared.enter();
        let mut done = self.turn(budget)?;
        if done == 0 {
            done = self.take_events(Some(Duration::ZERO))?;
        }
        if done == 0 && !self.fall_asleep() {
            done = 1;
        }
        Ok(done)
    }

    /// How long whoever sleeps on the descriptor may do so. `None`: until it is readable.
    pub fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let silent =
            self.listeners.iter().filter_map(|accepting| accepting.listener.next_deadline());
        let silent = silent.map(|deadline| deadline.saturating_duration_since(now));
        let room = (!self.flushing.is_empty()).then_some(ROOM_EVERY);
        silent.chain(room).min()
    }

    fn is_finished(&self) -> bool {
        let unused = self.places.is_empty() && self.listeners.is_empty();
        self.stopped || unused && !self.shared.is_pending() && self.owner.strong_count() == 0
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
        self.lively |= done > 0;
        if self.work >= TICK || self.watching.is_never() {
            done += self.pass_tick()?;
        }
        Ok(done)
    }

    /// What need not be looked at in every turn.
    fn pass_tick(&mut self) -> Result<usize> {
        let now = Instant::now();
        self.work = 0;
        self.tick += 1;
        let armed = self.hot.len() < self.places.len() || !self.listeners.is_empty();
        let every = if armed { EVENTS_EVERY } else { EVENTS_RARELY };
        let mut done = 0;
        if self.eager || now - self.last_events >= every {
            self.last_events = now;
            done = self.take_events(Some(Duration::ZERO))?;
            self.eager = done > 0;
        }
        if self.lively || done > 0 {
            self.idle_since = None;
        } else {
            let since = *self.idle_since.get_or_insert(now);
            self.idle = now - since >= self.watching.budget;
        }
        self.lively = false;
        if self.hot.is_crowded() || self.tick.is_multiple_of(1024) {
            let cooling = self.hot.cooling(self.tick);
            self.arm(&cooling);
        }
        Ok(done)
    }

    /// Serves the hot links that have something, from where it stopped when the budget was used up.
    fn sweep(&mut self, budget: usize) -> usize {
        let (mut done, mut at) = (0, std::mem::take(&mut self.stopped_at));
        while let Some(ready) = self.hot.next_ready(at) {
            if done >= budget {
                self.stopped_at = ready;
                break;
            }
            let (tick, hot) = (self.tick, self.hot.get(ready));
            hot.seen = tick;
            let place = hot.slot;
            at = ready + 1;
            let Some(served) = &mut self.links[place] else { continue };
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
    fn serve(&mut self, place: usize) {
        let Some(served) = &mut self.links[place] else { return };
        if served.link.is_changing() {
            self.shared.post(Command::Look(served.link.clone()));
            return;
        }
        if served.mode == Mode::Armed {
            served.mode = Mode::Hot;
            served.receiver.wake();
        }
        let (_, outcome) = served.serve(SHARE, &self.shared);
        if matches!(outcome, Outcome::More) && served.has_letters() {
            self.shared.post(Command::Look(served.link.clone()));
        }
        self.conclude(place, outcome);
        self.warm(place);
    }

    /// What follows from a link's turn.
    fn conclude(&mut self, place: usize, outcome: Outcome) {
        match outcome {
            Outcome::Caught | Outcome::More => {}
            Outcome::Stalled => {
                self.hot.remove(place);
                if let Some(served) = &mut self.links[place] {
                    served.mode = Mode::Stalled;
                }
            }
            Outcome::Over(result) => self.end(place, result, false),
        }
    }

    /// A link that is not stalled is hot, and watched where its next record will show.
    fn warm(&mut self, place: usize) {
        self.hot.remove(place);
        let Some(served) = &self.links[place] else { return };
        if served.mode == Mode::Hot {
            self.hot.insert(served.watch(), place, self.tick);
        }
    }

    /// Does what handles have asked for.
    fn obey(&mut self) -> Result<usize> {
        let commands = self.shared.take();
        let count = commands.len();
        for command in commands {
            if self.stopped {
                command.refuse(&ErrorKind::ReactorStopped);
                continue;
            }
            match command {
                Command::Adopt(adopted) => {
                    let place = self.free.pop().unwrap_or_else(|| {
                        self.links.push(None);
                        self.links.len() - 1
                    });
                    self.places.insert(adopted.link.key(), place);
                    self.links[place] = Some(Served::new(*adopted));
                    self.serve(place);
                }
                Command::Accept(accepting) => self.listeners.push(*accepting),
                Command::OnMessage(link, callback) => {
                    link.changed();
                    self.with(&link, |served| served.on_message(callback));
                }
                Command::OnClosed(link, callback) => match self.served(&link) {
                    Some(served) => served.on_closed(callback),
                    None => drop(link.guard(|| callback(&link, Err(link.over())))),
                },
                Command::Read(link, callback) => {
                    if self.served(&link).is_some() {
                        self.with(&link, |served| served.read(callback));
                    } else {
                        link.guard(|| callback(&link, link.nothing_to_read()));
                    }
                }
                Command::Call(link, request, callback) => {
                    let called = match self.served(&link) {
                        Some(served) => served.call(request, callback),
                        None => link.guard(|| callback(&link, Err(link.over()))),
                    };
                    if called.is_none() {
                        self.end_panicked(&link);
                    }
                }
                Command::Written(link, callback, result) => {
                    if link.guard(|| callback(&link, result)).is_none() {
                        self.end_panicked(&link);
                    }
                }
                Command::Closed(link, callback, result) => {
                    link.guard(|| callback(&link, result));
                }
                Command::Look(link) => {
                    if let Some(place) = self.place(&link) {
                        self.serve(place);
                    }
                }
                Command::Flush(link) => self.start_flushing(&link),
                Command::Close(link) => self.close(&link),
                Command::Run(work) => {
                    // Whoever defers work looks after its panics; the links have no part in it.
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                }
                Command::Nudge => {}
                Command::Shutdown => {
                    self.stopped = true;
                    self.end_all();
                }
            }
        }
        if self.stopped {
            self.refuse_all();
        }
        Ok(count)
    }

    /// Closes every link and listener.
    fn end_all(&mut self) {
        for gone in std::mem::take(&mut self.listeners) {
            let _ = epoll::delete(&self.shared.epoll, &gone.listener);
        }
        for place in 0..self.links.len() {
            self.end(place, Ok(()), true);
        }
    }

    /// From now on everything that is asked for is refused.
    fn refuse_all(&mut self) {
        for command in self.shared.stop() {
            command.refuse(&ErrorKind::ReactorStopped);
        }
    }

    fn place(&self, link: &Link) -> Option<usize> {
        self.places.get(&link.key()).copied()
    }

    fn served(&mut self, link: &Link) -> Option<&mut Served> {
        let place = self.place(link)?;
        self.links[place].as_mut()
    }

    /// Changes what a link wants, and serves what waited for it.
    fn with(&mut self, link: &Link, change: impl FnOnce(&mut Served)) {
        let Some(place) = self.place(link) else { return };
        let Some(served) = &mut self.links[place] else { return };
        change(served);
        if served.mode == Mode::Stalled {
            served.mode = Mode::Hot;
            self.serve(place);
        }
    }

    fn start_flushing(&mut self, link: &Link) {
        let Some(place) = self.place(link) else { return };
        if let Some(served) = &mut self.links[place]
            && !served.flushing
        {
            served.flushing = true;
            self.flushing.push(place);
        }
    }

    /// Sends what waits for room. Gives how many writes were done.
    fn flush(&mut self) -> usize {
        let mut done = 0;
        for place in std::mem::take(&mut self.flushing) {
            let Some(served) = &mut self.links[place] else { continue };
            done += served.flush(SHARE);
            let (waiting, closing) = {
                let outgoing = served.link.outgoing();
                (outgoing.is_waiting(), outgoing.is_closing())
            };
            served.flushing = waiting;
            if waiting {
                self.flushing.push(place);
            } else if closing {
                self.end(place, Ok(()), true);
            }
        }
        done
    }

    fn close(&mut self, link: &Link) {
        if let Some(place) = self.place(link)
            && link.outgoing().close()
        {
            self.end(place, Ok(()), true);
        }
    }

    fn end_panicked(&mut self, link: &Link) {
        if let Some(place) = self.place(link) {
            self.end(place, Err(ErrorKind::CallbackPanicked.into()), true);
        }
    }

    fn end(&mut self, place: usize, result: Result<()>, by_us: bool) {
        let Some(served) = self.links[place].take() else { return };
        self.hot.remove(place);
        self.flushing.retain(|flushing| *flushing != place);
        self.places.remove(&served.link.key());
        self.free.push(place);
        let _ = epoll::delete(&self.shared.epoll, &served.socket);
        served.end(result, by_us);
    }

    /// Takes events, waiting for the first one as long as `timeout` says. Gives how much was done.
    fn take_events(&mut self, timeout: Option<Duration>) -> Result<usize> {
        let mut events = [MaybeUninit::<Event>::uninit(); 128];
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(LONG));
        let ready = match epoll::wait(&self.shared.epoll, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(0),
            Err(errno) => return Err(Error::os("epoll_wait", errno)),
        };
        let mut done = 0;
        for event in ready.iter() {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == BELL {
                continue;
            }
            if let Some(place) = self.places.get(&key).copied() {
                done += 1;
                self.link_event(place, flags);
            } else if self.listeners.iter().any(|accepting| accepting.key == key) {
                done += 1;
                self.accept(key);
            }
        }
        self.accept_late();
        Ok(done)
    }

    fn link_event(&mut self, place: usize, flags: EventFlags) {
        let Some(served) = &mut self.links[place] else { return };
        if flags.contains(EventFlags::IN) {
            // An error ends the link, which its next turn finds.
            let _ = served.socket.take();
        }
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            served.socket.hang_up();
        }
        if served.mode == Mode::Stalled && served.socket.is_alive() {
            return;
        }
        self.serve(place);
    }

    /// Gives a listener's connections to who wants them.
    fn accept(&mut self, key: u64) {
        let Some(at) = self.listeners.iter().position(|accepting| accepting.key == key) else {
            return;
        };
        for _ in 0..ACCEPTS {
            let Accepting { listener, accept, .. } = &mut self.listeners[at];
            let accepted = match listener.try_accept() {
                Ok(Some(connection)) => Ok(connection),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let failed = accepted.is_err();
            let go_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| accept(accepted)));
            if go_on.is_ok_and(|go_on| go_on.is_break()) {
                let gone = self.listeners.swap_remove(at);
                let _ = epoll::delete(&self.shared.epoll, &gone.listener);
                return;
            }
            if failed {
                return;
            }
        }
    }

    /// Drops peers that have connected and stay silent.
    fn accept_late(&mut self) {
        let now = Instant::now();
        let is_late = |accepting: &Accepting| {
            accepting.listener.next_deadline().is_some_and(|deadline| deadline <= now)
        };
        let late: Vec<u64> =
            self.listeners.iter().filter(|each| is_late(each)).map(|each| each.key).collect();
        for key in late {
            self.accept(key);
        }
    }

    /// Says to every peer that this loop sleeps. `false`: something is there already.
    fn fall_asleep(&mut self) -> bool {
        let hot: Vec<usize> = self.hot.slots().collect();
        for place in &self.flushing {
            if let Some(served) = &mut self.links[*place] {
                make_way(served);
                served.link.outgoing().doze();
            }
        }
        let caught = self.arm(&hot);
        let flushed = if self.flushing.is_empty() { 0 } else { self.flush() };
        caught && flushed == 0 && !self.shared.is_pending()
    }

    /// Arms these links, with one barrier. `false`: some have something, and stay hot.
    fn arm(&mut self, places: &[usize]) -> bool {
        for place in places {
            if let Some(served) = &mut self.links[*place] {
                make_way(served);
                served.receiver.doze();
            }
        }
        if !places.is_empty() || !self.flushing.is_empty() {
            Barrier::heavy();
        }
        let mut caught = true;
        for place in places {
            let Some(served) = &mut self.links[*place] else { continue };
            if served.receiver.is_ready() {
                served.receiver.wake();
                caught = false;
            } else {
                served.mode = Mode::Armed;
                self.hot.remove(*place);
            }
        }
        caught
    }
}

/// Takes the wake-ups of earlier sleeps where they may be many: the loop may have slept often since it
/// asked for events.
fn make_way(served: &Served) {
    if served.socket.make_way().is_err() {
        served.link.post(Command::Look(served.link.clone()));
    }
}

/// A timeout that nobody waits for.
const LONG: Timespec = Timespec { tv_sec: 1 << 30, tv_nsec: 0 };

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
