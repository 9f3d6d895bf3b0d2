//! The receiving half of a connection.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::reactor::{Attention, Sleeper, Waker};
use crate::ring::{Consumer, Header, Kind, Record};
use crate::shm::fork::Generation;
use crate::shm::{Bytes, Mapping, PeerMapping, PeerSegment};
use crate::transport::backlog::{Backlog, Letter};
use crate::transport::calls::Calls;
use crate::transport::control;
use crate::transport::link::{Health, Link, Session};
use crate::transport::peer_pool::PeerPool;
use crate::transport::pooled::{self, Pooled};
use crate::transport::wait::Waiter;

/// Why nothing was received at once.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TryRecvError {
    /// Nothing has arrived.
    #[error("nothing has arrived")]
    Empty,
    /// The connection is over, not in order.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Names a request of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub(super) u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A request that a peer made. Answer it with [`Sender::respond`](crate::Sender::respond).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What the response must carry.
    pub id: RequestId,
    /// The request's bytes.
    pub body: Vec<u8>,
}

/// What a received message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageKind {
    /// A plain message.
    Message,
    /// A request, to be answered under this id.
    Request(RequestId),
    /// The response to the request with this id.
    Response(RequestId),
}

/// What a receiving half has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecvStats {
    /// Messages received.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages of these that travelled through the pool.
    pub pooled: u64,
    /// How often the sender had to be woken.
    pub wakes: u64,
    /// How often this half went to sleep for want of messages.
    pub sleeps: u64,
}

/// One pooled message in so many is timed, to know how far the peer's core is: often enough to
/// notice within a millisecond that a thread has moved, seldom enough not to be seen in the time.
const DISTANCE_EVERY: u64 = 16;

/// Looks at the ring before anything else is considered: about a microsecond.
const LOOKS: u32 = 1000;

/// So many messages without a pause are a stream: the reader then lets the writer get ahead before
/// it looks again, since each look takes the line away that the writer is writing.
const BURST: u32 = 4;

/// How long that is, in spin hints of some 15 ns. Source: `ping_pong --modes stream`.
const BACKOFF: u32 = 8;

/// The receiving half of a [`Connection`](crate::Connection): one thread's at a time.
#[derive(Debug)]
pub struct Receiver {
    consumer: Consumer<Mapping, PeerMapping>,
    data: Waiter,
    room: Waker,
    generation: Generation,
    link: Arc<Link>,
    session: Arc<Session>,
    pool: PeerPool,
    /// The judged descriptor of the record at the ring's position, if it is a pooled one.
    lent: Option<Lent>,
    /// The id of the record at the ring's position, if it is a request or response.
    id: RequestId,
    /// From how many pooled messages on the next one is timed.
    next_distance: u64,
    /// The longest message of this link, in bytes.
    max_message: u64,
    /// Messages received since there was last nothing to receive.
    streak: u32,
    flow: Flow,
    backlog: Backlog,
    calls: Calls,
    stats: RecvStats,
}

/// Whether more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Open,
    /// The peer's sender has finished.
    Closed,
    /// The peer broke the protocol towards this half, or we lack what its message needs. What it
    /// writes from then on is not looked at.
    Failed,
}

/// A message in the peer's pool, on loan to us.
#[derive(Debug)]
struct Lent {
    segment: Arc<PeerSegment>,
    descriptor: Pooled,
}

/// How long to wait for a message.
#[derive(Clone, Copy)]
enum Patience {
    None,
    Until(Instant),
    Forever,
}

/// The record at the ring's position, judged.
#[derive(Debug, Clone, Copy)]
struct Head {
    header: Header,
    /// Start of the message behind the envelope, in bytes from the segment's start.
    offset: usize,
    /// Length of the message in bytes.
    len: usize,
}

impl Receiver {
    pub(super) fn new(session: Arc<Session>) -> Self {
        let link = session.link.clone();
        let peer = link.terms.peer;
        let options = &session.core.options;
        let consumer = Consumer::new(
            link.own.clone(),
            link.peer.clone(),
            peer.control,
            control::POSITION,
            peer.ring,
            0,
        );
        let sleeper = Sleeper::new(control::RECEIVER_STATE, control::DATA_BELL);
        Self {
            consumer,
            data: Waiter::new(sleeper, options.spin),
            room: Waker::new(control::SENDER_STATE, control::ROOM_BELL),
            pool: PeerPool::new(options.peer_pool_limit, options.prefault),
            lent: None,
            id: RequestId(0),
            next_distance: 0,
            max_message: link.terms.max_message,
            streak: 0,
            flow: Flow::Open,
            backlog: Backlog::new(options.backlog_limit),
            calls: Calls::default(),
            stats: RecvStats::default(),
            generation: *link.own.generation(),
            link,
            session,
        }
    }

