//! The sending half of a connection.

use crate::channel::stats::SendStats;
use crate::patience::SendPatience;
use crate::pool::Block;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::announced::AnnouncedSegments;
use crate::channel::envelope::Envelope;
use crate::channel::envelope::PLAIN;
use crate::channel::sender::reservation::Batch;
use crate::channel::sender::reservation::POOLED;
use crate::channel::sender::reservation::Reservation;
use crate::channel::token::Token;
pub use crate::error::TrySendError;
use crate::error::{Error, ErrorKind, Result};
use crate::handshake::layout;
use crate::handshake::packet::Reason;
use crate::link::health::Health;
use crate::link::link::Link;
use crate::link::session::Session;
use crate::link::waiter::Waiter;
use crate::patience::after;
use crate::pool::{Prepared, Promise, Ready};
use crate::ring::{BESIDE, BatchSlot, Beside, Full, Header, Kind, Producer, largest_payload};
use crate::shm::fork::Generation;
use crate::shm::{Area, Mapping, PeerMapping};
use crate::wake::{Attention, Sleeper, Waker};

impl From<Full> for TrySendError {
    fn from(full: Full) -> Self {
        Self::Full { free: full.free, needed: full.needed }
    }
}

mod arming;
pub(crate) mod attachments;
mod descriptors;
mod pipelined;
mod pool_writer;
pub(crate) mod reservation;

/// A block for one message, and where its descriptor goes in the ring.
#[derive(Debug)]
pub(crate) struct PoolRoom {
    pub(crate) block: Block,
    pub(crate) offset: usize,
}

/// The sending half of a [`Connection`](crate::Connection): one thread's at a time.
///
/// Dropping it tells the receiver that nothing follows; what was sent before is delivered.
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
    announced: AnnouncedSegments,
    /// Descriptors of the user's that were sent.
    passed: u64,
    /// The slot of the next loan that is sent by itself.
    promise: Option<Promise>,
    /// Where the pool lays the block of the next message in it, and what it has laid there.
    ready: Option<Ready>,
    prepared: Option<Prepared>,
    /// The room of the message in the pool that is being written. It stays where it is, as its parts are written
    /// and read in several widths.
    pooled: PoolRoom,
    /// The batch that is being written.
    batch: BatchSlot,
    /// Bytes of the messages in it.
    batch_bytes: u64,
    /// The peer's receiver said that it will look no more.
    gone: bool,
    stats: SendStats,
}

/// Shows the number of messages.
impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("sent", &self.stats.messages).finish_non_exhaustive()
    }
}

impl Sender {
    pub(crate) fn new(session: Arc<Session>, ring: Area) -> Self {
        let link = session.link.clone();
        let own = link.terms.own;
        let options = &session.env.options();
        let producer = Producer::new(
            link.own.clone(),
            link.peer.clone(),
            own.control,
            layout::POSITION,
            own.ring,
            0,
        );
        let sleeper =
            Sleeper::new(layout::SENDER_STATE, layout::ROOM_BELL).with_interrupts(link.interrupts);
        let inline_max = options
            .inline_max
            .min(own.ring / 4)
            .min(largest_payload(own.ring) - 8)
            .min(link.terms.max_message);
        Self {
            producer,
            ring,
            data: Waker::new(layout::RECEIVER_STATE, layout::DATA_BELL),
            room: Waiter::new(sleeper, options.spin),
            inline_max: inline_max as usize,
            announced: AnnouncedSegments::default(),
            passed: 0,
            promise: None,
            ready: session.env.pool().ready(link.borrower),
            prepared: None,
            pooled: PoolRoom { block: session.env.pool().no_block(), offset: 0 },
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
        self.put(PLAIN, message, SendPatience::Default).map_err(into_error)
    }

    /// As [`send`](Self::send), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_deadline(&mut self, message: &[u8], deadline: Instant) -> Result<()> {
        self.put(PLAIN, message, SendPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`send`](Self::send), but does not wait.
    ///
    /// # Errors
    ///
    /// - [`TrySendError::Full`]: nothing was sent.
    /// - [`TrySendError::Failed`]: as [`send`](Self::send).
    #[inline(always)]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        self.put(PLAIN, message, SendPatience::None)
    }

