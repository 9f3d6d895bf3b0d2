//! The reading of one publisher, from the join to the end of the link.
//!
//! 1. A message is copied out of its slot, and then checked for having been overwritten meanwhile. A long one of a subscriber
//!    that wants every message is not copied: the publisher learns the position behind it at the next receive.
//! 2. A message with memory in the pool is held before that memory is read.
//! 3. The publisher learns the position when an eighth of the slots is read, when nothing is left, and after each message with
//!    memory in the pool: it may wait for it.
//! 4. Where the thread serves several peers, the slots that a look passes over and the packets that it reads have the publisher's
//!    [share](crate::link::share) of the thread's time. What a look leaves, another look takes when the share has grown.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broadcast::cursor::Cursor;
use crate::broadcast::layout::{BELL, Geometry};
use crate::broadcast::opening::open;
use crate::broadcast::payload::Payload;
use crate::broadcast::record::{Published, plain_len};
use crate::broadcast::sample::{Body, Rare, Sample};
use crate::broadcast::slots::{Look, SlotReader};
use crate::broadcast::topic;
use crate::channel::attachment::borrow_whole;
use crate::channel::hold::{Hold, HoldLimits};
use crate::channel::loan_descriptor::LoanDescriptor;
use crate::channel::segment_cache::SegmentCache;
use crate::channel::{ExtensionSlot, Metadata, Watch};
use crate::error::{Error, ErrorKind, Eviction, Fault, Result, TryRecvError};
use crate::handshake::packet::Reason;
use crate::handshake::peer::Peer;
use crate::handshake::{Policy, layout};
use crate::link::LinkSocket;
use crate::link::link::Link;
use crate::link::session::Session;
use crate::link::waiter::Waiter;
use crate::patience::RecvPatience;
use crate::ring::Header;
use crate::shm::{OwnWords, PeerMapping, PeerSegment, PeerWords};
use crate::status::Awaited;
use crate::status::layout::{MISSED, RECEIVER, TAKEN};
use crate::sync::Edge;
use crate::wake::{Attention, Sleeper, Spin, Waker, before_last_look};

/// Slots that one look passes over at most: twice as many as a topic can have. One
/// that lies about its slots holds the caller for about a millisecond, and then the caller looks at its deadline.
const SKIPS: u32 = 1 << 17;

/// As [`SKIPS`], where the thread serves several peers, to which it looks next: some 0.1 ms.
const SKIPS_IN_TURN: u32 = 1 << 13;

/// A subscriber that wants every message is shown payloads that are longer than this where they lie, in their slots. Shorter ones
/// are copied, and their slots are free at once.
const COPIED: usize = 1024;

/// With fewer slots that looks have passed over nothing is charged.
const FREE_SKIPS: u32 = 64;

/// The time to pass over a slot, or to copy one line of a slot that is not taken, in nanoseconds.
const SKIP: i64 = 10;

/// What came of reading a message.
enum Outcome {
    Taken,
    /// It was overwritten or withdrawn meanwhile.
    Gone,
    /// A segment that it names has come.
    Again,
    /// A segment that it names has not come, and the publisher has spent its share of the thread's time.
    Later,
}

/// A message that was taken.
#[derive(Debug, Default)]
struct Taken {
    message: u64,
    missed: u64,
    rare: Option<Box<Rare>>,
}

/// The reading of one publisher.
#[derive(Debug)]
pub(crate) struct Feed {
    slots: SlotReader<PeerMapping>,
    cursor: Cursor,
    link: Arc<Link>,
    waiter: Waiter,
    /// Wakes a publisher that waits for this subscriber.
    room: Waker,
    hold_limits: HoldLimits,
    segments: SegmentCache,
    extension: Option<Arc<ExtensionSlot>>,
    /// The payload of the message that was taken last.
    payload: Payload,
    /// The message that was taken last. It stands here and is not returned: a processor waits for each load of two words that
    /// were just stored one by one, and a move is such a load.
    taken: Taken,
    is_armed: bool,
    /// The thread serves several peers.
    takes_turns: bool,
    /// The slots that looks have passed over, and that are not charged.
    skipped: u32,
    /// The slots that looks have passed over without an end.
    in_vain: u32,
    /// The messages that this side has missed.
    missed: u64,
    /// The messages that it has taken.
    count: u64,
    /// The message and its segment that the socket was read for last.
    sought: Option<(u64, u32)>,
    /// The socket may hold packets, which were left because the share was spent.
    has_packets: bool,
    /// The last look has left something, or the publisher has spent its share.
    is_left: bool,
    session: Arc<Session>,
    /// The topic, mapped.
    _topic: PeerSegment,
}

