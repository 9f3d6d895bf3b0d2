//! The sending half of a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::pool::{Block, Lacking};
use crate::reactor::{Attention, Barrier, Sleeper, Waker};
use crate::ring::{BatchSlot, Full, Header, Kind, Producer, batch_limit, largest_payload};
use crate::shm::fork::Generation;
use crate::shm::{Area, Mapping, PeerMapping};
use crate::transport::arrivals::ROOM_WAKES;
use crate::transport::control;
use crate::transport::hello::Reason;
use crate::transport::link::{Health, Link, Session};
use crate::transport::pooled::{self, Pooled};
use crate::transport::sent::{Offered, SentSegments};
use crate::transport::wait::{Waiter, after};

/// How long to sleep at a time while waiting for what nobody rings for: blocks that other peers
/// hold, or room on the socket.
const SLICE: Duration = Duration::from_millis(5);

/// Why something could not be sent at once.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// There is no room now. Room comes as the receiver receives.
    #[error("no room now: {needed} bytes needed, {free} free")]
    Full {
        /// Bytes that are free.
        free: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// The connection cannot send this, or nothing any more.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<Fault> for TrySendError {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault.into())
    }
}

impl From<Full> for TrySendError {
    fn from(full: Full) -> Self {
        Self::Full { free: full.free, needed: full.needed }
    }
}

/// What a sending half has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStats {
    /// Messages published.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages of these that travelled through the pool.
    pub pooled: u64,
    /// How often the receiver had to be woken.
    pub wakes: u64,
    /// How often this half went to sleep for want of room.
    pub sleeps: u64,
}

/// The sending half of a [`Connection`](crate::Connection): one thread's at a time.
///
/// Dropping it tells the receiver that nothing follows; what was sent before is delivered.
#[derive(Debug)]
pub struct Sender {
    producer: Producer<Mapping, PeerMapping>,
    ring: Area,
    data: Waker,
    room: Waiter,
    generation: Generation,
    link: Arc<Link>,
    session: Arc<Session>,
    /// The longest message that travels in the ring, in bytes.
    inline_max: usize,
    sent: SentSegments,
    /// The block of the reservation that is being written.
    pending: Option<PoolRoom>,
    /// The batch that is being written.
    batch: BatchSlot,
    /// Bytes of the messages in it.
    batch_bytes: u64,
    /// The peer's receiver said that it will look no more.
    gone: bool,
    stats: SendStats,
}

/// How long to wait for room.
#[derive(Clone, Copy)]
enum Patience {
    None,
    Until(Instant),
    /// The connection's send timeout, taken when waiting begins.
    Default,
}

/// What a record says before the user's bytes.
#[derive(Debug, Clone, Copy)]
struct Envelope {
    kind: Kind,
    /// The id of a request or response.
    id: Option<u64>,
}

const PLAIN: Envelope = Envelope { kind: Kind::Message, id: None };

impl Envelope {
    fn len(&self) -> usize {
        if self.id.is_some() { 8 } else { 0 }
    }

    /// The header of a record that carries a descriptor.
    fn pooled(&self) -> Header {
        Header::pooled(self.kind, (self.len() + pooled::LEN) as u32)
    }
}

impl Sender {
    pub(super) fn new(session: Arc<Session>, ring: Area) -> Self {
        let link = session.link.clone();
        let own = link.terms.own;
        let options = &session.core.options;
        let producer = Producer::new(
            link.own.clone(),
            link.peer.clone(),
            own.control,
            control::POSITION,
            own.ring,
            0,
        );
        let sleeper = Sleeper::new(control::SENDER_STATE, control::ROOM_BELL);
        let inline_max = options
            .inline_max
            .min(own.ring / 4)
            .min(largest_payload(own.ring) - 8)
            .min(link.terms.max_message);
        Self {
            producer,
            ring,
            data: Waker::new(control::RECEIVER_STATE, control::DATA_BELL),
            room: Waiter::new(sleeper, options.spin),
            inline_max: inline_max as usize,
            sent: SentSegments::default(),
            pending: None,
            batch: BatchSlot::default(),
            batch_bytes: 0,
            gone: false,
            stats: SendStats::default(),
            generation: *link.own.generation(),
            link,
            session,
        }
    }

