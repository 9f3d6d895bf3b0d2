//! The subscribers of a loop.
//!
//! ```text
//!   armed ── event ──▶ ready ── nothing left ──▶ polled ── the loop is about to sleep ──▶ armed
//!                        │ the publisher has ended   │ a message
//!                        ▼                           ▼
//!                      apart ── a thread joins ──▶ ready
//! ```
//!
//! 1. The loop polls a subscriber of which nothing is left, as it polls links, and arms it before it sleeps or after many polls in
//!    vain. A subscriber that is armed costs the loop nothing.
//! 2. A join waits for another process, so a thread beside the loop does it, one for all subscribers of the loop. The thread
//!    starts with the first one that is apart, and ends with the set.
//! 3. A turn of a subscriber ends as that of a link, after a few messages or 256 KiB that were copied. A publisher that has spent its
//!    [share](crate::link::share) of the loop's time rests.
//! 4. A panic of a callback, `Break` and an error end the subscription. [`ErrorKind::HoldLimit`] and
//!    [`ErrorKind::HoldBytes`] do not.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::broadcast::{Feed, Joining, Subscriber, is_absent};
use crate::channel::Watch;
use crate::error::{Error, ErrorKind, Result, TryRecvError, contain};
use crate::link::LinkSocket;
use crate::reactor::active_link::QUANTUM;
use crate::reactor::command::{Command, SampleFn};
use crate::reactor::mailbox::Mailbox;
use crate::reactor::ready_set::IN_VAIN;

/// The most messages of one subscriber in one turn.
const SHARE: usize = 4;

/// The pause before the next look for publishers, and before a subscriber that holds too much looks for its next message.
const RETRY: Duration = Duration::from_millis(5);

/// The pause between two looks in multiples of a look, up to [`LONGEST`]: the looks take at most a twentieth of a processor.
const REST: u32 = 20;

/// The longest pause between two looks.
const LONGEST: Duration = Duration::from_millis(200);

/// What a descriptor of a subscriber tells of.
pub(super) const EVENTS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// A subscriber, and the callback that takes its samples.
struct Subscribed {
    subscriber: Subscriber,
    callback: SampleFn,
    /// What epoll watches.
    watched: Option<LinkSocket>,
    is_ready: bool,
    /// It has a place among those that the loop polls.
    is_polled: bool,
    /// The subscriber holds too much, or its publisher rests, and it looks for its next message then.
    paused_until: Option<Instant>,
    /// Its publisher rests: no event ends the pause.
    is_resting: bool,
}

/// A subscriber that the loop polls.
struct Polled {
    key: u64,
    watch: Watch,
    /// The turn in which its polls began.
    since: u64,
}

/// What follows from a turn of a subscriber.
enum Turn {
    /// It has more.
    Ready,
    Polled,
    /// The publisher sends a packet with the next message.
    Asleep,
    /// There is no publisher.
    Apart,
    /// It holds too much.
    Paused,
    /// Its publisher rests.
    Rests(Duration),
    Ended,
}

/// The subscribers of a loop, by key.
#[derive(Default)]
pub(super) struct SubscriberSet {
    subscribers: HashMap<u64, Subscribed>,
    /// The keys of those to serve in the next turn, each one once.
    ready: VecDeque<u64>,
    polled: Vec<Polled>,
    /// The keys of those that have begun to arm.
    arming: Vec<u64>,
    turn: u64,
    /// The keys of those that pause.
    paused: Vec<u64>,
    joins: Option<mpsc::Sender<(u64, Joining)>>,
}

impl SubscriberSet {
    pub(super) fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    /// Returns whether a subscriber has something to do.
    #[inline(always)]
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns how many subscribers the loop polls.
    pub(super) fn polled(&self) -> usize {
        self.polled.len()
    }

    /// Polls each polled subscriber once. Those that are due are served in this turn.
    #[inline(always)]
    pub(super) fn poll(&mut self) {
        self.turn += 1;
        let mut from = 0;
        while let Some(found) = self.polled[from..].iter().position(|each| each.watch.is_ready()) {
            from += found;
            let key = self.polled.swap_remove(from).key;
            if let Some(subscribed) = self.subscribers.get_mut(&key) {
                subscribed.is_polled = false;
            }
            self.wake(key);
        }
    }

    /// Begins to arm the polled subscribers, or with `idle_only` those that many polls have found empty. Returns whether one was hot. The
    /// caller passes [`before_last_look`](crate::wake::before_last_look) if [one arms](Self::is_arming), and then
    /// [`finish_arm`](Self::finish_arm).
    #[must_use]
    pub(super) fn begin_arm(&mut self, idle_only: bool) -> bool {
        let Self { subscribers, polled, arming, turn, .. } = self;
        let mut was_hot = false;
        polled.retain(|each| {
            if idle_only && *turn - each.since < IN_VAIN {
                return true;
            }
            if let Some(subscribed) = subscribers.get_mut(&each.key) {
                subscribed.is_polled = false;
                was_hot |= subscribed.subscriber.begin_arm();
                arming.push(each.key);
            }
            false
        });
        was_hot
    }