impl Feed {
    /// Joins a publisher whose handshake has succeeded: waits for the topic until `deadline`.
    pub(super) fn join(
        session: Session,
        policy: Policy,
        spin: Spin,
        (since, deadline): (Instant, Instant),
    ) -> Result<Self> {
        let (topic, segment) = topic::receive(&session, (since, deadline))?;
        let geometry = Geometry::of(&topic);
        let words = segment.mapping().clone();
        let slots = SlotReader::new(words.clone(), geometry);
        let end = slots.newest().saturating_add(1);
        // A publisher that lists this side and then publishes a message has said a first one that is not later.
        let next = match topic.first {
            0 => end.saturating_sub(topic.history.into()).max(1),
            first => first.min(end),
        };
        let session = Arc::new(session);
        let link = session.link.clone();
        let sleeper = Sleeper::new(layout::RECEIVER_STATE, BELL).with_interrupts(link.interrupts());
        let mut feed = Self {
            slots,
            cursor: Cursor::new(policy, geometry.capacity(), next),
            waiter: Waiter::new(sleeper, spin, link.row().half(RECEIVER)).on(words.clone()),
            room: Waker::new(layout::SENDER_STATE, layout::ROOM_BELL),
            hold_limits: HoldLimits { messages: topic.hold_limit, bytes: topic.hold_bytes },
            segments: SegmentCache::default(),
            extension: None,
            payload: Payload::new(words),
            taken: Taken::default(),
            is_armed: false,
            takes_turns: false,
            skipped: 0,
            in_vain: 0,
            missed: 0,
            count: 0,
            sought: None,
            has_packets: false,
            is_left: false,
            link,
            session,
            _topic: segment,
        };
        feed.tell(true);
        Ok(feed)
    }

    /// Notes that the thread that [polls](Self::poll) serves several peers.
    pub(super) fn take_turns(&mut self) {
        let peer = self.link.identity();
        self.link.control_socket().take_turns((peer.uid(), peer.pid()));
        self.takes_turns = true;
    }

    /// Returns what [`rest`](Self::rest) returns, once.
    pub(super) fn take_rest(&mut self) -> Option<Duration> {
        let rest = self.rest();
        self.is_left = false;
        rest
    }

    /// Returns how long the caller lets the publisher rest, if the last poll has left something or the share is spent. Zero: until
    /// other peers have had their turns.
    pub(super) fn rest(&self) -> Option<Duration> {
        self.is_left.then(|| self.link.control_socket().rest().unwrap_or_default())
    }

    /// Returns whether [`take_rest`](Self::take_rest) returns a rest.
    pub(super) fn has_rest(&self) -> bool {
        self.is_left
    }

    /// Returns the publisher's process.
    pub(super) fn peer(&self) -> &Peer {
        self.link.identity()
    }

    /// Returns how many messages this side holds.
    pub(super) fn held(&self) -> usize {
        self.session.kept_loans() as usize
    }

