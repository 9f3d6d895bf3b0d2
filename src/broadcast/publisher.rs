//! The publisher: the one writer of a topic.
//!
//! The publisher owns the topic, the list of subscribers as of its last look, and the thread that admits them.
//!
//! 1. A short message takes no lock and makes no system call, unless a subscriber sleeps or has to make room.
//! 2. A send waits only for subscribers that want every message. It evicts those that read nothing for
//!    [`PublishOptions::stall_after`], and after four times as long all that are in its way and did not join meanwhile.
//! 3. A message that fails is not published, and the next one has its number.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broadcast::audience::Audience;
use crate::broadcast::event::Event;
use crate::broadcast::host::{Desk, Host};
use crate::broadcast::info::SubscriberInfo;
use crate::broadcast::layout::{BELL, Geometry};
use crate::broadcast::options::PublishOptions;
use crate::broadcast::record::{Draft, Kept, header_in_slot, plain_header, rotating_bytes};
use crate::broadcast::reservation::PublishReservation;
use crate::broadcast::slots::{SlotWriter, withdraw_at};
use crate::broadcast::stall::{Cause, Stall};
use crate::channel::Metadata;
use crate::error::{Error, ErrorKind, Eviction, Result, TrySendError};
use crate::handshake::{Address, layout};
use crate::link::link::wake_all;
use crate::link::waiter::Waiter;
use crate::patience::SendPatience;
use crate::pool::Block;
use crate::shm::{Area, Backing, Mapping, OwnWords, PeerMapping, PeerWords, Segment};
use crate::status::layout::{SENDER, WAKES, WHOM};
use crate::status::{Facts, Kind, Row};
use crate::transport::Context;
use crate::wake::{Crowd, Sleeper};

mod memory;
mod tensors;

/// The one writer of a topic. Its messages reach all subscribers, and lie in memory once.
///
/// A [`Context`] makes it with [`publish`](Context::publish). Dropping it ends the topic: subscribers receive what they have
/// not read, unless it lies in the pool and [`Options::release_grace`](crate::Options::release_grace) is over.
///
/// # Examples
///
/// ```
/// use slipring::broadcast::{PublishOptions, SubscribeOptions};
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut camera = context.publish(&address, PublishOptions::default())?;
/// let mut viewer = context.subscribe(&address, SubscribeOptions::every())?;
///
/// let mut frame = camera.alloc::<u8>([1080, 1920, 3])?;
/// frame.fill(7);
/// camera.send_tensor(frame)?; // one block, one record, any number of readers
///
/// let sample = viewer.recv()?.expect("a frame");
/// assert_eq!(sample.into_tensor()?.shape().dims(), [1080, 1920, 3]);
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct Publisher {
    writer: SlotWriter<Mapping>,
    /// The slots.
    area: Area,
    geometry: Geometry,
    words: Mapping,
    crowd: Crowd<PeerMapping>,
    /// The numbers of those in `crowd`.
    ids: Vec<u64>,
    /// The audience's version when `crowd` was made.
    seen: u64,
    /// The first message for which the publisher asks whether subscribers have made room.
    room_until: u64,
    /// The first message for which the publisher withdraws old ones.
    withdraw_at: u64,
    /// With more messages that keep memory, or one that keeps another number of bytes, it withdraws old ones, too.
    withdraw_above: (usize, u64),
    /// The waits for the next message. A send goes on with those of one that published nothing, so many short deadlines keep no
    /// subscriber that has stalled.
    stall: Stall,
    waiter: Waiter,
    /// Bytes of all messages.
    bytes: u64,
    /// System calls that woke subscribers, any number at once.
    rings: u64,
    audience: Arc<Audience>,
    options: PublishOptions,
    context: Context,
    address: Option<Address>,
    _host: Host,
}

/// Shows the number of messages on one line.
impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("sent", &(self.writer.next() - 1)).finish_non_exhaustive()
    }
}

