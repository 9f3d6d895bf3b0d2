//! The sender: the sending half of a connection. It owns the writer's end of a ring, a room in the pool for the message
//! that is being written, and the loan slot of the next one.
//!
//! 1. A message becomes visible by one store of its header, after all its bytes.
//! 2. An operation that fails sends nothing, and holds no block and no slot that another sender could need.
//! 3. After each publication the sender checks whether the receiver sleeps, and wakes it if so.
//! 4. At most one reservation or batch exists at a time: it borrows the sender.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::announced::AnnouncedSegments;
use crate::channel::envelope::{Envelope, PLAIN};
use crate::channel::message::RequestId;
use crate::channel::metadata::Metadata;
use crate::channel::second_ring::SecondRing;
use crate::channel::sender::arming::WantedRoom;
use crate::channel::sender::lacking_room::LackingRoom;
use crate::channel::sender::reservation::{Batch, POOLED, Reservation};
use crate::channel::stats::HalfStats;
use crate::channel::token::Token;
pub use crate::error::TrySendError;
use crate::error::{Error, ErrorKind, Result};
use crate::handshake::layout;
use crate::handshake::packet::Reason;
use crate::link::health::Health;
use crate::link::link::Link;
use crate::link::session::Session;
use crate::link::waiter::Waiter;
use crate::patience::SendPatience;
use crate::patience::after;
use crate::pool::Block;
use crate::pool::{Prepared, Promise, Ready};
use crate::ring::{BatchSlot, Full, Header, Kind, PlainRoom, Producer, largest_payload};
use crate::shm::fork::Generation;
use crate::shm::{Area, Mapping, PeerMapping};
use crate::status::Awaited;
use crate::status::layout::{SENDER, WAKES, WRITTEN};
use crate::wake::{Attention, HOT, Sleeper, Waker};

impl From<Full> for TrySendError {
    fn from(full: Full) -> Self {
        Self::Full { free: full.free, needed: full.needed }
    }
}

mod arming;
pub(crate) mod at_once;
pub(crate) mod attachments;
mod descriptors;
pub(crate) mod lacking_room;
mod pipelined;
mod pool_writer;
pub(crate) mod reservation;
mod second_ring;
mod with_metadata;

/// The block of one message, and the offset of its descriptor in the ring, in bytes.
#[derive(Debug)]
pub(crate) struct PoolRoom {
    pub(crate) block: Block,
    pub(crate) offset: usize,
}

/// The sending half of a [`Connection`](crate::Connection), which one thread uses at a time.
///
/// Dropping it tells the receiver that nothing follows. The receiver still gets each message that was sent.
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let near = context.connect(&address)?;
/// # let mut far = far.join().unwrap()?;
/// let (mut sender, _receiver) = near.split();
/// sender.send(b"hello")?;
/// drop(sender);
///
/// assert_eq!(far.recv()?.as_deref(), Some(&b"hello"[..]));
/// assert_eq!(far.recv()?, None);
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct Sender {
    producer: Producer<Mapping, PeerMapping>,
    ring: Area,
    data: Waker,
    room: Waiter,
    /// The room for which this half has armed.
    wanted: WantedRoom,
    generation: Generation,
    link: Arc<Link>,
    session: Arc<Session>,
    /// The ring to which this half moves when its first one is full. `None`: there is none, this half has moved there, or it
    /// could not be made.
    second_ring: Option<Box<SecondRing>>,
    /// The longest message that travels in the ring, in bytes.
    inline_max: usize,
    announced: AnnouncedSegments,
    /// The count of the caller's descriptors that were sent.
    passed: u64,
    /// The slot of the next loan that is sent by itself.
    promise: Option<Promise>,
    /// What the last tensors record lacked.
    lacking: Option<LackingRoom>,
    /// The pool's ready block for this peer, and the block that the pool has prepared there.
    ready: Option<Ready>,
    prepared: Option<Prepared>,
    /// The room of the pooled message that is being written. It is never moved: its parts are written and read in
    /// several widths, and a move would wait for the stores.
    pooled: PoolRoom,
    /// The metadata of the reserved message, if that lies in the pool and has some.
    metadata: Metadata,
    /// The batch that is being written.
    batch: BatchSlot,
    /// Bytes of the messages in it.
    batch_bytes: u64,
    /// The peer's receiver has left.
    gone: bool,
    stats: HalfStats,
}