    /// Receives the next message. `None`: the peer has finished in order, and everything it sent
    /// was received. Waits for as long as the peer lives and is silent.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PeerDied`]: the peer ended without closing; everything it had published was
    ///   received.
    /// - [`ErrorKind::Fault`]: the peer broke the protocol; the connection is over.
    /// - [`ErrorKind::BacklogFull`]: too many requests or responses stand before the next message.
    pub fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        Ok(self.take(&mut message, Patience::Forever).map_err(spent)?.map(|_| message))
    }

    /// As [`recv`](Self::recv), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        Ok(self.take(&mut message, Patience::Until(deadline)).map_err(spent)?.map(|_| message))
    }

    /// As [`recv`](Self::recv), but does not wait.
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: nothing has arrived.
    /// - [`TryRecvError::Failed`]: as [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>, TryRecvError> {
        let mut message = Vec::new();
        Ok(self.take(&mut message, Patience::None)?.map(|_| message))
    }

    /// As [`recv`](Self::recv), into a buffer that is reused: `message` is replaced, and its length
    /// returned.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    #[inline(always)]
    pub fn recv_into(&mut self, message: &mut Vec<u8>) -> Result<Option<usize>> {
        self.take(message, Patience::Forever).map_err(spent)
    }

    /// As [`recv_into`](Self::recv_into), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_into_deadline(
        &mut self,
        message: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<Option<usize>> {
        self.take(message, Patience::Until(deadline)).map_err(spent)
    }

    /// As [`recv_into`](Self::recv_into), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    #[inline(always)]
    pub fn try_recv_into(&mut self, message: &mut Vec<u8>) -> Result<Option<usize>, TryRecvError> {
        self.take(message, Patience::None)
    }

    /// Looks at the next thing in the ring where it lies, without a copy. It stays there until it
    /// is [released](Received::release). Waits as [`recv`](Self::recv) does.
    ///
    /// This shows what the ring holds next, of any kind; not what was set aside while waiting for
    /// something else.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Received<'_>>> {
        self.peek_with(Patience::Forever).map_err(spent)
    }

    /// As [`peek`](Self::peek), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn peek_deadline(&mut self, deadline: Instant) -> Result<Option<Received<'_>>> {
        self.peek_with(Patience::Until(deadline)).map_err(spent)
    }

    /// As [`peek`](Self::peek), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    #[inline(always)]
    pub fn try_peek(&mut self) -> Result<Option<Received<'_>>, TryRecvError> {
        self.peek_with(Patience::None)
    }

    /// Gives what has arrived, up to `max` messages, to `each`, where it lies; releases each after
    /// its turn. Does not wait. Returns how many there were.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv). Messages that `each` saw before are released.
    pub fn drain(
        &mut self,
        max: usize,
        mut each: impl FnMut(MessageKind, Bytes<'_>),
    ) -> Result<usize> {
        for count in 0..max {
            match self.try_peek() {
                Ok(Some(received)) => {
                    each(received.kind(), received.bytes());
                    received.release()?;
                }
                Ok(None) | Err(TryRecvError::Empty) => return Ok(count),
                Err(TryRecvError::Failed(error)) => return Err(error),
            }
        }
        Ok(max)
    }

    /// Receives the next request. `None`: the peer has finished in order.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_request(&mut self) -> Result<Option<Request>> {
        self.request(Patience::Forever)
    }

    /// As [`recv_request`](Self::recv_request), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_request_deadline(&mut self, deadline: Instant) -> Result<Option<Request>> {
        self.request(Patience::Until(deadline))
    }

    fn request(&mut self, patience: Patience) -> Result<Option<Request>> {
        let wanted = |kind: &MessageKind| matches!(kind, MessageKind::Request(_));
        let letter = self.letter(wanted, patience).map_err(spent)?;
        Ok(letter.and_then(|Letter { kind, body }| match kind {
            MessageKind::Request(id) => Some(Request { id, body }),
            _ => None,
        }))
    }

    /// Receives the response to a request.
    pub(super) fn response(&mut self, id: RequestId, deadline: Instant) -> Result<Vec<u8>> {
        if !self.calls.is_made(id) {
            return Err(ErrorKind::UnknownRequest { id: id.0 }.into());
        }
        let wanted = |kind: &MessageKind| *kind == MessageKind::Response(id);
        match self.letter(wanted, Patience::Until(deadline)).map_err(spent)? {
            Some(letter) => {
                self.calls.finish(id);
                Ok(letter.body)
            }
            None => Err(ErrorKind::PeerClosed.into()),
        }
    }

    pub(super) fn calls(&mut self) -> &mut Calls {
        &mut self.calls
    }

    /// Nobody will ask for the response any more; if it is set aside, it goes.
    pub(super) fn abandon(&mut self, id: RequestId) {
        self.calls.abandon(id);
        if self.backlog.take(|kind| *kind == MessageKind::Response(id)).is_some() {
            self.calls.finish(id);
        }
    }

    /// What this half has done.
    pub fn stats(&self) -> RecvStats {
        RecvStats { sleeps: self.data.sleeps, ..self.stats }
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The next plain message, copied into `message`.
    #[inline(always)]
    fn take(
        &mut self,
        message: &mut Vec<u8>,
        patience: Patience,
    ) -> Result<Option<usize>, TryRecvError> {
        if self.backlog.is_empty()
            && let Some(head) = self.head(patience)?
            && head.header.kind() == Kind::Message
        {
            message.resize(head.len, 0);
            self.bytes(&head).copy_to(message);
            self.release(&head)?;
            return Ok(Some(head.len));
        }
        let wanted = |kind: &MessageKind| *kind == MessageKind::Message;
        Ok(self.letter(wanted, patience)?.map(|letter| {
            *message = letter.body;
            message.len()
        }))
    }

    /// The next thing of the wanted kind; what comes before it is set aside.
    #[cold]
    fn letter(
        &mut self,
        wanted: impl Fn(&MessageKind) -> bool,
        patience: Patience,
    ) -> Result<Option<Letter>, TryRecvError> {
        if let Some(letter) = self.backlog.take(&wanted) {
            return Ok(Some(letter));
        }
        while let Some(head) = self.head(patience)? {
            let kind = self.kind(&head);
            let is_awaited = match kind {
                MessageKind::Response(id) => self.calls.is_made(id),
                _ => true,
            };
            if is_awaited && !wanted(&kind) {
                self.backlog.admit(head.len)?;
            }
            let letter = Letter { kind, body: self.bytes(&head).to_vec() };
            self.release(&head)?;
            if let MessageKind::Response(id) = letter.kind
                && !self.calls.answered(id).map_err(|fault| self.fail(fault))?
            {
                // Nobody waits for it any more.
                continue;
            }
            if wanted(&letter.kind) {
                return Ok(Some(letter));
            }
            self.backlog.push(letter);
        }
        Ok(None)
    }

    #[inline(always)]
    fn peek_with(&mut self, patience: Patience) -> Result<Option<Received<'_>>, TryRecvError> {
        let head = self.head(patience)?;
        Ok(head.map(|head| Received { head, receiver: self }))
    }

    /// The record at the ring's position, judged.
    #[inline(always)]
    fn head(&mut self, patience: Patience) -> Result<Option<Head>, TryRecvError> {
        self.generation.check()?;
        if self.flow != Flow::Open {
            return self.over();
        }
        if self.lent.is_some() {
            // Looked at and not released: what stands there now is judged anew.
            self.lent = None;
        }
        match self.consumer.peek() {
            Ok(Some(record)) => self.judge(record),
            Ok(None) => match self.watch(patience)? {
                Some(record) => self.judge(record),
                None => self.await_head(patience),
            },
            Err(fault) => Err(self.fail(fault).into()),
        }
    }

    /// Watches the ring for about a microsecond, in which an awake peer answers.
    #[inline(always)]
    fn watch(&mut self, patience: Patience) -> Result<Option<Record>> {
        if matches!(patience, Patience::None) || !self.data.watches() {
            return Ok(None);
        }
        self.tell_position()?;
        if self.streak >= BURST {
            for _ in 0..BACKOFF {
                std::hint::spin_loop();
            }
        }
        self.streak = 0;
        for _ in 0..LOOKS {
            if self.consumer.is_ready() {
                return self.consumer.peek().map_err(|fault| self.fail(fault));
            }
        }
        Ok(None)
    }

    #[cold]
    fn await_head(&mut self, patience: Patience) -> Result<Option<Head>, TryRecvError> {
        self.tell_position()?;
        loop {
            let health = self.link.health();
            if health != Health::Alive {
                // What was published before the end was seen is visible after it was seen.
                return match self.consumer.peek() {
                    Ok(Some(record)) => self.judge(record),
                    Ok(None) => Err(self.end(health).into()),
                    Err(fault) => Err(self.fail(fault).into()),
                };
            }
            let deadline = match patience {
                Patience::None => return Err(TryRecvError::Empty),
                Patience::Until(deadline) => Some(deadline),
                Patience::Forever => None,
            };
            let Self { data, consumer, link, .. } = self;
            data.wait(link, deadline, None, || consumer.is_ready())?;
            match self.consumer.peek() {
                Ok(Some(record)) => return self.judge(record),
                Ok(None) => {}
                Err(fault) => return Err(self.fail(fault).into()),
            }
        }
    }

    /// The answer once nothing more is to come.
    #[cold]
    fn over(&self) -> Result<Option<Head>, TryRecvError> {
        if self.flow == Flow::Closed { Ok(None) } else { Err(self.link.end().into()) }
    }

    /// Ends the link because of what the ring says.
    #[cold]
    fn fail(&mut self, error: impl Into<Error>) -> Error {
        self.flow = Flow::Failed;
        self.link.fail(error)
    }

    /// The error of a link that ended while the peer's sender had not finished.
    #[cold]
    fn end(&self, health: Health) -> Error {
        match health {
            Health::Failed => self.link.end(),
            _ => ErrorKind::PeerDied.into(),
        }
    }

    /// Tells the peer's sender how far we are, because there is nothing left to read.
    #[inline(always)]
    fn tell_position(&mut self) -> Result<()> {
        if self.consumer.publish() { self.offer_room() } else { Ok(()) }
    }

    /// Looks whether the peer's sender sleeps for want of room.
    #[inline(always)]
    fn offer_room(&mut self) -> Result<()> {
        let link = &*self.link;
        match self.room.look(link.barrier, &link.own, &link.peer) {
            Ok(Some(Attention::Wake)) => {
                self.stats.wakes += 1;
                link.wake(self.room.bell());
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(fault) => Err(link.fail(fault)),
        }
    }

    /// Judges what a record says of itself.
    #[inline(always)]
    fn judge(&mut self, record: Record) -> Result<Option<Head>, TryRecvError> {
        let Record { header, offset } = record;
        if header.is_plain() && header.len() <= self.max_message {
            return Ok(Some(Head { header, offset, len: header.len() as usize }));
        }
        self.judge_rare(record)
    }

    #[cold]
    fn judge_rare(&mut self, record: Record) -> Result<Option<Head>, TryRecvError> {
        if record.header.kind() == Kind::Close {
            self.flow = Flow::Closed;
            return Ok(None);
        }
        match self.judge_envelope(record) {
            Ok(head) => Ok(Some(head)),
            // Also for want of our own memory or descriptors: what came with the record is lost.
            Err(error) => Err(self.fail(error).into()),
        }
    }

    fn judge_envelope(&mut self, record: Record) -> Result<Head> {
        let header = record.header;
        let payload = self.link.peer.bytes(record.offset, header.len() as usize);
        let envelope = if header.kind() == Kind::Message { 0 } else { 8 };
        let fixed = envelope + if header.is_pooled() { pooled::LEN } else { 0 };
        if payload.len() < fixed || header.is_pooled() && payload.len() != fixed {
            return Err(Fault::RecordHeader { header: header.to_word() }.into());
        }
        let mut id = [0; 8];
        payload.slice(0, envelope).copy_to(&mut id[..envelope]);
        self.id = RequestId(u64::from_le_bytes(id));
        let offset = record.offset + envelope;
        let link = &self.link;
        let max = link.terms.max_message;
        if !header.is_pooled() {
            let len = payload.len() - envelope;
            if len as u64 > max {
                return Err(Fault::MessageLength { len: len as u64, max }.into());
            }
            return Ok(Head { header, offset, len });
        }
        let mut bytes = [0; pooled::LEN];
        payload.slice(envelope, pooled::LEN).copy_to(&mut bytes);
        let descriptor = Pooled::decode(&bytes);
        if descriptor.len > max {
            return Err(Fault::MessageLength { len: descriptor.len, max }.into());
        }
        let slots = link.terms.own.loan_slots;
        if descriptor.slot >= slots {
            let (slot, slots) = (descriptor.slot.into(), slots.into());
            return Err(Fault::LoanSlot { slot, slots }.into());
        }
        if !descriptor.offset.is_multiple_of(pooled::ALIGNMENT) {
            let value = descriptor.offset;
            return Err(Fault::Field { field: "pooled.offset", value }.into());
        }
        let segment = self.pool.segment(&link.socket, descriptor.segment)?;
        let capacity = segment.len() as u64;
        if descriptor.offset > capacity || descriptor.len > capacity - descriptor.offset {
            let Pooled { offset, len, .. } = descriptor;
            return Err(Fault::SegmentRange { offset, len, capacity }.into());
        }
        if descriptor.len > 0 && self.stats.pooled >= self.next_distance {
            self.next_distance = self.stats.pooled + DISTANCE_EVERY;
            // The first line of the message comes from the peer's core, and must come anyway.
            let start = Instant::now();
            std::hint::black_box(segment.mapping().bytes(descriptor.offset as usize, 1).byte(0));
            self.session.core.pool.note_distance(start.elapsed());
        }
        self.lent = Some(Lent { segment, descriptor });
        Ok(Head { header, offset, len: descriptor.len as usize })
    }

    /// What the record at the ring's position is.
    fn kind(&self, head: &Head) -> MessageKind {
        match head.header.kind() {
            Kind::Request => MessageKind::Request(self.id),
            Kind::Response => MessageKind::Response(self.id),
            Kind::Message | Kind::Close => MessageKind::Message,
        }
    }

    #[inline(always)]
    fn bytes(&self, head: &Head) -> Bytes<'_> {
        match &self.lent {
            None => self.link.peer.bytes(head.offset, head.len),
            Some(lent) => lent.segment.mapping().bytes(lent.descriptor.offset as usize, head.len),
        }
    }

    /// Gives the record at the ring's position back, with its loan.
    #[inline(always)]
    fn release(&mut self, head: &Head) -> Result<()> {
        if self.lent.is_some() {
            self.return_loan();
        }
        self.stats.messages += 1;
        self.stats.bytes += head.len as u64;
        self.streak = self.streak.saturating_add(1);
        if self.consumer.release(head.header) { self.offer_room() } else { Ok(()) }
    }

    /// The response at the ring's position was taken by looking at it.
    #[cold]
    fn settle_response(&mut self) -> Result<()> {
        let id = self.id;
        self.calls.answered(id).map_err(|fault| self.fail(fault))?;
        self.calls.finish(id);
        Ok(())
    }

    #[cold]
    fn return_loan(&mut self) {
        if let Some(Lent { descriptor, .. }) = self.lent.take() {
            self.stats.pooled += 1;
            self.session.return_loan(descriptor.slot, descriptor.generation);
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let link = &self.link;
        if link.own.generation().is_current() {
            self.data.leave(link);
            // A sender that sleeps for want of room waits in vain.
            self.room = Waker::new(control::SENDER_STATE, control::ROOM_BELL);
            let _ = self.offer_room();
        }
    }
}