impl Context {
    /// Publishes a topic under an address: a listener that admits subscribers.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidOption`]: an option has a value that it may not have.
    /// - [`ErrorKind::AddressInUse`]: another publisher or listener has the address.
    /// - [`ErrorKind::OutOfMemory`], [`ErrorKind::FileSizeLimit`]: there is no memory for the slots.
    /// - Otherwise as [`listen`](Context::listen).
    pub fn publish<A>(&self, address: A, options: PublishOptions) -> Result<Publisher>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        options.check(self.pool().quota())?;
        let listener = self.listen_for(address.try_into()?, options.admission())?;
        Publisher::start(self.clone(), listener, options)
    }
}

impl Publisher {
    fn start(
        context: Context,
        listener: crate::transport::Listener,
        options: PublishOptions,
    ) -> Result<Self> {
        let topic = options.topic();
        let geometry = Geometry::of(&topic);
        let len = geometry.topic_len();
        let segment = Segment::create("slipring.topic", (len, len), Backing::default())?;
        let inode = segment.inode();
        let (words, area, fd) = segment.into_parts(geometry.data());
        let audience = Arc::new(Audience::new(topic.hold_bytes));
        let (address, name) = (listener.address().cloned(), listener.name());
        let desk = Desk {
            audience: audience.clone(),
            topic,
            fd,
            words: words.clone(),
            most: options.most_subscribers(),
            grace: context.release_grace(),
        };
        let host = Host::start(desk, listener)?;
        let sleeper = Sleeper::new(layout::SENDER_STATE, layout::ROOM_BELL);
        let row = Row::open(&Facts {
            own: inode,
            context: context.pool().number(),
            limit: topic.slots.into(),
            address: &name,
            ..Facts::of(Kind::Topic)
        })?;
        Ok(Self {
            writer: SlotWriter::new(words.clone(), geometry),
            area,
            geometry,
            words,
            crowd: Crowd::new(layout::RECEIVER_STATE),
            ids: Vec::new(),
            seen: 0,
            room_until: u64::MAX,
            withdraw_at: u64::MAX,
            withdraw_above: (0, 0),
            stall: Stall::default(),
            waiter: Waiter::new(sleeper, context.spin_option(), row.half(SENDER)),
            bytes: 0,
            rings: 0,
            audience,
            options,
            context,
            address,
            _host: host,
        })
    }