    /// Sends a request with an id that the response will carry.
    pub(crate) fn send_request(&mut self, id: u64, body: &[u8], deadline: Instant) -> Result<()> {
        let envelope = Envelope { kind: Kind::Request, id: Some(id) };
        self.put(envelope, body, SendPatience::Until(deadline)).map_err(into_error)
    }

    /// Sends the response to a request that [`Receiver::recv_request`](crate::Receiver::recv_request)
    /// gave.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn respond(&mut self, request: crate::channel::RequestId, body: &[u8]) -> Result<()> {
        let envelope = Envelope { kind: Kind::Response, id: Some(request.0) };
        self.put(envelope, body, SendPatience::Default).map_err(into_error)
    }

    /// As [`respond`](Self::respond), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_respond(
        &mut self,
        request: crate::channel::RequestId,
        body: &[u8],
    ) -> Result<(), TrySendError> {
        let envelope = Envelope { kind: Kind::Response, id: Some(request.0) };
        self.put(envelope, body, SendPatience::None)
    }

    /// Runs the function that the peer's reactor has registered under a token; see
    /// [`Link::register`](crate::Link::register). Waits for room as [`send`](Self::send) does. A token
    /// that means nothing there does nothing.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn trigger(&mut self, token: Token) -> Result<()> {
        self.put_trigger(token, SendPatience::Default).map_err(into_error)
    }

    /// As [`trigger`](Self::trigger), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    #[inline(always)]
    pub fn try_trigger(&mut self, token: Token) -> Result<(), TrySendError> {
        self.put_trigger(token, SendPatience::None)
    }

    #[inline(always)]
    fn put_trigger(&mut self, token: Token, patience: SendPatience) -> Result<(), TrySendError> {
        let header = Header::new(Kind::Trigger, Token::LEN as u32);
        let offset = self.room_in_ring(header, patience)?;
        self.ring.put(offset, &u32::from(token).to_le_bytes());
        self.producer.publish(header);
        self.stats.triggers += 1;
        Ok(self.announce()?)
    }

    /// Sends a request if there is room.
    pub(crate) fn try_request(
        &mut self,
        id: crate::channel::RequestId,
        body: &[u8],
    ) -> Result<(), TrySendError> {
        let envelope = Envelope { kind: Kind::Request, id: Some(id.0) };
        self.put(envelope, body, SendPatience::None)
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
        self.reserve_with(len, SendPatience::Default).map_err(into_error)
    }

    /// As [`reserve`](Self::reserve), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn reserve_deadline(&mut self, len: usize, deadline: Instant) -> Result<Reservation<'_>> {
        self.reserve_with(len, SendPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`reserve`](Self::reserve), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_reserve(&mut self, len: usize) -> Result<Reservation<'_>, TrySendError> {
        self.reserve_with(len, SendPatience::None)
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

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Whether this half can still be used.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<()> {
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
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        if message.len() > self.inline_max {
            return self.put_pooled(envelope, message, patience);
        }
        self.check()?;
        let len = envelope.len() + message.len();
        let header = Header::new(envelope.kind, len as u32);
        if len <= BESIDE as usize && envelope.is_plain() && self.put_beside(header, message)? {
            return Ok(());
        }
        let offset = self.find_room(header, patience)?;
        self.write(offset, envelope, message);
        self.finish(header, message.len())?;
        Ok(())
    }

    /// Sends a plain message right behind its header, if there is room for it for which nothing is to be done first:
    /// mostly so where its record is as long as the one before, as all are of up to 56 bytes.
    #[inline(always)]
    fn put_beside(&mut self, header: Header, message: &[u8]) -> Result<bool> {
        let Some(room) = self.producer.beside(message.len() as u32) else { return Ok(false) };
        self.ring.put(room.offset, message);
        self.producer.publish_beside(header, room.next);
        self.published(message.len())?;
        Ok(true)
    }

    #[inline(always)]
    fn reserve_with(
        &mut self,
        len: usize,
        patience: SendPatience,
    ) -> Result<Reservation<'_>, TrySendError> {
        let header = Header::new(Kind::Message, len as u32);
        if len > self.inline_max {
            self.room_in_pool(len, PLAIN, patience)?;
            return Ok(Reservation { offset: POOLED, header, next: 0, len, sender: self });
        }
        self.check()?;
        let beside = if len <= BESIDE as usize { self.producer.beside(len as u32) } else { None };
        let Beside { offset, next } = match beside {
            Some(room) => room,
            None => Beside { offset: self.find_room(header, patience)?, next: 0 },
        };
        Ok(Reservation { offset, header, next, len, sender: self })
    }

    /// Writes an envelope and a short message into the ring. What shares the polled line with the
    /// header is written last.
    #[inline(always)]
    pub(crate) fn write(&mut self, offset: usize, envelope: Envelope, message: &[u8]) {
        self.ring.put(offset + envelope.len(), message);
        self.write_id(offset, envelope);
    }

    #[inline(always)]
    pub(crate) fn write_id(&mut self, offset: usize, envelope: Envelope) {
        if let Some(number) = envelope.id {
            self.ring.put(offset, &number.to_le_bytes());
        }
    }

    /// As [`finish`](Self::finish), of a message that was reserved. `next`: as in [`Reservation`].
    #[inline(always)]
    pub(crate) fn finish_message(&mut self, header: Header, next: u64) -> Result<()> {
        if next == 0 {
            self.producer.publish(header);
        } else {
            self.producer.publish_beside(header, next);
        }
        self.published(header.len() as usize)
    }

    /// Publishes a record and looks whether the receiver sleeps.
    #[inline(always)]
    pub(crate) fn finish(&mut self, header: Header, bytes: usize) -> Result<()> {
        self.producer.publish(header);
        self.published(bytes)
    }

    /// Counts a message that was published, and looks whether the receiver sleeps.
    #[inline(always)]
    fn published(&mut self, bytes: usize) -> Result<()> {
        self.stats.messages += 1;
        self.stats.bytes += bytes as u64;
        self.announce()
    }

    #[inline(always)]
    pub(crate) fn announce(&mut self) -> Result<()> {
        let link = &*self.link;
        match self.data.look(&link.own, &link.peer) {
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
    pub(crate) fn room_in_ring(
        &mut self,
        header: Header,
        patience: SendPatience,
    ) -> Result<usize, TrySendError> {
        self.check()?;
        self.find_room(header, patience)
    }

    /// The same, of a half that can be used.
    #[inline(always)]
    fn find_room(&mut self, header: Header, patience: SendPatience) -> Result<usize, TrySendError> {
        self.room.progress(&self.link, self.producer.written());
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
        patience: SendPatience,
    ) -> Result<usize, TrySendError> {
        let deadline = self.deadline(patience);
        let mut looks = 0;
        loop {
            match deadline {
                Some(deadline) => self.await_room(full.needed, deadline)?,
                None if looks == 0 && self.link.by_descriptor() => self.arm()?,
                None if self.link.peer_left() => {
                    return Err(Error::from(ErrorKind::PeerClosed).into());
                }
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

    /// Waits until the ring may have `needed` free bytes.
    pub(crate) fn await_room(&mut self, needed: u64, deadline: Instant) -> Result<()> {
        let Self { room, producer, session, .. } = self;
        let link = &*session.link;
        room.wait(link, Some(deadline), None, || {
            !matches!(producer.refresh(), Ok(free) if free < needed) || link.peer_left()
        })?;
        self.check()?;
        if self.session.link.peer_left() { Err(ErrorKind::PeerClosed.into()) } else { Ok(()) }
    }

    /// Reads the clock, so not before there is something to wait for.
    pub(crate) fn deadline(&self, patience: SendPatience) -> Option<Instant> {
        match patience {
            SendPatience::None => None,
            SendPatience::Until(deadline) => Some(deadline),
            SendPatience::Default => Some(after(self.session.env.options().send_timeout)),
        }
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
pub(crate) fn into_error(error: TrySendError) -> Error {
    match error {
        TrySendError::Failed(error) => error.waiting_for_room(),
        // Waiting operations end by their deadline instead.
        TrySendError::Full { .. } => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
    }
}