    /// Returns whether subscribers have begun to arm.
    pub(super) fn is_arming(&self) -> bool {
        !self.arming.is_empty()
    }

    /// Arms those that have begun to. Those of which something has come are served in the next turn.
    pub(super) fn finish_arm(&mut self) {
        for key in std::mem::take(&mut self.arming) {
            let Some(subscribed) = self.subscribers.get_mut(&key) else { continue };
            if !subscribed.subscriber.finish_arm() {
                self.wake(key);
            }
        }
    }

    /// Returns the time until a pause ends.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let until = |key| self.subscribers.get(key)?.paused_until;
        let first = self.paused.iter().filter_map(until).min();
        first.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Serves a subscriber from now on. `watched` is the socket that epoll watches under `key`.
    pub(super) fn insert(
        &mut self,
        key: u64,
        (mut subscriber, watched): (Subscriber, Option<LinkSocket>),
        callback: SampleFn,
    ) {
        subscriber.take_turns();
        let (is_ready, is_polled, is_resting, paused_until) = (false, false, false, None);
        let subscribed = Subscribed {
            subscriber,
            callback,
            watched,
            is_ready,
            is_polled,
            paused_until,
            is_resting,
        };
        self.subscribers.insert(key, subscribed);
        self.wake(key);
    }

    /// Has a subscriber served in the next turn. Returns whether there is one with this key.
    pub(super) fn wake(&mut self, key: u64) -> bool {
        let Some(subscribed) = self.subscribers.get_mut(&key) else { return false };
        if std::mem::take(&mut subscribed.is_polled) {
            self.polled.retain(|each| each.key != key);
        }
        if !std::mem::replace(&mut subscribed.is_ready, true) {
            self.ready.push_back(key);
        }
        true
    }

    /// Takes an event of a subscriber's socket. Returns whether there is a subscriber with this key.
    pub(super) fn take_event(&mut self, key: u64) -> bool {
        let is_resting = self.subscribers.get(&key).is_some_and(|each| each.is_resting);
        is_resting || self.wake(key)
    }

    /// Wakes those whose pause is over.
    pub(super) fn pass_time(&mut self) {
        if self.paused.is_empty() {
            return;
        }
        let now = Instant::now();
        for key in std::mem::take(&mut self.paused) {
            match self.subscribers.get(&key).and_then(|each| each.paused_until) {
                Some(until) if now < until => self.paused.push(key),
                _ => drop(self.wake(key)),
            }
        }
    }

    /// Serves each ready subscriber once. Returns the amount of work done.
    pub(super) fn serve(&mut self, mailbox: &Arc<Mailbox<Command>>) -> usize {
        let mut done = 0;
        for _ in 0..self.ready.len() {
            let Some(key) = self.ready.pop_front() else { break };
            let Some(subscribed) = self.subscribers.get_mut(&key) else { continue };
            (subscribed.is_ready, subscribed.is_resting) = (false, false);
            subscribed.paused_until = None;
            let (count, turn) = subscribed.serve(key, mailbox);
            done += count.max(1);
            match turn {
                Turn::Ready => drop(self.wake(key)),
                Turn::Asleep => {}
                Turn::Polled => {
                    let (watch, since) = (subscribed.subscriber.watch(), self.turn);
                    subscribed.is_polled = watch.is_some();
                    self.polled.extend(watch.map(|watch| Polled { key, watch, since }));
                }
                Turn::Apart => {
                    subscribed.unwatch(mailbox);
                    let joining = subscribed.subscriber.joining();
                    if let Err(error) = self.join(key, joining, mailbox) {
                        self.end(key, Some(error), mailbox);
                    }
                }
                Turn::Paused => self.pause(key, RETRY),
                Turn::Rests(Duration::ZERO) => drop(self.wake(key)),
                Turn::Rests(rest) => {
                    subscribed.is_resting = true;
                    self.pause(key, rest);
                }
                Turn::Ended => self.end(key, None, mailbox),
            }
        }
        done
    }

    fn pause(&mut self, key: u64, time: Duration) {
        if let Some(subscribed) = self.subscribers.get_mut(&key) {
            subscribed.paused_until = Some(Instant::now() + time);
            self.paused.push(key);
        }
    }

    /// Goes on with a publisher that was joined.
    pub(super) fn joined(
        &mut self,
        key: u64,
        joined: Result<Feed>,
        mailbox: &Arc<Mailbox<Command>>,
    ) {
        let Some(subscribed) = self.subscribers.get_mut(&key) else { return };
        match joined {
            Ok(feed) => {
                subscribed.subscriber.install(feed);
                self.wake(key);
            }
            Err(error) => self.end(key, Some(error), mailbox),
        }
    }

    /// Ends every subscription.
    pub(super) fn close(&mut self, mailbox: &Arc<Mailbox<Command>>) {
        let keys: Vec<u64> = self.subscribers.keys().copied().collect();
        for key in keys {
            self.end(key, Some(ErrorKind::ReactorStopped.into()), mailbox);
        }
        self.joins = None;
    }