/// Shows the count of messages.
impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("sent", &self.stats.messages).finish_non_exhaustive()
    }
}

impl Sender {
    pub(crate) fn new(session: Arc<Session>, ring: Area) -> Self {
        let link = session.link.clone();
        let own = link.terms().own;
        let options = &session.env.options();
        let producer = Producer::new(
            link.own().clone(),
            link.peer().clone(),
            own.control,
            layout::POSITION,
            own.ring,
            0,
        );
        let sleeper = Sleeper::new(layout::SENDER_STATE, layout::ROOM_BELL)
            .with_interrupts(link.interrupts());
        let inline_max = options
            .inline_max
            .min(own.ring / 4)
            .min(largest_payload(own.ring) - 8)
            .min(link.terms().max_message);
        Self {
            producer,
            ring,
            data: Waker::new(layout::RECEIVER_STATE, layout::DATA_BELL),
            room: Waiter::new(sleeper, options.spin, link.row().half(SENDER)),
            wanted: WantedRoom::default(),
            second_ring: SecondRing::due(own.second_ring),
            inline_max: inline_max as usize,
            announced: AnnouncedSegments::default(),
            passed: 0,
            promise: None,
            lacking: None,
            ready: session.env.pool().ready(link.borrower()),
            prepared: None,
            pooled: PoolRoom { block: Block::empty(), offset: 0 },
            metadata: Metadata::new(),
            batch: BatchSlot::default(),
            batch_bytes: 0,
            gone: false,
            stats: HalfStats::default(),
            generation: *link.own().generation(),
            link,
            session,
        }
    }

