//! The loop: it polls links, takes the events of the others, executes the commands of handles, and sleeps.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result, contain};
use crate::reactor::active_link::{ActiveLink, Flushed, Outcome};
use crate::reactor::command::Command;
use crate::reactor::handle::{Handles, Reactor};
use crate::reactor::link::Link;
use crate::reactor::link_table::LinkTable;
use crate::reactor::listeners::ListenerSet;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::ready_set::ReadySet;
use crate::reactor::resting::RestingSet;
use crate::reactor::subscribers::SubscriberSet;
use crate::reactor::totals::Totals;
use crate::transport::Context;
use crate::wake::{Polling, before_last_look};

/// The most messages and triggers of one link in one turn. Source: `ping_pong --modes noisy`, where 8 take another link's
/// round trip no longer than 4 do, and 16 a seventh longer.
pub(crate) const SHARE: usize = 8;

/// The most waiting writes of one link that the loop sends in one turn.
const WRITES: usize = 32;

/// The work between two ticks, in polls of a header: some microseconds. A message counts as 16 polls.
const TICK: usize = 1024;

/// The polled links and subscribers that a loop arms for less than a wake-up costs. Arming one takes some 0.2 µs.
const FEW: usize = 64;

/// How long the loop serves links without asking epoll for events. The system call takes some 0.4 µs.
const EVENTS_EVERY: Duration = Duration::from_micros(50);

/// A yield that takes so long has lost the CPU to a thread that does not yield.
const SLICE_LOST: Duration = Duration::from_millis(1);

/// After such a yield the loop yields no more for so many times what it lost.
const YIELD_PART: u32 = 16;

/// The most that counts as lost to another thread. A process that was stopped loses more.
const MOST_LOST: Duration = Duration::from_millis(100);

/// A loop that has found nothing for this long asks for events this often. A message of an armed link waits for that.
const EVENTS_EVERY_IDLE: Duration = Duration::from_micros(5);

/// The longest sleep while writes wait. No event reports that another process has returned a block of the pool.
const ROOM_EVERY: Duration = Duration::from_millis(10);

/// A timeout beyond every wait.
const LONG: Timespec = Timespec { tv_sec: 1 << 30, tv_nsec: 0 };

/// A reactor inside of the caller's own thread or event loop. It serves links when the caller tells it to.
///
/// Either [`run`](Self::run) it on a thread, or wait for its descriptor (`AsFd`) beside others and call
/// [`poll_once`](Self::poll_once) until that returns 0.
///
/// Callbacks are `Send`, because a loop may move to another thread before it runs. [`Local`](crate::Local) keeps what is
/// not `Send`, for a loop that runs on the thread that sets the callbacks.
///
/// Dropping it closes every link in order.
///
/// # Examples
///
/// ```
/// use slipring::{Address, Context, EventLoop};
///
/// let address = Address::fresh();
/// let context = Context::new()?;
/// let mut events = EventLoop::new(&context)?;
/// let reactor = events.reactor(); // adopts connections, from any thread
/// let serving = reactor.clone();
/// reactor.accept_with(context.listen(&address)?, move |accepted| {
///     if let Ok(link) = accepted.and_then(|connection| serving.adopt(connection)) {
///         link.on_message(|link, message| link.write(message.to_vec()));
///     }
///     std::ops::ControlFlow::Continue(())
/// })?;
///
/// let client = std::thread::spawn(move || {
///     let mut client = context.connect(&address)?;
///     client.send(b"hello")?;
///     client.recv()
/// });
/// while !client.is_finished() {
///     while events.poll_once(1000)? > 0 {}
///     // A loop of the caller's now sleeps until `events.as_fd()` is readable, or `events.timeout()` has passed.
///     std::thread::yield_now();
/// }
/// assert_eq!(client.join().unwrap()?.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct EventLoop {
    mailbox: Arc<Mailbox<Command>>,
    totals: Arc<Totals>,
    handles: Handles,
    links: LinkTable,
    listeners: ListenerSet,
    subscribers: SubscriberSet,
    ready: ReadySet,
    resting: RestingSet,
    /// The index in the ready set at which the last sweep stopped.
    stopped_at: usize,
    /// The places of links with writes that wait for room.
    flushing: Vec<usize>,
    polling: Polling,
    /// The work since the last tick, in polls of a header.
    work: usize,
    last_events: Instant,
    /// From then on the loop yields its CPU at a tick.
    yields_from: Instant,
    /// Whether the loop has polled in vain for as long as it polls.
    idle: bool,
    /// Whether a handle has ended the reactor.
    stopped: bool,
}