    /// Returns the address of the topic.
    pub fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// Publishes a message.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PoolExhausted`]: the message does not fit into a slot, and all of the pool is in use.
    /// - [`ErrorKind::DescriptorLimit`]: the message lies in a new segment of the pool, and this process or its user may send no
    ///   further descriptor to a subscriber that wants every message.
    /// - [`ErrorKind::Forked`]: this process is a fork of the one that made the publisher.
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.put(message, SendPatience::Default).map_err(into_error)
    }

    /// Publishes as [`send`](Self::send) does. It waits for subscribers until `deadline`, and evicts none of them before
    /// [`PublishOptions::stall_after`]. A send after one that timed out goes on with its wait: the time of the subscribers does
    /// not begin anew.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`send`](Self::send).
    pub fn send_deadline(&mut self, message: &[u8], deadline: Instant) -> Result<()> {
        self.put(message, SendPatience::Until(deadline)).map_err(into_error)
    }

    /// Publishes as [`send`](Self::send) does. It does not wait.
    ///
    /// # Errors
    ///
    /// - [`TrySendError::Full`]: a subscriber that wants every message has yet to read the oldest one, or its socket.
    /// - Otherwise as [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        self.put(message, SendPatience::None)
    }

    /// Publishes a message with metadata, as [`send`](Self::send) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::broadcast::{PublishOptions, SubscribeOptions};
    /// # use slipring::{Address, Context, meta};
    /// # use slipring::message::Value;
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut camera = context.publish(&address, PublishOptions::default())?;
    /// # let mut viewer = context.subscribe(&address, SubscribeOptions::every())?;
    /// camera.send_with(b"tick", &meta! { "frame" => 7 }?)?;
    /// let sample = viewer.recv()?.expect("a message");
    /// assert_eq!(sample.metadata().get("frame"), Some(Value::Integer(7)));
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_with(&mut self, message: &[u8], metadata: &Metadata) -> Result<()> {
        self.put_with(message, metadata, SendPatience::Default).map_err(into_error)
    }

    /// Publishes as [`send_with`](Self::send_with) does. It waits for subscribers as [`send_deadline`](Self::send_deadline) does.
    ///
    /// # Errors
    ///
    /// As [`send_deadline`](Self::send_deadline).
    pub fn send_with_deadline(
        &mut self,
        message: &[u8],
        metadata: &Metadata,
        deadline: Instant,
    ) -> Result<()> {
        self.put_with(message, metadata, SendPatience::Until(deadline)).map_err(into_error)
    }

    /// Returns room for one message of `len` bytes, which the caller writes where the subscribers read it: in its slot, or in
    /// a block of the pool if it is long. It waits as [`send`](Self::send) does.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Result<PublishReservation<'_>> {
        if len > self.geometry.room() {
            return self.reserve_with(len, &Metadata::new());
        }
        self.await_room(SendPatience::Default).map_err(into_error)?;
        let start = self.writer.begin();
        Ok(PublishReservation::in_slot(self, plain_header(len), (start, len)))
    }

    /// Returns room for one message with metadata, as [`reserve`](Self::reserve) does.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn reserve_with(
        &mut self,
        len: usize,
        metadata: &Metadata,
    ) -> Result<PublishReservation<'_>> {
        let section = metadata.section();
        self.await_room(SendPatience::Default).map_err(into_error)?;
        if len.saturating_add(section.len()) > self.geometry.room() {
            let block = self.block(len, SendPatience::Default).map_err(into_error)?;
            return Ok(PublishReservation::in_block(self, section.to_vec(), block));
        }
        let start = self.writer.begin();
        self.area.put(start, section);
        let header = header_in_slot(section, len);
        Ok(PublishReservation::in_slot(self, header, (start + section.len(), len)))
    }

    /// Returns the bytes of slots, which a reservation has begun.
    #[inline(always)]
    pub(super) fn in_slots(&self, (start, len): (usize, usize)) -> &[u8] {
        self.area.bytes(start, len)
    }

    /// Returns the bytes of slots for writing, which a reservation has begun.
    #[inline(always)]
    pub(super) fn in_slots_mut(&mut self, (start, len): (usize, usize)) -> &mut [u8] {
        self.area.bytes_mut(start, len)
    }

    /// Publishes what a reservation has written into the next slot.
    #[inline(always)]
    pub(super) fn publish_slot(&mut self, header: u64) {
        self.bytes += header >> 32;
        self.writer.publish(header);
        self.wake();
    }

    /// Publishes what a reservation has written into a block.
    pub(super) fn publish_block(&mut self, section: &[u8], block: Block) -> Result<()> {
        let patience = SendPatience::Default;
        let draft = self.draft(patience, move |_| Draft::of_block(section, block));
        self.publish_draft(draft, patience).map_err(into_error)
    }

    /// Returns who subscribes, and how far each one is. Each of them gets every message that is sent from here on, or counts it as
    /// [missed](crate::broadcast::Sample::missed).
    pub fn subscribers(&self) -> Vec<SubscriberInfo> {
        let newest = self.writer.next() - 1;
        let state = self.audience.lock();
        state.seats().map(|(id, seat)| SubscriberInfo::of(id, seat, newest)).collect()
    }

    /// Ends a subscriber, and takes back all memory that it holds. Returns whether there was one with this number.
    ///
    /// The subscriber's receives return [`ErrorKind::Evicted`], and reads of what it holds [`ErrorKind::LoanRevoked`].
    pub fn evict(&mut self, subscriber: u64) -> bool {
        self.audience.evict(subscriber, Eviction::Asked)
    }

    /// Returns what has happened to subscribers after the last call, oldest first: at most the last 1024 events.
    pub fn take_events(&self) -> Vec<Event> {
        self.audience.lock().take_events()
    }

    /// Returns the bytes of the pool that published messages keep. Some may be of messages that no subscriber may ask for any more:
    /// [`reclaim`](Self::reclaim) takes those back.
    pub fn kept_bytes(&self) -> u64 {
        self.audience.lock().kept_bytes()
    }

    /// Takes back the memory of messages that no subscriber may ask for, and that none holds. Returns how many bytes that were.
    ///
    /// A send does this when it needs memory, so only a publisher that sends nothing for a while and shares its pool with others
    /// has a use for it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::broadcast::PublishOptions;
    /// # use slipring::{Address, Context};
    /// # let context = Context::new()?;
    /// let mut camera = context.publish(Address::fresh(), PublishOptions::new().history(1))?;
    /// camera.send(&[7; 100_000])?;
    /// camera.reclaim();
    /// assert!(camera.kept_bytes() >= 100_000); // for the next subscriber
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn reclaim(&mut self) -> u64 {
        // A forked child has nothing mapped.
        if !self.words.generation().is_current() {
            return 0;
        }
        let mut state = self.audience.lock();
        let before = state.kept_bytes();
        self.audience.withdraw(&mut state, &self.writer, self.options.topic().history.into(), 0);
        let (freed, ended) = (before - state.kept_bytes(), state.take_ended());
        drop(state);
        drop(ended);
        freed
    }

    /// Returns the bytes of the longest message in a slot.
    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        self.geometry.room()
    }

    /// Returns the number of messages that were published.
    pub fn sent(&self) -> u64 {
        self.writer.next() - 1
    }

    #[inline(always)]
    pub(super) fn put(
        &mut self,
        message: &[u8],
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        if message.len() > self.geometry.room() {
            return self.put_long(message, &Metadata::new(), patience);
        }
        self.await_room(patience)?;
        self.put_silently(message);
        self.wake();
        Ok(())
    }

    #[cold]
    fn put_with(
        &mut self,
        message: &[u8],
        metadata: &Metadata,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let section = metadata.section();
        if section.len() + message.len() > self.geometry.room() {
            return self.put_long(message, metadata, patience);
        }
        self.await_room(patience)?;
        let offset = self.writer.begin();
        self.area.put(offset, section);
        self.area.put(offset + section.len(), message);
        self.publish_slot(header_in_slot(section, message.len()));
        Ok(())
    }

    #[cold]
    fn put_long(
        &mut self,
        message: &[u8],
        metadata: &Metadata,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let section = metadata.section();
        self.await_room(patience)?;
        let draft = self.draft(patience, |alloc| Draft::long(section, message, alloc));
        self.publish_draft(draft, patience)
    }

    /// Publishes a message that fits into a slot, and wakes nobody. There is room for it.
    #[inline(always)]
    pub(super) fn put_silently(&mut self, message: &[u8]) {
        self.bytes += message.len() as u64;
        let offset = self.writer.begin();
        self.area.put(offset, message);
        self.writer.publish(plain_header(message.len()));
    }

    /// Makes a draft, whose blocks come from the pool.
    fn draft(
        &mut self,
        patience: SendPatience,
        make: impl FnOnce(&mut dyn FnMut(usize) -> Result<Block>) -> Result<Draft>,
    ) -> Result<Draft, TrySendError> {
        let room = self.geometry.room();
        let mut full = None;
        let mut alloc = |len: usize| {
            self.block(len, patience).map_err(|error| match error {
                TrySendError::Failed(error) => error,
                TrySendError::Full { free, needed } => {
                    full = Some((free, needed));
                    ErrorKind::PoolExhausted { needed, used: needed, quota: free }.into()
                }
            })
        };
        let made = make(&mut alloc).and_then(|draft| draft.fit(room, &mut alloc));
        match full {
            Some((free, needed)) => Err(TrySendError::Full { free, needed }),
            None => Ok(made?),
        }
    }

    /// Publishes a draft, if it could be made.
    fn publish_draft(
        &mut self,
        draft: Result<Draft, TrySendError>,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let Draft { header, payload, kept } = draft?;
        self.publish(header, &payload, kept, patience)
    }

    /// Publishes a message whose payload fits into a slot. There is room for it.
    fn publish(
        &mut self,
        header: u64,
        payload: &[u8],
        kept: Vec<Kept>,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let history = self.options.topic().history.into();
        loop {
            let mut state = self.audience.lock();
            match state.announce(&kept)? {
                None => {
                    let message = self.writer.next();
                    let offset = self.writer.begin();
                    self.bytes += payload.len() as u64;
                    self.bytes += kept.iter().map(Kept::bytes).sum::<u64>();
                    self.area.put(offset, payload);
                    self.writer.publish(header);
                    if !kept.is_empty() {
                        let bytes = rotating_bytes(&kept);
                        state.keep(message, kept);
                        // A look at the words of all subscribers takes their lines away from them. So the publisher looks once
                        // for half of the blocks that the pool hands out in turn.
                        let (count, of) = self.withdraw_above;
                        if state.kept_count() > count || bytes != of {
                            self.audience.withdraw(&mut state, &self.writer, history, 0);
                            let spare = self.spare(bytes);
                            self.withdraw_above = (state.kept_count() + spare, bytes);
                        }
                    }
                    self.withdraw_at = withdraw_at(state.oldest_kept(), self.geometry.capacity());
                    break;
                }
                // Its socket's queue is full: it reads no packets.
                Some(id) => {
                    let position =
                        state.seat(id).map_or(0, |seat| seat.position(self.writer.next() - 1));
                    drop(state);
                    self.await_subscriber((id, position + 1), Cause::Packets, patience)?;
                }
            }
        }
        self.wake();
        Ok(())
    }

    /// Returns how many messages that keep so many bytes the publisher keeps for longer than it must.
    fn spare(&self, bytes: u64) -> usize {
        if bytes == 0 { 0 } else { self.context.pool().rotation(bytes) as usize / 2 }
    }

    /// Makes sure that the next slot may be overwritten.
    #[inline(always)]
    pub(super) fn await_room(&mut self, patience: SendPatience) -> Result<(), TrySendError> {
        if self.has_room() { Ok(()) } else { self.make_room(patience) }
    }

    /// Returns whether the next slot may be overwritten, as of the last look at the subscribers, and that they are the same.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        let next = self.writer.next();
        self.audience.version() == self.seen && next < self.room_until && next < self.withdraw_at
    }

    #[cold]
    fn make_room(&mut self, patience: SendPatience) -> Result<(), TrySendError> {
        self.context.check()?;
        let (next, capacity) = (self.writer.next(), self.geometry.capacity());
        let history = self.options.topic().history.into();
        loop {
            self.adopt();
            let last = {
                let mut state = self.audience.lock();
                let last = state.last(next - 1);
                self.room_until = last.map_or(u64::MAX, |(_, position)| position + capacity);
                if next < self.room_until {
                    // The message that the next one overwrites keeps no memory in its slot any more.
                    let overwritten = (next + 1).saturating_sub(capacity);
                    self.audience.withdraw(&mut state, &self.writer, history, overwritten);
                    self.withdraw_at = withdraw_at(state.oldest_kept(), capacity);
                    return Ok(());
                }
                last
            };
            if let Some((id, _)) = last {
                let until = (id, next - capacity + 1);
                self.await_subscriber(until, Cause::Messages, patience)?;
            }
        }
    }

    /// Waits until a subscriber has read up to `position`, or is gone. Evicts it if it takes too long.
    fn await_subscriber(
        &mut self,
        (id, position): (u64, u64),
        cause: Cause,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let newest = self.writer.next() - 1;
        let (link, was_hot, stalled) = {
            let state = self.audience.lock();
            let Some(seat) = state.seat(id) else { return Ok(()) };
            let at = seat.position(newest);
            if at >= position || seat.is_over() {
                return Ok(());
            }
            if matches!(patience, SendPatience::None) {
                let behind = newest + 1 - position.min(newest + 1);
                let free = self.geometry.capacity().saturating_sub(behind + 1);
                return Err(TrySendError::Full { free, needed: 1 });
            }
            let is_hot = seat.take_heat();
            self.waiter.set_hot(is_hot);
            let all = || state.waited_for().map(|(id, seat)| (id, seat.position(newest))).collect();
            let stalled = self.stall.until(newest + 1, (id, at), self.options.patience(), all);
            (seat.link().clone(), is_hot, stalled)
        };
        let until = match patience {
            SendPatience::Until(deadline) => Some(deadline),
            _ => None,
        };
        let deadline = until.map_or(stalled, |until| until.min(stalled));
        let (mut reached, sleeps) = (0, self.waiter.sleeps);
        let is_there = || {
            reached = link.peer().load(layout::POSITION).min(newest + 1);
            reached >= position || link.peer_left()
        };
        self.waiter.status().store(WHOM, link.peer_inode());
        let until = (Some(deadline), cause.slice());
        let waited = self.waiter.wait(&link, cause.awaited(), until, is_there);
        self.waiter.status().run();
        self.stall.end_wait();
        if let Some(seat) = self.audience.lock().seat(id) {
            seat.advance(reached);
            let is_hot = self.waiter.is_hot();
            seat.put_heat(is_hot, was_hot != is_hot || self.waiter.sleeps > sleeps, newest);
        }
        match waited {
            Err(error) if error.is_timeout() => {
                if Instant::now() >= stalled {
                    self.audience.evict(id, Eviction::Stalled);
                    return Ok(());
                }
                Err(error.waiting_for(cause.text()).into())
            }
            waited => Ok(waited?),
        }
    }

    /// Copies the list of subscribers, if it has changed.
    fn adopt(&mut self) {
        let version = self.audience.version();
        if version != self.seen {
            let mut state = self.audience.lock();
            let ((ids, words), ended) = (state.words(), state.take_ended());
            drop(state);
            drop(ended);
            self.crowd.replace(words.into_iter());
            self.ids = ids;
            self.seen = version;
            // The next message asks for all of them.
            self.room_until = 0;
        }
    }

    /// Wakes the subscribers that sleep.
    #[inline(always)]
    pub(super) fn wake(&mut self) {
        let (audience, ids) = (&self.audience, &self.ids);
        let rings = self.crowd.look(|index| call(audience, ids[index]));
        let is_stream = rings.is_none() && !ids.is_empty();
        self.waiter.status().pass(self.writer.next() - 1, self.bytes, is_stream);
        if rings == Some(true) {
            self.ring();
        }
        // Pairs with Audience::join: a subscriber that may have missed this message is in the list.
        if self.audience.version() != self.seen {
            self.wake_newcomers();
        }
    }

    #[cold]
    fn wake_newcomers(&mut self) {
        self.adopt();
        let (audience, ids) = (&self.audience, &self.ids);
        if self.crowd.look(|index| call(audience, ids[index])) == Some(true) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&mut self) {
        self.rings += 1;
        self.waiter.status().store(WAKES, self.rings);
        self.words.add(BELL, 1);
        wake_all(&self.words, BELL);
    }
}

#[cold]
fn call(audience: &Audience, id: u64) {
    audience.lock().call(id);
}

pub(super) fn into_error(error: TrySendError) -> Error {
    match error {
        TrySendError::Failed(error) => error,
        // An operation that waits ends at its deadline instead.
        TrySendError::Full { .. } => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if self.words.generation().is_current() {
            self.waiter.status().passed(self.writer.next() - 1, self.bytes);
            self.audience.lock().end();
        }
    }
}