    /// Sends a message: copies it, and wakes the receiver if it sleeps. Waits for room as long as
    /// [`Options::send_timeout`](crate::Options::send_timeout) allows.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::MessageTooLarge`]: the message exceeds [`max_message`](Self::max_message). Nothing was sent.
    /// - [`ErrorKind::TimedOut`]: no room came in time. Nothing was sent.
    /// - [`ErrorKind::PoolExhausted`]: the pool or the peer's limit is smaller than the message. Nothing was sent.
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`]: the receiver is gone.
    /// - [`ErrorKind::Forked`]: the process that made the connection is the parent of this one.
    /// - [`ErrorKind::Fault`]: the peer broke the protocol; the connection is over.
    /// - [`ErrorKind::OutOfMemory`], [`ErrorKind::FileSizeLimit`], [`ErrorKind::DescriptorLimit`]: the pool could not grow.
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
    /// - [`TrySendError::Full`]: there is no room now. Nothing was sent.
    /// - [`TrySendError::Failed`]: as [`send`](Self::send).
    #[inline(always)]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        self.put(PLAIN, message, SendPatience::None)
    }

    /// Sends a request with an id that the response will carry.
    pub(crate) fn send_request(
        &mut self,
        id: RequestId,
        (body, metadata): (&[u8], &Metadata),
        deadline: Instant,
    ) -> Result<()> {
        let envelope = Envelope::new(Kind::Request).of(id).with(metadata);
        self.put(envelope, body, SendPatience::Until(deadline)).map_err(into_error)
    }

    /// Sends the response to a request that [`Receiver::recv_request`](crate::Receiver::recv_request) returned.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn respond(&mut self, request: RequestId, body: &[u8]) -> Result<()> {
        self.put_response(request, body, SendPatience::Default).map_err(into_error)
    }

    /// As [`respond`](Self::respond), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_respond(&mut self, request: RequestId, body: &[u8]) -> Result<(), TrySendError> {
        self.put_response(request, body, SendPatience::None)
    }

    pub(crate) fn put_response(
        &mut self,
        request: RequestId,
        body: &[u8],
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        self.put(Envelope::new(Kind::Response).of(request), body, patience)
    }

    /// Runs the function that the peer's reactor has registered under a token; see
    /// [`Link::register`](crate::Link::register). Waits for room as [`send`](Self::send) does. A token that is not
    /// registered there has no effect.
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

    #[doc(hidden)]
    #[inline(always)]
    pub fn put_trigger(
        &mut self,
        token: Token,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let header = Header::new(Kind::Trigger, Token::LEN as u32);
        let offset = self.room_in_ring(header, patience)?;
        self.ring.put(offset, &u32::from(token).to_le_bytes());
        self.producer.publish(header);
        self.stats.triggers += 1;
        Ok(self.announce()?)
    }

    /// Sends a request and does not wait.
    pub(crate) fn try_request(
        &mut self,
        id: RequestId,
        (body, metadata): (&[u8], &Metadata),
    ) -> Result<(), TrySendError> {
        let envelope = Envelope::new(Kind::Request).of(id).with(metadata);
        self.put(envelope, body, SendPatience::None)
    }

    /// Returns room for a message of `len` bytes, which the caller writes in place and then
    /// [publishes](Reservation::publish). Waits for room as [`send`](Self::send) does.
    ///
    /// The bytes start at a multiple of 8, or of 64 if the message is longer than
    /// [`Options::inline_max`](crate::Options::inline_max). Their first values are arbitrary.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>> {
        self.reserve_room(len, SendPatience::Default).map_err(into_error)
    }

    /// As [`reserve`](Self::reserve), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn reserve_deadline(&mut self, len: usize, deadline: Instant) -> Result<Reservation<'_>> {
        self.reserve_room(len, SendPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`reserve`](Self::reserve), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_reserve(&mut self, len: usize) -> Result<Reservation<'_>, TrySendError> {
        self.reserve_room(len, SendPatience::None)
    }

    /// Starts a batch: messages that become visible together, at the cost of one publication.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut listener = context.listen(&address)?;
    /// # let far = std::thread::spawn(move || listener.accept());
    /// # let mut near = context.connect(&address)?;
    /// # let mut far = far.join().unwrap()?;
    /// let mut batch = near.sender().batch()?;
    /// for reading in [1u64, 2, 3] {
    ///     batch.push(&reading.to_le_bytes())?;
    /// }
    /// batch.publish()?;
    /// assert_eq!(far.recv()?, Some(1u64.to_le_bytes().to_vec()));
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

    /// Ends this half, and takes back at once all memory that the peer holds or has not received: long messages and
    /// tensors. The pool uses it again, also if the peer's process is stopped. The peer gets the messages that travelled in
    /// the ring; a read of memory that was taken back fails with [`ErrorKind::LoanRevoked`]. A slice of a
    /// [trusted](crate::Connection::trust) peer's tensor shows other data from now on.
    ///
    /// The drop of both halves does the same after [`Options::release_grace`](crate::Options::release_grace).
    pub fn abort(self) {
        self.revoke();
    }

    /// Takes back all that the peer holds. This half lends nothing more.
    pub(crate) fn revoke(&self) {
        self.session.revoke();
    }

    /// Returns the counters of this sender.
    pub fn stats(&self) -> HalfStats {
        HalfStats { sleeps: self.room.sleeps, ..self.stats }
    }

    /// Returns the longest message of this connection, in bytes.
    pub fn max_message(&self) -> u64 {
        self.session.link.terms().max_message
    }

    /// As the `as_fd` of the connection. For crates of this project: it may change in any release.
    #[doc(hidden)]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.use_descriptor();
        self.link.socket().as_fd()
    }

    /// Returns the bytes of this half's ring that the peer has not given back.
    pub(crate) fn unread(&self) -> u64 {
        self.producer.unread()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Checks that this sender can be used.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<()> {
        let link = &*self.link;
        self.generation.check()?;
        if link.is_alive() && !self.gone { Ok(()) } else { Err(self.over()) }
    }

    /// Returns the reason why this sender cannot be used.
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
        envelope: Envelope<'_>,
        message: &[u8],
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        if message.len() > self.inline_max {
            return self.put_pooled(envelope, message, patience);
        }
        self.check()?;
        let header = envelope.header(message.len());
        if envelope.is_plain() && self.put_plain(header, message)? {
            return Ok(());
        }
        let offset = self.find_room(header, patience)?;
        self.write(offset, envelope, message);
        self.finish(header, message.len())?;
        Ok(())
    }

    /// Sends a plain message if there is room right behind the last record, without a load of the reader's position. Returns `false`
    /// if there is no such room.
    #[inline(always)]
    fn put_plain(&mut self, header: Header, message: &[u8]) -> Result<bool> {
        let Some(room) = self.producer.plain_room(message.len() as u32) else { return Ok(false) };
        self.ring.put(room.offset, message);
        self.producer.publish_plain(header, room.next);
        self.published(message.len())?;
        Ok(true)
    }

    #[inline(always)]
    fn reserve_room(
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
        let PlainRoom { offset, next } = match self.producer.plain_room(len as u32) {
            Some(room) => room,
            None => PlainRoom { offset: self.find_room(header, patience)?, next: 0 },
        };
        Ok(Reservation { offset, header, next, len, sender: self })
    }

    /// Writes an envelope and a short message into the ring. The bytes in the header's cache line, which the receiver
    /// polls, are written last.
    #[inline(always)]
    pub(crate) fn write(&mut self, offset: usize, envelope: Envelope<'_>, message: &[u8]) {
        self.ring.put(offset + envelope.len(), message);
        self.write_envelope(offset, envelope);
    }

    #[inline(always)]
    pub(crate) fn write_envelope(&mut self, offset: usize, envelope: Envelope<'_>) {
        if !envelope.metadata.is_empty() {
            self.ring.put(offset + envelope.len() - envelope.metadata.len(), envelope.metadata);
        }
        if let Some(number) = envelope.id {
            self.ring.put(offset, &number.to_le_bytes());
        }
    }

    /// Publishes a reserved message of `len` bytes as [`finish`](Self::finish) does. `next` is that of [`Reservation`].
    #[inline(always)]
    pub(crate) fn finish_message(&mut self, header: Header, next: u64, len: usize) -> Result<()> {
        if next == 0 {
            self.producer.publish(header);
        } else {
            self.producer.publish_plain(header, next);
        }
        self.published(len)
    }

    /// Publishes a record and wakes the receiver if it sleeps.
    #[inline(always)]
    pub(crate) fn finish(&mut self, header: Header, bytes: usize) -> Result<()> {
        self.producer.publish(header);
        self.published(bytes)
    }

    /// Counts a published message and wakes the receiver if it sleeps.
    #[inline(always)]
    fn published(&mut self, bytes: usize) -> Result<()> {
        self.count(bytes);
        self.announce()
    }

    /// Counts a published message.
    #[inline(always)]
    fn count(&mut self, bytes: usize) {
        self.stats.messages += 1;
        self.stats.bytes += bytes as u64;
    }

    /// Wakes the receiver if it sleeps.
    #[inline(always)]
    pub(crate) fn announce(&mut self) -> Result<()> {
        let state = self.show();
        let link = &*self.link;
        match self.data.judge(state, link.own()) {
            Ok(None) => Ok(()),
            Ok(Some(attention)) => self.attend(attention),
            Err(fault) => Err(link.fail(fault)),
        }
    }

    /// Loads the receiver's state, and shows the counts in the status page. Returns the state.
    #[inline(always)]
    fn show(&mut self) -> u64 {
        let state = self.data.load(self.link.peer());
        let HalfStats { messages, bytes, tensors, .. } = self.stats;
        let is_stored = self.room.status().pass(messages + tensors, bytes, state == HOT);
        if cfg!(feature = "metrics") && is_stored {
            self.room.status().store(WRITTEN, self.producer.written());
        }
        state
    }

    /// Stores the counts in the status page.
    pub(crate) fn show_counts(&mut self) {
        let HalfStats { messages, bytes, tensors, .. } = self.stats;
        self.room.status().passed(messages + tensors, bytes);
        self.room.status().store(WRITTEN, self.producer.written());
    }

    /// Counts a system call that wakes the receiver.
    pub(crate) fn count_wake(&mut self) {
        self.stats.wakes += 1;
        self.room.status().store(WAKES, self.stats.wakes);
    }

    #[cold]
    fn attend(&mut self, attention: Attention) -> Result<()> {
        match attention {
            Attention::Wake => {
                self.count_wake();
                self.session.link.wake(self.data.bell());
                Ok(())
            }
            Attention::Call => {
                self.count_wake();
                self.session.link.call(Reason::Data);
                Ok(())
            }
            // The receiver may have read this message before it left. It reads none that follows.
            Attention::Gone => {
                self.gone = true;
                Ok(())
            }
        }
    }

    /// Returns the offset of a record's payload in the ring, in bytes, once there is room.
    #[inline(always)]
    pub(crate) fn room_in_ring(
        &mut self,
        header: Header,
        patience: SendPatience,
    ) -> Result<usize, TrySendError> {
        self.check()?;
        self.find_room(header, patience)
    }

    /// Finds room as [`room_in_ring`](Self::room_in_ring) does. The caller has checked the sender.
    #[inline(always)]
    fn find_room(&mut self, header: Header, patience: SendPatience) -> Result<usize, TrySendError> {
        self.room.progress(&self.link, self.producer.written());
        match self.producer.reserve(header) {
            Ok(Ok(offset)) => {
                self.found(header, false);
                Ok(offset)
            }
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
        if self.move_for(full)? {
            return self.find_room(header, patience);
        }
        let deadline = self.deadline(patience);
        let mut attempts = 0;
        loop {
            match deadline {
                Some(deadline) if self.second_ring.is_some() && !self.fits(full) => {
                    // No position that the peer publishes makes room.
                    self.await_socket(deadline)?;
                    if self.move_for(full)? {
                        return self.find_room(header, patience);
                    }
                    continue;
                }
                Some(deadline) => self.await_room(full.needed, deadline)?,
                None if attempts == 0 && self.link.by_descriptor() => {
                    self.arm_for_ring(header)?;
                }
                None if self.link.peer_left() => {
                    return Err(Error::from(ErrorKind::PeerClosed).into());
                }
                None => return Err(full.into()),
            }
            attempts += 1;
            match self.producer.reserve(header) {
                Ok(Ok(offset)) => {
                    self.found(header, false);
                    return Ok(offset);
                }
                Ok(Err(still)) => full = still,
                Err(fault) => return Err(self.session.link.fail(fault).into()),
            }
        }
    }

    /// Waits until the ring may have `needed` free bytes.
    pub(crate) fn await_room(&mut self, needed: u64, deadline: Instant) -> Result<()> {
        self.show_counts();
        let Self { room, producer, session, .. } = self;
        let link = &*session.link;
        room.wait(link, Awaited::Room, (Some(deadline), None), || {
            !matches!(producer.refresh(), Ok(free) if free < needed) || link.peer_left()
        })?;
        self.check()?;
        if self.session.link.peer_left() { Err(ErrorKind::PeerClosed.into()) } else { Ok(()) }
    }

    /// Returns the deadline of a wait. It reads the clock, so an operation calls it only when it has to wait.
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
            // A receiver that is gone needs no wake-up.
            let _ = self.announce();
            self.show_counts();
            self.room.leave(&self.session.link);
        }
        self.session.leave();
    }
}

/// Returns the error of an operation that waited.
pub(crate) fn into_error(error: TrySendError) -> Error {
    match error {
        TrySendError::Failed(error) => error.waiting_for_room(),
        // An operation that waits ends by its deadline, so this arm is not reached.
        TrySendError::Full { .. } => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
    }
}