    /// Returns the sample of the message that was taken last.
    #[inline(always)]
    pub(super) fn sample(&mut self, restarted: bool) -> Sample<'_> {
        let Taken { message, missed, ref mut rare } = self.taken;
        Sample::new(&self.payload, rare.take(), (message, missed), restarted)
    }

    /// Notes that a thread sleeps on the socket.
    pub(super) fn use_descriptor(&self) {
        self.link.use_descriptor();
    }

    /// Returns the socket of the link.
    pub(super) fn socket(&self) -> LinkSocket {
        LinkSocket::new(self.link.clone())
    }

    /// Takes the next message.
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: there is none now.
    /// - [`ErrorKind::TimedOut`], [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`], [`ErrorKind::Evicted`],
    ///   [`ErrorKind::HoldLimit`], [`ErrorKind::HoldBytes`], [`Fault`].
    #[inline(always)]
    pub(super) fn take(&mut self, patience: RecvPatience) -> Result<(), TryRecvError> {
        self.leave_slot();
        self.link.own().generation().check()?;
        let mut in_vain = false;
        loop {
            // The health comes first: what was published before the end is found after it.
            let is_alive = self.link.is_alive();
            if !is_alive && self.cursor.has_stopped() {
                return Err(self.end().into());
            }
            if self.look()? {
                if self.is_armed {
                    self.disarm();
                }
                return Ok(());
            }
            if self.is_left {
                self.await_turn(patience)?;
                continue;
            }
            if !is_alive {
                self.tell(true);
                return Err(self.end().into());
            }
            if in_vain {
                check_time(patience)?;
            }
            self.wait(patience)?;
            in_vain = true;
        }
    }

    /// Takes the next message as [`take`](Self::take) does. Where the thread serves several peers, and does not wait, what the look
    /// passes over is charged.
    #[inline(always)]
    pub(super) fn receive(&mut self, patience: RecvPatience) -> Result<(), TryRecvError> {
        if self.takes_turns && matches!(patience, RecvPatience::None) {
            return self.take_in_turn();
        }
        self.take(patience)
    }

    #[cold]
    fn take_in_turn(&mut self) -> Result<(), TryRecvError> {
        self.is_left = false;
        match self.poll() {
            Err(TryRecvError::Empty) if !self.is_left => self.take(RecvPatience::None),
            polled => polled,
        }
    }

    /// Lets the publisher rest, if the caller waits.
    #[cold]
    fn await_turn(&mut self, patience: RecvPatience) -> Result<(), TryRecvError> {
        check_time(patience)?;
        let rest = self.take_rest().unwrap_or_default();
        std::thread::sleep(match patience {
            RecvPatience::Until(deadline) => {
                rest.min(deadline.saturating_duration_since(Instant::now()))
            }
            _ => rest,
        });
        Ok(())
    }

    #[inline(always)]
    fn wait(&mut self, patience: RecvPatience) -> Result<(), TryRecvError> {
        let deadline = match patience {
            RecvPatience::None => {
                self.tell(true);
                return self.arm();
            }
            RecvPatience::Until(deadline) => Some(deadline),
            RecvPatience::Forever => None,
        };
        // A publisher that waits for room learns of all that was read.
        self.tell(true);
        let (slots, next) = (&self.slots, self.cursor.next());
        let is_due = || slots.is_due(next);
        self.waiter.wait(&self.link, Awaited::Message, (deadline, None), is_due)?;
        Ok(())
    }

    /// Arms before the caller sleeps on the socket, if it does so. Returns `Ok` if something has come meanwhile.
    #[cold]
    fn arm(&mut self) -> Result<(), TryRecvError> {
        if !self.link.by_descriptor() {
            return Err(TryRecvError::Empty);
        }
        let mut control_socket = self.link.control_socket();
        match control_socket.take_for_data(self.link.socket()) {
            Ok(took_all) => (self.has_packets, self.is_left) = (!took_all, !took_all),
            Err(error) => {
                drop(control_socket);
                return Err(self.fail(error).into());
            }
        }
        if control_socket.data_woken() || !self.is_armed {
            self.is_armed = true;
            before_last_look(self.waiter.arm(&self.link, Awaited::Message));
        }
        if control_socket.packets_at_end().is_some() {
            // The descriptor tells of the end once, and the watcher may learn of it later.
            self.link.hang_up();
        }
        drop(control_socket);
        let has_come = self.slots.is_due(self.cursor.next()) || !self.link.is_alive();
        if has_come { Ok(()) } else { Err(TryRecvError::Empty) }
    }

    /// Takes the next message as [`take`](Self::take) does, without waiting and without arming: the caller polls.
    pub(super) fn poll(&mut self) -> Result<(), TryRecvError> {
        self.leave_slot();
        self.link.own().generation().check()?;
        let is_alive = self.link.is_alive();
        if !is_alive && self.cursor.has_stopped() {
            return Err(self.end().into());
        }
        let taken = self.look();
        if self.skipped >= FREE_SKIPS {
            self.pay();
        }
        let taken = taken?;
        if self.is_armed {
            self.disarm();
        }
        if taken {
            (self.in_vain, self.skipped) = (0, 0);
            return Ok(());
        }
        if self.has_packets {
            self.is_left |= self.link.control_socket().rest().is_some();
        }
        if self.is_left {
            return Err(TryRecvError::Empty);
        }
        self.tell(true);
        Err(if is_alive { TryRecvError::Empty } else { self.end().into() })
    }

    /// Returns whether the next message is there, or a sign that it is gone, or the link has ended.
    pub(super) fn is_due(&self) -> bool {
        self.slots.is_due(self.cursor.next()) || !self.link.is_alive()
    }

    /// Returns a watch of the next message.
    pub(super) fn watch(&self) -> Watch {
        let (word, least) = self.slots.due(self.cursor.next());
        Watch::at_least(self.slots.words().clone(), word, least)
    }

    /// Says to the publisher that this side sleeps on the socket until the next message. Returns whether it was hot. The caller
    /// passes [`before_last_look`], and then [`finish_arm`](Self::finish_arm).
    #[must_use]
    pub(super) fn begin_arm(&mut self) -> bool {
        let mut control_socket = self.link.control_socket();
        let taken = control_socket.take_for_data(self.link.socket());
        control_socket.data_woken();
        let has_ended = control_socket.packets_at_end().is_some();
        drop(control_socket);
        match taken {
            // The descriptor tells of the end once, and the watcher may learn of it later.
            Ok(_) if has_ended => self.link.hang_up(),
            Ok(took_all) => (self.has_packets, self.is_left) = (!took_all, !took_all),
            Err(error) => drop(self.fail(error)),
        }
        self.is_armed = true;
        self.waiter.arm(&self.link, Awaited::Message)
    }

    /// Looks once more after [`begin_arm`](Self::begin_arm). Returns whether this side is armed: nothing has come meanwhile, and
    /// no packet is left.
    pub(super) fn finish_arm(&mut self) -> bool {
        let is_due = self.is_due() || self.is_left;
        if is_due {
            self.disarm();
        }
        !is_due
    }

    #[cold]
    fn disarm(&mut self) {
        self.is_armed = false;
        self.waiter.disarm(&self.link);
    }

    /// Takes the next message if it is there, or a later one where the policy skips some. Returns whether it took one.
    #[inline(always)]
    fn look(&mut self) -> Result<bool> {
        let mut left = if self.takes_turns { SKIPS_IN_TURN } else { SKIPS };
        while left > 0 {
            // A slot that is copied and not taken costs its lines, too.
            let mut cost = 1;
            let message = self.cursor.next();
            match self.slots.look(message) {
                Look::Message(word) => {
                    if self.cursor.is_lossy()
                        && let Some(later) = self.cursor.skips_to(self.slots.newest())
                    {
                        self.cursor.skip_to(later);
                    } else {
                        match self.read(message, word)? {
                            Outcome::Taken => return Ok(true),
                            Outcome::Gone => self.skip(message)?,
                            Outcome::Again => {}
                            Outcome::Later => return Ok(false),
                        }
                        cost += lines(word);
                    }
                }
                Look::Nothing => {
                    self.in_vain = 0;
                    return Ok(false);
                }
                Look::Withdrawn if self.cursor.is_lossy() => self.cursor.skip_to(message + 1),
                Look::Withdrawn | Look::Overwritten => self.skip(message)?,
            }
            self.skipped = self.skipped.saturating_add(cost);
            left = left.saturating_sub(cost);
        }
        // With more of them the publisher lies: there is no message.
        self.in_vain = self.in_vain.saturating_add(SKIPS_IN_TURN);
        self.is_left = self.takes_turns && self.in_vain < SKIPS;
        Ok(false)
    }

    /// Charges the publisher for the slots that looks have passed over.
    #[cold]
    fn pay(&mut self) {
        let skipped = std::mem::take(&mut self.skipped);
        let mut control_socket = self.link.control_socket();
        control_socket.spend(i64::from(skipped) * SKIP);
        self.is_left |= control_socket.rest().is_some();
    }

    /// Goes on behind a message that is gone.
    #[cold]
    fn skip(&mut self, message: u64) -> Result<()> {
        if self.cursor.is_kept() {
            // The publisher has evicted this side, or has died, or it lies.
            return Err(if self.link.is_alive() {
                self.fail(Fault::Overrun { message })
            } else {
                self.end()
            });
        }
        self.cursor.skip_to(self.cursor.after_overrun(self.slots.newest()));
        Ok(())
    }

    /// Takes a message, if it is neither overwritten nor withdrawn meanwhile.
    #[inline(always)]
    fn read(&mut self, message: u64, word: u64) -> Result<Outcome> {
        let Some(len) = plain_len(word, self.slots.geometry().room()) else {
            return self.read_rare(message, word);
        };
        let place = self.slots.payload(message);
        if len > COPIED && self.cursor.is_kept() {
            self.show(place, len);
            return Ok(Outcome::Taken);
        }
        self.slots.words().bytes(place, len).copy_to(self.payload.room(len)?);
        if !self.slots.is_whole(message) {
            return Ok(Outcome::Gone);
        }
        self.count_next(None);
        self.payload.is_copied((0, len));
        self.tell(false);
        Ok(Outcome::Taken)
    }

    /// Counts the message that was read.
    #[inline(always)]
    fn count_next(&mut self, rare: Option<Box<Rare>>) {
        let (message, missed) = self.cursor.take();
        self.taken = Taken { message, missed, rare };
        self.count += 1;
        let is_hot = self.waiter.is_hot();
        let is_stored = self.waiter.status().pass(message, 0, is_hot);
        if cfg!(feature = "metrics") && is_stored {
            self.waiter.status().store(TAKEN, self.count);
        }
        if missed > 0 {
            self.missed += missed;
            self.waiter.status().store(MISSED, self.missed);
        }
    }

    /// Takes a message without a copy. The publisher overwrites nothing from the position on that it knows.
    fn show(&mut self, place: usize, len: usize) {
        self.count_next(None);
        self.payload.is_in_slot((place, len));
    }

    /// Takes a message that has more than its slot's bytes, if it is not withdrawn meanwhile.
    #[inline(never)]
    fn read_rare(&mut self, message: u64, word: u64) -> Result<Outcome> {
        let published = match Published::of_word(word, self.slots.geometry().room()) {
            Ok(published) => published,
            // The header of a later message may be half written.
            Err(_) if !self.slots.is_whole(message) => return Ok(Outcome::Gone),
            Err(fault) => return Err(self.fail(fault)),
        };
        let len = published.len_in_slot();
        let place = self.slots.payload(message);
        self.slots.words().bytes(place, len).copy_to(self.payload.room(len)?);
        if !self.slots.is_whole(message) {
            return Ok(Outcome::Gone);
        }
        let (start, end, rare) = match self.hold_and_open(message, published, len) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(Outcome::Gone),
            Err(error) => return self.missing(message, error),
        };
        self.count_next(Some(rare));
        self.payload.is_copied((start, end));
        self.tell(true);
        Ok(Outcome::Taken)
    }

    /// Returns what comes of a message that could not be opened.
    #[cold]
    fn missing(&mut self, message: u64, error: Error) -> Result<Outcome> {
        match *error.kind() {
            ErrorKind::Fault(Fault::UnknownSegment { segment })
                if self.takes_turns && self.sought != Some((message, segment)) =>
            {
                let fetched = self.link.control_socket().fetch(self.link.socket(), segment);
                if fetched.map_err(|error| self.fail(error))? {
                    self.sought = Some((message, segment));
                    return Ok(Outcome::Again);
                }
                self.is_left = true;
                Ok(Outcome::Later)
            }
            // The publisher found that many packets wait for this side, and has not announced the segment.
            ErrorKind::Fault(Fault::UnknownSegment { .. }) | ErrorKind::HoldBytes { .. }
                if self.cursor.is_lossy() =>
            {
                Ok(Outcome::Gone)
            }
            ErrorKind::HoldLimit { .. } | ErrorKind::HoldBytes { .. } => Err(error),
            _ => Err(self.fail(error)),
        }
    }

    /// Holds a message whose payload in the slot is in the buffer, and opens it. Returns its payload's range in the buffer and the
    /// rest, or `None` if it was withdrawn meanwhile or this side may miss it.
    fn hold_and_open(
        &mut self,
        message: u64,
        published: Published,
        mut len: usize,
    ) -> Result<Option<(usize, usize, Box<Rare>)>> {
        let Self { slots, cursor, hold_limits: limits, session, segments, .. } = self;
        let payload = self.payload.buffer();
        let mut hold = None;
        if published.has_memory() {
            let Some(taken) = Hold::take(session, *limits, message) else {
                if cursor.is_lossy() {
                    return Ok(None);
                }
                return Err(ErrorKind::HoldLimit { limit: limits.messages }.into());
            };
            // A publisher that waits for this side withdraws no message before it has loaded a position behind it, and then it
            // sees the hold. Pairs with Seat::position.
            if !cursor.is_kept() && !slots.is_held(message) {
                return Ok(None);
            }
            let single = published.single(payload);
            // The publisher may have segments mapped for each message, as the peer of a link for each record.
            let is_cached =
                |loan: &LoanDescriptor| segments.current(session, loan.segment).is_some();
            if !single.as_ref().is_some_and(|(loan, _)| is_cached(loan)) {
                session.link.control_socket().open_window();
            }
            if let Some((loan, single)) = single {
                let range = borrow_whole(session, segments, &loan, taken)?;
                let body = Body::Tensor(single.on_loan(range));
                return Ok(Some((0, len, Box::new(Rare { metadata: Metadata::new(), body }))));
            }
            hold = Some(taken);
        }
        let memory = (&*session, segments);
        let (start, rare) =
            open(published, (payload, &mut len), memory, hold.as_ref(), &mut self.extension)?;
        Ok(Some((start, len, Box::new(rare))))
    }

    /// Notes that the caller is done with a message that was not copied.
    #[inline(always)]
    pub(super) fn leave_slot(&mut self) {
        if self.payload.leave_slot() {
            self.tell(false);
        }
    }

    /// Tells the publisher the position.
    #[inline(always)]
    fn tell(&mut self, now: bool) {
        if let Some(position) = self.cursor.tell(now) {
            self.waiter.status().passed(position - 1, 0);
            self.waiter.status().store(TAKEN, self.count);
            self.store_position(position);
        }
    }

    fn store_position(&mut self, position: u64) {
        // Pairs with Seat::position: this side has taken or held every message before.
        self.link.own().store(layout::POSITION, position, Edge::Release.store());
        self.waiter.progress(&self.link, position << 6);
        self.wake_publisher();
    }

    /// Wakes a publisher that waits for this side.
    #[inline(always)]
    fn wake_publisher(&mut self) {
        match self.room.look(self.link.own(), self.link.peer()) {
            Ok(Some(Attention::Wake)) => self.link.wake(self.room.bell()),
            Ok(Some(Attention::Call)) => self.link.call(Reason::Room),
            // An impossible word costs the publisher its wake-up.
            Ok(_) | Err(_) => {}
        }
    }

    /// Ends the link, and takes no further message. Returns the reason: what an evicted subscriber finds is no fault.
    #[cold]
    fn fail(&mut self, error: impl Into<Error>) -> Error {
        self.cursor.stop();
        // Pairs with Seat::evict: a side that finds what the publisher does after an eviction finds the eviction.
        Edge::Overrun.acquire();
        self.link.fail(self.evicted().unwrap_or_else(|| error.into()))
    }

    /// Returns why the link has ended.
    #[cold]
    fn end(&self) -> Error {
        self.evicted().unwrap_or_else(|| self.link.end())
    }

    /// Returns why the publisher has evicted this side, if it has.
    fn evicted(&self) -> Option<Error> {
        let cause = match self.link.peer().load(layout::EVICTED) {
            0 => return None,
            1 => Eviction::Stalled,
            3 => Eviction::Overdrawn,
            _ => Eviction::Asked,
        };
        Some(ErrorKind::Evicted { cause }.into())
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.socket().as_fd()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if self.link.own().generation().is_current() {
            if self.count > 0 {
                self.waiter.status().passed(self.taken.message, 0);
                self.waiter.status().store(TAKEN, self.count);
            }
            self.waiter.leave(&self.link);
            // The socket stays open as long as a sample is held.
            self.wake_publisher();
        }
    }
}

/// Returns the lines that a copy of a message with this header takes.
#[cold]
fn lines(header: u64) -> u32 {
    Header::from_word(header).map_or(0, |header| header.len() as u32 / 64)
}

/// Checks that time is left after a wait that ended without a message: a publisher that lies ends every wait at once.
#[cold]
fn check_time(patience: RecvPatience) -> Result<(), TryRecvError> {
    match patience {
        RecvPatience::None => Err(TryRecvError::Empty),
        patience => patience.check(Instant::now()),
    }
}