    /// Sends a message: copies it, and wakes the receiver if it sleeps. Waits for room as long as
    /// [`Options::send_timeout`](crate::Options::send_timeout) allows.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::MessageTooLarge`], [`ErrorKind::TimedOut`]: nothing was sent.
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`]: nobody will receive it.
    /// - [`ErrorKind::Fault`]: the peer broke the protocol; the connection is over.
    /// - [`ErrorKind::OutOfMemory`], [`ErrorKind::DescriptorLimit`]: the pool could not grow.
    #[inline(always)]
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.put(PLAIN, message, Patience::Default).map_err(spent)
    }

    /// As [`send`](Self::send), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_deadline(&mut self, message: &[u8], deadline: Instant) -> Result<()> {
        self.put(PLAIN, message, Patience::Until(deadline)).map_err(spent)
    }

    /// As [`send`](Self::send), but does not wait.
    ///
    /// # Errors
    ///
    /// - [`TrySendError::Full`]: nothing was sent.
    /// - [`TrySendError::Failed`]: as [`send`](Self::send).
    #[inline(always)]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        self.put(PLAIN, message, Patience::None)
    }

    /// Sends a request with an id that the response will carry.
    pub(super) fn send_request(&mut self, id: u64, body: &[u8], deadline: Instant) -> Result<()> {
        let envelope = Envelope { kind: Kind::Request, id: Some(id) };
        self.put(envelope, body, Patience::Until(deadline)).map_err(spent)
    }

    /// Sends the response to a request that [`Receiver::recv_request`](crate::Receiver::recv_request)
    /// gave.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn respond(&mut self, request: crate::RequestId, body: &[u8]) -> Result<()> {
        let envelope = Envelope { kind: Kind::Response, id: Some(request.0) };
        self.put(envelope, body, Patience::Default).map_err(spent)
    }

    /// As [`respond`](Self::respond), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_respond(
        &mut self,
        request: crate::RequestId,
        body: &[u8],
    ) -> Result<(), TrySendError> {
        let envelope = Envelope { kind: Kind::Response, id: Some(request.0) };
        self.put(envelope, body, Patience::None)
    }

    /// Sends a request if there is room.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_request(
        &mut self,
        id: crate::RequestId,
        body: &[u8],
    ) -> Result<(), TrySendError> {
        let envelope = Envelope { kind: Kind::Request, id: Some(id.0) };
        self.put(envelope, body, Patience::None)
    }

    /// Room for a message of `len` bytes, to be written in place and then
    /// [published](Reservation::publish). Waits for room as [`send`](Self::send) does.
    ///
    /// The bytes start at a multiple of 8, of 64 when the message is longer than
    /// [`Options::inline_max`](crate::Options::inline_max), and hold whatever was there before.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>> {
        self.reserve_with(len, Patience::Default).map_err(spent)
    }

    /// As [`reserve`](Self::reserve), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn reserve_deadline(&mut self, len: usize, deadline: Instant) -> Result<Reservation<'_>> {
        self.reserve_with(len, Patience::Until(deadline)).map_err(spent)
    }

    /// As [`reserve`](Self::reserve), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_reserve(&mut self, len: usize) -> Result<Reservation<'_>, TrySendError> {
        self.reserve_with(len, Patience::None)
    }

    /// Starts a batch: messages that become visible together, at the cost of one publication.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # let mut sender: slipring::Sender = unimplemented!();
    /// let mut batch = sender.batch()?;
    /// for reading in [1u64, 2, 3] {
    ///     batch.push(&reading.to_le_bytes())?;
    /// }
    /// batch.publish()?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn batch(&mut self) -> Result<Batch<'_>> {
        self.check()?;
        self.producer.start(&mut self.batch);
        self.batch_bytes = 0;
        Ok(Batch { sender: self })
    }

    /// What this half has done.
    pub fn stats(&self) -> SendStats {
        SendStats { sleeps: self.room.sleeps, ..self.stats }
    }

    /// The longest message of this connection, in bytes.
    pub fn max_message(&self) -> u64 {
        self.session.link.terms.max_message
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Whether this half can still be used.
    #[inline(always)]
    fn check(&self) -> Result<()> {
        let link = &*self.link;
        self.generation.check()?;
        if link.is_alive() && !self.gone { Ok(()) } else { Err(self.over()) }
    }

    /// Why nothing can be sent any more.
    #[cold]
    fn over(&self) -> Error {
        if self.gone && self.link.health() != Health::Failed {
            return ErrorKind::PeerClosed.into();
        }
        self.link.end()
    }

    #[inline(always)]
    fn put(
        &mut self,
        envelope: Envelope,
        message: &[u8],
        patience: Patience,
    ) -> Result<(), TrySendError> {
        if message.len() > self.inline_max {
            return self.put_pooled(envelope, message, patience);
        }
        let len = envelope.len() + message.len();
        let header = Header::new(envelope.kind, len as u32);
        let offset = self.room_in_ring(header, patience)?;
        self.write(offset, envelope, message);
        self.finish(header, message.len())?;
        Ok(())
    }

    #[cold]
    fn put_pooled(
        &mut self,
        envelope: Envelope,
        message: &[u8],
        patience: Patience,
    ) -> Result<(), TrySendError> {
        // A reservation that was forgotten holds its block no longer.
        self.pending = None;
        let mut room = self.room_in_pool(message.len(), envelope, patience)?;
        room.block.bytes_mut().copy_from_slice(message);
        self.finish_pooled(room, envelope, message.len())?;
        Ok(())
    }

    #[inline(always)]
    fn reserve_with(
        &mut self,
        len: usize,
        patience: Patience,
    ) -> Result<Reservation<'_>, TrySendError> {
        let header = Header::new(Kind::Message, len as u32);
        let offset = if len > self.inline_max {
            self.pending = None;
            self.pending = Some(self.room_in_pool(len, PLAIN, patience)?);
            POOLED
        } else {
            self.room_in_ring(header, patience)?
        };
        Ok(Reservation { header, offset, len, sender: self })
    }

    /// Writes an envelope and a short message into the ring. What shares the polled line with the
    /// header is written last.
    #[inline(always)]
    fn write(&mut self, offset: usize, envelope: Envelope, message: &[u8]) {
        self.ring.put(offset + envelope.len(), message);
        if let Some(number) = envelope.id {
            self.ring.put(offset, &number.to_le_bytes());
        }
    }

    /// Publishes a record and looks whether the receiver sleeps.
    #[inline(always)]
    fn finish(&mut self, header: Header, bytes: usize) -> Result<()> {
        self.producer.publish(header);
        self.stats.messages += 1;
        self.stats.bytes += bytes as u64;
        self.announce()
    }

    #[inline(always)]
    fn announce(&mut self) -> Result<()> {
        let link = &*self.link;
        match self.data.look(link.barrier, &link.own, &link.peer) {
            Ok(None) => Ok(()),
            Ok(Some(attention)) => self.attend(attention),
            Err(fault) => Err(link.fail(fault)),
        }
    }

    #[cold]
    fn attend(&mut self, attention: Attention) -> Result<()> {
        match attention {
            Attention::Wake => {
                self.stats.wakes += 1;
                self.session.link.wake(self.data.bell());
                Ok(())
            }
            Attention::Call => {
                self.stats.wakes += 1;
                self.session.link.call(Reason::Data);
                Ok(())
            }
            // It may have read this message before it left; the next one nobody will.
            Attention::Gone => {
                self.gone = true;
                Ok(())
            }
        }
    }

    /// Room for a record, and where its payload goes.
    #[inline(always)]
    fn room_in_ring(&mut self, header: Header, patience: Patience) -> Result<usize, TrySendError> {
        self.check()?;
        match self.producer.reserve(header) {
            Ok(Ok(offset)) => Ok(offset),
            Ok(Err(full)) => self.await_ring(header, full, patience),
            Err(fault) => Err(self.session.link.fail(fault).into()),
        }
    }

    #[cold]
    fn await_ring(
        &mut self,
        header: Header,
        mut full: Full,
        patience: Patience,
    ) -> Result<usize, TrySendError> {
        let deadline = self.deadline(patience);
        let mut looks = 0;
        loop {
            match deadline {
                Some(deadline) => self.await_room(full.needed, deadline)?,
                None if looks == 0 && self.link.by_descriptor() => self.arm()?,
                None => return Err(full.into()),
            }
            looks += 1;
            match self.producer.reserve(header) {
                Ok(Ok(offset)) => return Ok(offset),
                Ok(Err(still)) => full = still,
                Err(fault) => return Err(self.session.link.fail(fault).into()),
            }
        }
    }

    /// About to sleep on the socket until there is room: takes what has come there and says so to the
    /// peer. The caller looks once more.
    pub(crate) fn arm(&mut self) -> Result<()> {
        let link = &*self.link;
        let mut arrivals = link.arrivals();
        let taken = if link.by_descriptor() {
            arrivals.want_room();
            arrivals.take_for_room(&link.socket)
        } else {
            arrivals.take(&link.socket)
        };
        taken.map_err(|error| link.fail(error))?;
        arrivals.room_woken();
        arrivals.expect(ROOM_WAKES);
        self.room.arm(link);
        Barrier::heavy();
        Ok(())
    }

    /// Waits until the ring may have `needed` free bytes.
    fn await_room(&mut self, needed: u64, deadline: Instant) -> Result<()> {
        let Self { room, producer, session, .. } = self;
        let link = &*session.link;
        room.wait(link, Some(deadline), None, || {
            !matches!(producer.refresh(), Ok(free) if free < needed) || link.peer_left()
        })?;
        self.check()?;
        if self.session.link.peer_left() { Err(ErrorKind::PeerClosed.into()) } else { Ok(()) }
    }

    /// Reads the clock, so not before there is something to wait for.
    fn deadline(&self, patience: Patience) -> Option<Instant> {
        match patience {
            Patience::None => None,
            Patience::Until(deadline) => Some(deadline),
            Patience::Default => Some(after(self.session.core.options.send_timeout)),
        }
    }

    /// A block for `len` bytes, with all that publishing it will need: a segment that the peer
    /// knows, a loan slot, and a record in the ring.
    fn room_in_pool(
        &mut self,
        len: usize,
        envelope: Envelope,
        patience: Patience,
    ) -> Result<PoolRoom, TrySendError> {
        self.check()?;
        let max = self.session.link.terms.max_message;
        if len as u64 > max {
            return Err(Error::new(ErrorKind::MessageTooLarge { len: len as u64, max }).into());
        }
        let header = envelope.pooled();
        let first = self.try_room_in_pool(len, header);
        if !matches!(first, Err(TrySendError::Full { .. })) {
            return first;
        }
        let Some(deadline) = self.deadline(patience) else {
            if !self.link.by_descriptor() {
                return first;
            }
            self.arm()?;
            return self.try_room_in_pool(len, header);
        };
        let start = Instant::now();
        loop {
            self.room_in_ring(header, Patience::Until(deadline))?;
            match self.try_room_in_pool(len, header) {
                Err(TrySendError::Full { .. }) => self.await_pool(start, deadline)?,
                answer => return answer,
            }
        }
    }

    fn try_room_in_pool(&mut self, len: usize, header: Header) -> Result<PoolRoom, TrySendError> {
        let full = || TrySendError::Full { free: 0, needed: len as u64 };
        loop {
            let offset = self.room_in_ring(header, Patience::None)?;
            let Session { link, core, .. } = &*self.session;
            let block = match core.pool.alloc_for(len, link.borrower)? {
                Ok(block) => block,
                // This half is the only one that lends to this peer: a slot that is free stays free.
                Err(Lacking::Slot) => return Err(full()),
                Err(Lacking::Memory(spent)) if spent.needed > spent.quota => {
                    return Err(Error::from(spent).into());
                }
                Err(Lacking::Memory(spent)) => {
                    let free = spent.quota.saturating_sub(spent.used);
                    return Err(TrySendError::Full { free, needed: spent.needed });
                }
            };
            match self.sent.offer(&self.session, &block)? {
                Offered::Known => return Ok(PoolRoom { block, offset }),
                Offered::NoRoom => return Err(full()),
                Offered::Unannounced => self.announce_packets()?,
            }
        }
    }

    /// Tells the reader that packets wait for it on the socket: it may have no other reason to look.
    #[cold]
    fn announce_packets(&mut self) -> Result<(), TrySendError> {
        let header = Header::new(Kind::Packets, 0);
        self.room_in_ring(header, Patience::None)?;
        self.producer.publish(header);
        self.sent.announced();
        self.announce()?;
        Ok(())
    }

    #[cold]
    fn await_pool(&mut self, start: Instant, deadline: Instant) -> Result<()> {
        let Self { room, session, .. } = self;
        let Session { link, core, .. } = &**session;
        // Others hold what is lacking, or the peer does: then it rings, whichever loan it returns.
        let oldest = core.pool.oldest_loan(link.borrower);
        let waited = room.wait(link, Some(deadline), Some(SLICE), || {
            oldest.as_ref().is_some_and(|loan| loan.is_returned()) || link.peer_left()
        });
        match waited {
            Err(error) if error.is_timeout() => {
                return Err(ErrorKind::TimedOut { after: start.elapsed() }.into());
            }
            waited => waited?,
        }
        self.check()?;
        if self.session.link.peer_left() { Err(ErrorKind::PeerClosed.into()) } else { Ok(()) }
    }

    /// Lends the block and publishes its descriptor.
    fn finish_pooled(&mut self, room: PoolRoom, envelope: Envelope, len: usize) -> Result<()> {
        let PoolRoom { mut block, offset } = room;
        let Session { link, core, .. } = &*self.session;
        let Some(loan) = core.pool.lend(&mut block, link.borrower) else {
            // The account closes when the peer ends.
            return Err(link.end());
        };
        let descriptor = Pooled::new(&loan, len as u64).encode();
        self.write(offset, envelope, &descriptor);
        self.stats.pooled += 1;
        self.finish(envelope.pooled(), len)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.check().is_ok() {
            self.producer.close();
            // Whoever is gone needs no waking.
            let _ = self.announce();
            self.room.leave(&self.session.link);
        }
    }
}

/// The error of an operation that waited.
fn spent(error: TrySendError) -> Error {
    match error {
        TrySendError::Failed(error) => error,
        // Waiting operations end by their deadline instead.
        TrySendError::Full { .. } => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
    }
}

/// A block for one message, and where its descriptor goes in the ring.
#[derive(Debug)]
struct PoolRoom {
    block: Block,
    offset: usize,
}

/// The offset of a reservation whose room is not in the ring.
const POOLED: usize = usize::MAX;

/// Room for one message, written in place. Dropped without [`publish`](Self::publish), it sends
/// nothing.
#[derive(Debug)]
#[must_use = "a reservation sends nothing before it is published"]
pub struct Reservation<'a> {
    /// Start of the payload in the ring's data section, in bytes, or [`POOLED`]. A message in the pool
    /// has its room in the sender, so that this type stays small enough for registers.
    offset: usize,
    /// The header of the record that was reserved, if it lies in the ring.
    header: Header,
    len: usize,
    sender: &'a mut Sender,
}

impl Reservation<'_> {
    /// Makes the message visible to the receiver, and wakes it if it sleeps. Whether the peer lives was
    /// looked at when the room was reserved.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`], but there is no more waiting.
    #[inline(always)]
    pub fn publish(self) -> Result<()> {
        if self.offset == POOLED {
            return self.publish_pooled();
        }
        self.sender.finish(self.header, self.len)
    }

    #[cold]
    fn publish_pooled(self) -> Result<()> {
        match self.sender.pending.take() {
            Some(room) => self.sender.finish_pooled(room, PLAIN, self.len),
            None => Ok(()),
        }
    }

    /// Shortens the message to its first `len` bytes.
    ///
    /// # Panics
    ///
    /// If `len` is more than was reserved.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "{len} bytes of a reservation of {}", self.len);
        if self.offset != POOLED {
            // A payload that has become short lies beside its header.
            self.header = self.header.shortened(len as u32);
            let offset = self.sender.producer.place(self.header);
            let back = self.offset - offset;
            self.sender.ring.bytes_mut(offset, back + len).copy_within(back.., 0);
            self.offset = offset;
        }
        self.len = len;
    }
}