    /// Ends a subscription. The callback learns of the error, if there is one.
    fn end(&mut self, key: u64, error: Option<Error>, mailbox: &Mailbox<Command>) {
        let Some(mut ended) = self.subscribers.remove(&key) else { return };
        if ended.is_polled {
            self.polled.retain(|each| each.key != key);
        }
        ended.unwatch(mailbox);
        if let Some(error) = error {
            contain(|| (ended.callback)(Err(error)));
        }
        contain(|| drop(ended));
    }

    /// Has the thread join the next publisher.
    fn join(&mut self, key: u64, joining: Joining, mailbox: &Arc<Mailbox<Command>>) -> Result<()> {
        let joins = match &self.joins {
            Some(joins) => joins,
            None => {
                let (joins, joinings) = mpsc::channel();
                let mailbox = mailbox.clone();
                std::thread::Builder::new()
                    .name("slipring-join".into())
                    .spawn(move || join_all(&joinings, &mailbox))
                    .map_err(|error| Error::os("thread spawn", error))?;
                self.joins.insert(joins)
            }
        };
        // The thread lives as long as the channel.
        let _ = joins.send((key, joining));
        Ok(())
    }
}

impl Subscribed {
    /// Hands a few samples to the callback. Returns how many, and what follows.
    fn serve(&mut self, key: u64, mailbox: &Mailbox<Command>) -> (usize, Turn) {
        let (mut count, mut bytes, mut in_vain) = (0, 0, false);
        while count < SHARE && bytes < QUANTUM {
            let Self { subscriber, callback, .. } = self;
            // A publisher that says that there is something, and there is nothing, lies.
            let taken = if in_vain { subscriber.arm_joined() } else { subscriber.poll_joined() };
            let (answer, next) = match taken {
                Ok(Some(sample)) => {
                    bytes += sample.len_in_slot();
                    (contain(|| callback(Ok(Some(sample)))), None)
                }
                Ok(None) => (contain(|| callback(Ok(None))), Some(Turn::Ended)),
                Err(TryRecvError::Failed(error)) => {
                    let is_limit = matches!(
                        error.kind(),
                        ErrorKind::HoldLimit { .. } | ErrorKind::HoldBytes { .. }
                    );
                    let next = if is_limit { Turn::Paused } else { Turn::Ended };
                    (contain(|| callback(Err(error))), Some(next))
                }
                Err(TryRecvError::Empty) => {
                    let Some(socket) = subscriber.socket() else {
                        return (count, Turn::Apart);
                    };
                    if self.watched.is_none() {
                        if let Err(error) = self.watch(key, socket, mailbox) {
                            contain(|| (self.callback)(Err(error)));
                            return (count, Turn::Ended);
                        }
                        // What came before makes no event.
                        continue;
                    }
                    if let Some(rest) = subscriber.take_rest() {
                        return (count, Turn::Rests(rest));
                    }
                    if in_vain {
                        return (count, Turn::Asleep);
                    }
                    if !subscriber.is_due() {
                        return (count, Turn::Polled);
                    }
                    in_vain = true;
                    continue;
                }
            };
            (count, in_vain) = (count + 1, false);
            if answer != Some(ControlFlow::Continue(())) {
                return (count, Turn::Ended);
            }
            if let Some(next) = next {
                return (count, next);
            }
            if let Some(rest) = self.subscriber.take_rest() {
                return (count, Turn::Rests(rest));
            }
        }
        (count, Turn::Ready)
    }

    fn watch(&mut self, key: u64, socket: LinkSocket, mailbox: &Mailbox<Command>) -> Result<()> {
        epoll::add(mailbox, &socket, EventData::new_u64(key), EVENTS)
            .map_err(|errno| Error::os("epoll_ctl", errno))?;
        self.watched = Some(socket);
        Ok(())
    }

    fn unwatch(&mut self, mailbox: &Mailbox<Command>) {
        if let Some(socket) = self.watched.take() {
            let _ = epoll::delete(mailbox, &socket);
        }
    }
}

/// The thread that joins publishers, until the loop ends.
fn join_all(joinings: &mpsc::Receiver<(u64, Joining)>, mailbox: &Mailbox<Command>) {
    let mut waiting: Vec<(u64, Joining)> = Vec::new();
    let mut pause = None;
    loop {
        let next = match pause {
            None => joinings.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(pause) => joinings.recv_timeout(pause),
        };
        match next {
            Ok(joining) => waiting.push(joining),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.extend(joinings.try_iter());
        let start = Instant::now();
        waiting.retain(|(key, joining)| match joining.join() {
            // A publisher whose process is stopped does not answer.
            Err(error) if is_absent(&error) || error.is_timeout() => true,
            joined => {
                Command::Joined(*key, joined.map(Box::new)).post(mailbox);
                false
            }
        });
        let rest = (start.elapsed() * REST).clamp(RETRY, LONGEST);
        pause = (!waiting.is_empty()).then_some(rest);
    }
}