/// The error of an operation that waited.
fn spent(error: TryRecvError) -> Error {
    match error {
        TryRecvError::Failed(error) => error,
        // Waiting operations end by their deadline instead.
        TryRecvError::Empty => ErrorKind::TimedOut { after: std::time::Duration::ZERO }.into(),
    }
}

/// A received message where it lies, in the sender's memory. Dropped without
/// [`release`](Self::release), it is still the next one.
#[derive(Debug)]
pub struct Received<'a> {
    head: Head,
    receiver: &'a mut Receiver,
}

impl Received<'_> {
    /// The message's bytes, to copy out or to read in place.
    #[inline(always)]
    pub fn bytes(&self) -> Bytes<'_> {
        self.receiver.bytes(&self.head)
    }

    /// The message's length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head.len
    }

    /// Whether the message has no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head.len == 0
    }

    /// What the message is.
    #[inline(always)]
    pub fn kind(&self) -> MessageKind {
        self.receiver.kind(&self.head)
    }

    /// Gives the message's memory back to the sender.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Fault`]: the peer broke the protocol.
    #[inline(always)]
    pub fn release(self) -> Result<()> {
        if self.head.header.kind() == Kind::Response {
            self.receiver.settle_response()?;
        }
        self.receiver.release(&self.head)
    }
}