/// Shows the number of links.
impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

impl EventLoop {
    /// Returns a loop without links.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::DescriptorLimit`]: the process has no descriptor left.
    /// - [`ErrorKind::Os`]: the kernel refuses a descriptor.
    pub fn new(context: &Context) -> Result<Self> {
        Ok(Self {
            mailbox: Mailbox::new()?,
            totals: Arc::default(),
            handles: Handles::default(),
            links: LinkTable::default(),
            listeners: ListenerSet::default(),
            subscribers: SubscriberSet::default(),
            ready: ReadySet::default(),
            resting: RestingSet::default(),
            stopped_at: 0,
            flushing: Vec::new(),
            polling: Polling::new(context.spin()),
            work: 0,
            last_events: Instant::now(),
            yields_from: Instant::now(),
            idle: false,
            stopped: false,
        })
    }

    /// Returns a handle of the reactor.
    pub fn reactor(&mut self) -> Reactor {
        self.handles.handle(&self.mailbox, &self.totals)
    }

    /// Serves links, and sleeps when there is nothing to do. Returns after [`Reactor::shutdown`], or when no handle, no
    /// link, no listener and no subscriber is left.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Forked`]: the caller is a forked child.
    /// - [`ErrorKind::Os`]: the kernel returns no events.
    pub fn run(&mut self) -> Result<()> {
        self.run_until(|| false)
    }