impl std::ops::Deref for Reservation<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match &self.sender.pending {
            Some(room) if self.offset == POOLED => &room.block.bytes()[..self.len],
            _ => self.sender.ring.bytes(self.offset, self.len),
        }
    }
}

impl std::ops::DerefMut for Reservation<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.sender.pending {
            Some(room) if self.offset == POOLED => &mut room.block.bytes_mut()[..self.len],
            _ => self.sender.ring.bytes_mut(self.offset, self.len),
        }
    }
}

impl Drop for Reservation<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // A block that was not published goes back.
        if self.offset == POOLED {
            self.sender.pending = None;
        }
    }
}

/// Messages that become visible together. Dropped without [`publish`](Self::publish), it sends
/// nothing.
#[derive(Debug)]
#[must_use = "a batch sends nothing before it is published"]
pub struct Batch<'a> {
    sender: &'a mut Sender,
}

impl Batch<'_> {
    /// Adds a message of up to [`Options::inline_max`](crate::Options::inline_max) bytes. Waits for
    /// room as [`Sender::send`] does; the batch as a whole must fit into the ring.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::BatchTooLarge`]: the batch could not fit into an empty ring. It is as it was.
    /// - [`ErrorKind::MessageTooLarge`]: only shorter messages travel in batches.
    /// - Otherwise as [`Sender::send`].
    pub fn push(&mut self, message: &[u8]) -> Result<()> {
        let offset = self.await_place(message.len())?;
        self.sender.ring.put(offset, message);
        Ok(())
    }

    /// As [`push`](Self::push), but does not wait.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`]: the batch is as it was. Publish it, or wait.
    #[inline(always)]
    pub fn try_push(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        let offset = self.place(message.len())?;
        self.sender.ring.put(offset, message);
        Ok(())
    }

    /// Adds a message of `len` bytes, to be written in place before the batch is published; until
    /// then it holds whatever was there before. Waits as [`push`](Self::push) does.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<&mut [u8]> {
        let offset = self.await_place(len)?;
        Ok(self.sender.ring.bytes_mut(offset, len))
    }

    #[inline(always)]
    fn await_place(&mut self, len: usize) -> Result<usize> {
        match self.place(len) {
            Ok(offset) => Ok(offset),
            Err(TrySendError::Full { needed, .. }) => self.await_room(len, needed),
            Err(TrySendError::Failed(error)) => Err(error),
        }
    }

    /// As [`reserve`](Self::reserve), but does not wait.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`]: the batch is as it was. Publish it, or wait.
    #[inline(always)]
    pub fn try_reserve(&mut self, len: usize) -> Result<&mut [u8], TrySendError> {
        let offset = self.place(len)?;
        Ok(self.sender.ring.bytes_mut(offset, len))
    }

    /// Room for one more message: where it goes in the ring's data section.
    #[inline(always)]
    fn place(&mut self, len: usize) -> Result<usize, TrySendError> {
        let Sender { producer, batch, batch_bytes, inline_max, .. } = &mut *self.sender;
        if len > *inline_max {
            return Err(self.refuse(len, Ok(None)));
        }
        match producer.push(batch, Header::new(Kind::Message, len as u32)) {
            Ok(Ok(offset)) => {
                *batch_bytes += len as u64;
                Ok(offset)
            }
            Ok(Err(full)) => Err(self.refuse(len, Ok(Some(full)))),
            Err(fault) => Err(self.refuse(len, Err(fault))),
        }
    }

    #[cold]
    fn refuse(&self, len: usize, why: Result<Option<Full>, Fault>) -> TrySendError {
        let link = &self.sender.link;
        let capacity = batch_limit(link.terms.own.ring);
        let (len, max) = (len as u64, self.sender.inline_max as u64);
        let kind = match why {
            Err(fault) => return link.fail(fault).into(),
            Ok(None) => ErrorKind::MessageTooLarge { len, max },
            Ok(Some(Full { needed, .. })) if needed > capacity => {
                ErrorKind::BatchTooLarge { needed, capacity }
            }
            Ok(Some(full)) => return full.into(),
        };
        Error::new(kind).into()
    }

    #[cold]
    fn await_room(&mut self, len: usize, mut needed: u64) -> Result<usize> {
        let deadline = after(self.sender.session.core.options.send_timeout);
        loop {
            self.sender.await_room(needed, deadline)?;
            match self.place(len) {
                Err(TrySendError::Full { needed: still, .. }) => needed = still,
                answer => return answer.map_err(spent),
            }
        }
    }

    /// Messages in this batch.
    pub fn len(&self) -> usize {
        self.sender.batch.count() as usize
    }

    /// Whether there is no message in this batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes all messages visible to the receiver at once, and wakes it if it sleeps.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`], but there is no more waiting.
    #[inline(always)]
    pub fn publish(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let sender = self.sender;
        sender.stats.messages += u64::from(sender.batch.count());
        sender.stats.bytes += sender.batch_bytes;
        sender.producer.publish_batch(&mut sender.batch);
        sender.announce()
    }
}