    /// Runs as [`run`](Self::run) does, and returns also when `done` returns true. The loop calls `done` once a turn.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) -> Result<()> {
        self.mailbox.generation().check()?;
        let _turn = self.mailbox.enter();
        self.polling.abandon();
        while !self.is_finished() && !done() {
            if self.turn(usize::MAX)? > 0 {
                self.polling.end();
            }
            if std::mem::take(&mut self.idle)
                && !self.listeners.end_rests(&*self.mailbox)
                && self.arm_all()
            {
                self.totals.count_sleep();
                self.take_events(self.timeout())?;
                self.polling.end();
            }
        }
        Ok(())
    }

    /// Serves up to about `budget` messages without waiting. Returns the amount of work done. After 0 the caller may
    /// sleep on the descriptor, for [`timeout`](Self::timeout) at most.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn poll_once(&mut self, budget: usize) -> Result<usize> {
        self.mailbox.generation().check()?;
        let _turn = self.mailbox.enter();
        let mut done = self.turn(budget.max(1))?;
        if done == 0 {
            done = self.take_events(Some(Duration::ZERO))?;
        }
        if done == 0 && (self.listeners.end_rests(&*self.mailbox) || !self.arm_all()) {
            done = 1;
        }
        // The caller decides how long to poll.
        self.polling.forget();
        Ok(done)
    }

    /// Returns how long the caller may sleep on the descriptor. `None`: until it is readable.
    pub fn timeout(&self) -> Option<Duration> {
        let room = (!self.flushing.is_empty()).then_some(ROOM_EVERY);
        let served = self.listeners.timeout().into_iter().chain(self.subscribers.timeout());
        served.chain(self.resting.timeout()).chain(room).min()
    }

    fn is_finished(&self) -> bool {
        let is_silent = self.listeners.is_empty() && self.subscribers.is_empty();
        let unused = self.links.len() == 0 && is_silent;
        self.stopped || unused && self.mailbox.is_abandoned(|| self.handles.is_empty())
    }

    /// Polls everything once. Returns the amount of work done.
    fn turn(&mut self, budget: usize) -> Result<usize> {
        let mut done = 0;
        if self.mailbox.is_pending() {
            done += self.execute_commands();
        }
        done += self.sweep(budget);
        self.subscribers.poll();
        if self.subscribers.is_ready() {
            done += self.subscribers.serve(&self.mailbox);
        }
        if !self.flushing.is_empty() {
            done += self.flush();
        }
        self.work += 1 + self.polled() + 16 * done;
        if self.work >= TICK {
            done += self.tick(done == 0)?;
        }
        self.idle |= done == 0 && self.polling.sleeps_at_once(self.is_sleep_dear());
        Ok(done)
    }

    /// Does the work that is not due in every turn: asks for events, and decides whether to poll on.
    fn tick(&mut self, is_silent: bool) -> Result<usize> {
        let now = Instant::now();
        self.work = 0;
        let mut done = 0;
        let is_idle = is_silent && self.polling.waited(now) >= EVENTS_EVERY_IDLE;
        if now - self.last_events >= if is_idle { EVENTS_EVERY_IDLE } else { EVENTS_EVERY } {
            self.last_events = now;
            self.give_way(now);
            done = self.take_events(Some(Duration::ZERO))?;
        }
        if done == 0 && is_silent {
            self.idle = !self.polling.goes_on(now, self.is_sleep_dear());
        }
        Ok(done)
    }

    /// Lets another thread of this CPU run, which may be the peer. A thread that computes without an end keeps the CPU for a slice
    /// of several milliseconds, so the loop then yields no more for a while. A loop that sleeps dearly yields always.
    fn give_way(&mut self, now: Instant) {
        if now < self.yields_from && !self.is_sleep_dear() {
            return;
        }
        rustix::thread::sched_yield();
        let lost = now.elapsed();
        if lost >= SLICE_LOST {
            self.yields_from = now + YIELD_PART * lost.min(MOST_LOST);
        }
    }

    /// Returns whether falling asleep costs more than polling in vain: the loop arms each polled link before it sleeps, and
    /// takes a packet from each that wakes it.
    fn is_sleep_dear(&self) -> bool {
        self.polled() > FEW
    }

    /// Returns how many links and subscribers the loop polls.
    fn polled(&self) -> usize {
        self.ready.len() + self.subscribers.polled()
    }

    /// Serves the polled links that are ready. A sweep that used up its budget goes on in the next turn.
    fn sweep(&mut self, budget: usize) -> usize {
        if self.ready.begin_turn() {
            let idle = self.ready.idle_places();
            let was_hot = self.subscribers.begin_arm(true);
            self.arm(&idle, was_hot);
            self.subscribers.finish_arm();
        }
        let (mut done, mut from) = (0, std::mem::take(&mut self.stopped_at));
        if from >= self.ready.len() {
            from = 0;
        }
        while let Some(index) = self.ready.next_ready(from) {
            if done >= budget {
                self.stopped_at = index;
                break;
            }
            let (place, watch) = self.ready.touch(index);
            from = index + 1;
            let Some(active) = self.links.get(place) else { continue };
            if active.link().is_changing() {
                continue;
            }
            let (count, outcome) = active.serve(SHARE.min(budget - done), &self.mailbox);
            active.advance(watch);
            done += count.max(1);
            // A link that moves to this index is polled in the next turn.
            self.conclude(place, outcome);
        }
        done
    }

    /// Serves one link, polled or not.
    fn serve(&mut self, place: usize) {
        let Some(active) = self.links.get(place) else { return };
        if active.link().is_changing() {
            active.link().post_poll();
            return;
        }
        active.disarm();
        let (_, outcome) = active.serve(SHARE, &self.mailbox);
        self.conclude(place, outcome);
        if let Some(watch) = self.links.get(place).and_then(|active| active.watch()) {
            self.ready.insert(watch, place);
        }
    }

    /// Serves one link, whose socket may hold packets.
    fn poll(&mut self, place: usize) {
        let Some(active) = self.links.get(place) else { return };
        let rest = active.take_packets();
        self.serve(place);
        if let Some(rest) = rest
            && self.links.get(place).is_some()
        {
            self.resting.insert(place, rest);
        }
    }

    /// Serves the links whose rest is over. Returns how many.
    fn end_rests(&mut self) -> usize {
        let rested = self.resting.take_rested();
        for place in &rested {
            self.poll(*place);
        }
        rested.len()
    }

    /// Does what follows from a link's turn.
    #[inline]
    fn conclude(&mut self, place: usize, outcome: Outcome) {
        match outcome {
            Outcome::Served => {}
            Outcome::Stalled => {
                self.ready.remove(place);
                if let Some(active) = self.links.get(place) {
                    active.stall();
                }
            }
            Outcome::Rests(time) => {
                self.ready.remove(place);
                if let Some(active) = self.links.get(place) {
                    active.rest();
                    self.resting.insert(place, time);
                }
            }
            Outcome::Ended(result) => self.end(place, result, None),
        }
    }

    /// Takes events, and waits up to `timeout` for the first one. Returns the amount of work done.
    fn take_events(&mut self, timeout: Option<Duration>) -> Result<usize> {
        let mut events = [MaybeUninit::<Event>::uninit(); 128];
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(LONG));
        let ready = match epoll::wait(&*self.mailbox, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(0),
            Err(errno) => return Err(Error::os("epoll_wait", errno)),
        };
        let mut done = 0;
        for event in ready.iter() {
            let (key, flags) = (event.data.u64(), event.flags);
            if Mailbox::<Command>::is_bell(key) {
                continue;
            }
            if let Some(place) = self.links.place(key) {
                done += 1;
                let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                let active = self.links.get(place);
                if active.is_some_and(|active| active.take_event(flags.intersects(ends))) {
                    self.poll(place);
                }
            } else if self.subscribers.take_event(key) || self.listeners.accept(key, &*self.mailbox)
            {
                done += 1;
            }
        }
        self.listeners.pass_time(&*self.mailbox);
        self.subscribers.pass_time();
        Ok(done + self.end_rests())
    }

    /// Arms every link and every sending half that waits for room. Returns whether the loop may sleep.
    fn arm_all(&mut self) -> bool {
        let mut was_hot = false;
        for place in &self.flushing {
            if let Some(active) = self.links.get(*place) {
                was_hot |= active.arm_writes();
            }
        }
        was_hot |= self.subscribers.begin_arm(false);
        let places = self.ready.places();
        let armed = self.arm(&places, was_hot);
        self.subscribers.finish_arm();
        let flushed = if self.flushing.is_empty() { 0 } else { self.flush() };
        armed && flushed == 0 && !self.mailbox.is_pending() && !self.subscribers.is_ready()
    }

    /// Arms the links at `places`, with one barrier. `was_hot`: another half that the caller has armed was hot. Returns
    /// `false` if one of the links has something. The loop goes on to poll that link.
    fn arm(&mut self, places: &[usize], mut was_hot: bool) -> bool {
        for place in places {
            if let Some(active) = self.links.get(*place) {
                was_hot |= active.begin_arm();
            }
        }
        if !places.is_empty() || !self.flushing.is_empty() || self.subscribers.is_arming() {
            before_last_look(was_hot);
        }
        let mut all_armed = true;
        for place in places {
            let Some(active) = self.links.get(*place) else { continue };
            if active.finish_arm() {
                self.ready.remove(*place);
            } else {
                all_armed = false;
            }
        }
        all_armed
    }

    /// Sends the writes that wait for room. Returns how many.
    fn flush(&mut self) -> usize {
        let mut done = 0;
        for place in std::mem::take(&mut self.flushing) {
            let Some(active) = self.links.get(place) else { continue };
            let (count, flushed) = active.flush(WRITES);
            done += count;
            match flushed {
                Flushed::Waiting => self.flushing.push(place),
                Flushed::Empty => {}
                Flushed::Closing => self.end(place, Ok(()), Some(ErrorKind::LinkClosed)),
            }
        }
        done
    }

    /// Executes the commands of handles. Returns how many.
    fn execute_commands(&mut self) -> usize {
        let commands = self.mailbox.take();
        let count = commands.len();
        for command in commands {
            if self.stopped {
                command.refuse(&ErrorKind::ReactorStopped);
            } else {
                self.execute(command);
            }
        }
        if self.stopped {
            self.refuse_all();
        }
        count
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Adopt { link, receiver, socket, deferred_limit } => {
                self.totals.insert(&link);
                let active = ActiveLink::new(link, *receiver, socket, deferred_limit);
                let place = self.links.insert(active);
                self.serve(place);
            }
            Command::Accept { key, listener, accept } => {
                self.listeners.push(key, *listener, accept);
            }
            Command::Subscribe { key, subscriber, socket, callback } => {
                self.subscribers.insert(key, (*subscriber, socket), callback);
            }
            Command::Joined(key, joined) => {
                self.subscribers.joined(key, joined.map(|feed| *feed), &self.mailbox)
            }
            Command::OnMessage(link, callback) => {
                link.end_change();
                self.change(&link, |active| active.on_message(callback));
            }
            Command::OnLong(link, callback) => {
                self.change(&link, |active| active.on_long(callback));
            }
            Command::OnTensors(link, callback) => {
                link.end_change();
                self.change(&link, |active| active.on_tensors(callback));
            }
            Command::OnTensorRequest(link, callback) => {
                link.end_change();
                self.change(&link, |active| active.on_tensor_request(callback));
            }
            Command::OnClosed(link, callback) => match self.links.find(&link) {
                Some(active) => active.on_closed(callback),
                None => drop(contain(|| callback(&link, link.end_result()))),
            },
            Command::Read(link, callback) => {
                if self.links.find(&link).is_some() {
                    self.change(&link, |active| active.read(callback));
                } else {
                    contain(|| callback(&link, link.read_after_end()));
                }
            }
            Command::Call(link, request, callback) => {
                let mut called = None;
                if self.links.find(&link).is_some() {
                    self.change(&link, |active| called = active.call(request, callback));
                } else {
                    called = contain(|| callback(&link, Err(link.end_error())));
                }
                if called.is_none() {
                    self.end_panicked(&link);
                }
            }
            Command::Written(link, callback, result) => {
                if contain(|| callback(&link, result)).is_none() {
                    self.end_panicked(&link);
                }
            }
            Command::Closed(link, callback, result) => {
                contain(|| callback(&link, result));
            }
            Command::Poll(link) => {
                link.begin_poll();
                if let Some(place) = self.links.place(link.key()) {
                    self.poll(place);
                }
            }
            Command::Flush(link) => {
                if let Some(place) = self.links.place(link.key())
                    && self.links.get(place).is_some_and(ActiveLink::begin_flushing)
                {
                    self.flushing.push(place);
                }
            }
            Command::Close(link) => {
                if let Some(place) = self.links.place(link.key())
                    && link.writes().close()
                {
                    self.end(place, Ok(()), Some(ErrorKind::LinkClosed));
                }
            }
            Command::Abort(link, error) => {
                if let Some(place) = self.links.place(link.key()) {
                    let result = error.map_or(Ok(()), Err);
                    self.end(place, result, Some(ErrorKind::LinkClosed));
                }
            }
            Command::Run(work) => {
                // A panic of deferred work concerns no link.
                contain(work);
            }
            Command::Nudge => {}
            Command::Shutdown => {
                self.stopped = true;
                self.end_all();
            }
        }
    }

    /// Changes the callbacks of a link, and serves the link if it was stalled.
    fn change(&mut self, link: &Link, change: impl FnOnce(&mut ActiveLink)) {
        let Some(place) = self.links.place(link.key()) else { return };
        let Some(active) = self.links.get(place) else { return };
        change(active);
        if active.unstall() {
            self.serve(place);
        }
    }

    fn end_panicked(&mut self, link: &Link) {
        if let Some(place) = self.links.place(link.key()) {
            self.end(place, Err(ErrorKind::CallbackPanicked.into()), None);
        }
    }

    fn end(&mut self, place: usize, result: Result<()>, by_us: Option<ErrorKind>) {
        let Some(active) = self.links.remove(place) else { return };
        self.ready.remove(place);
        self.resting.remove(place);
        self.flushing.retain(|flushing| *flushing != place);
        let _ = epoll::delete(&*self.mailbox, &active);
        let link = active.link().clone();
        active.end(result, by_us);
        self.totals.remove(&link);
    }

    /// Closes every link, listener and subscriber.
    fn end_all(&mut self) {
        self.subscribers.close(&self.mailbox);
        self.listeners.close(&*self.mailbox);
        for place in 0..self.links.places() {
            self.end(place, Ok(()), Some(ErrorKind::ReactorStopped));
        }
    }

    /// Ends the mailbox, and refuses the commands in it.
    fn refuse_all(&mut self) {
        for command in self.mailbox.stop() {
            command.refuse(&ErrorKind::ReactorStopped);
        }
    }
}

/// Readable when there is something to do. Call [`poll_once`](EventLoop::poll_once) until it returns 0 before each sleep,
/// the first one included.
impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.mailbox).as_fd()
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // A forked child shares the descriptors with its parent, and has none of its links.
        if !self.mailbox.generation().is_current() {
            return;
        }
        let mailbox = self.mailbox.clone();
        let _turn = mailbox.enter();
        self.end_all();
        self.refuse_all();
    }
}
