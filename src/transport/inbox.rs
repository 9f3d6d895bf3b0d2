//! The reading end of a link: records, judged; waiting for them; giving them back.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::parking::{Attention, Sleeper, Waker};
use crate::pool;
use crate::ring::{Consumer, Header, Kind, Record};
use crate::shm::fork::Generation;
use crate::shm::{Bytes, Mapping, PeerMapping};
use crate::transport::arrivals::PoolSegment;
use crate::transport::control;
use crate::transport::hello::Reason;
use crate::transport::link::{Link, Session};
use crate::transport::parcel::LastLender;
use crate::transport::pooled::{self, Pooled};
use crate::transport::receiver::{MessageKind, RecvStats, RequestId, TryRecvError};
use crate::transport::shelf::Shelf;
use crate::transport::standing::Health;
use crate::transport::wait::{Patience, Waiter};

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

/// Tokens in a row that are taken from a peer which was given none.
const TOKENS: u32 = 1 << 16;

/// What a receiving half reads from.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) consumer: Consumer<Mapping, PeerMapping>,
    pub(super) data: Waiter,
    room: Waker,
    generation: Generation,
    pub(super) link: Arc<Link>,
    pub(super) session: Arc<Session>,
    /// The judged descriptor of the record at the ring's position, if it is a pooled one.
    lent: Option<Lent>,
    /// The id of the record at the ring's position, if it is a request or response.
    pub(super) id: RequestId,
    /// From how many pooled messages on the next one is timed.
    next_distance: u64,
    /// The longest message of this link, in bytes.
    max_message: u64,
    /// Messages received since there was last nothing to receive.
    streak: u32,
    pub(super) flow: Flow,
    /// Whoever reads takes triggers, too.
    pub(super) takes_triggers: bool,
    pub(super) last_lender: LastLender,
    /// Made when something is first kept there.
    pub(super) shelf: Option<Arc<Shelf>>,
    pub(super) stats: RecvStats,
}

/// Whether more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Open,
    /// Nothing had come, and the peer was told that this half sleeps on the socket.
    Armed,
    /// The peer's sender has finished.
    Closed,
    /// The peer broke the protocol towards this half, or we lack what its message needs. What it
    /// writes from then on is not looked at.
    Failed,
}

/// A message in the peer's pool, on loan to us.
#[derive(Debug)]
struct Lent {
    segment: Arc<PoolSegment>,
    descriptor: Pooled,
}

/// The record at the ring's position, judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) header: Header,
    /// Start of the message behind the envelope, in bytes from the segment's start.
    pub(super) offset: usize,
    /// Length of the message in bytes.
    pub(super) len: usize,
}

impl Inbox {
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
            lent: None,
            id: RequestId(0),
            next_distance: 0,
            max_message: link.terms.max_message,
            streak: 0,
            flow: Flow::Open,
            takes_triggers: false,
            last_lender: LastLender::default(),
            shelf: None,
            stats: RecvStats::default(),
            generation: *link.own.generation(),
            link,
            session,
        }
    }

    /// The record at the ring's position, judged.
    #[inline(always)]
    pub(super) fn head(&mut self, patience: Patience) -> Result<Option<Head>, TryRecvError> {
        self.generation.check()?;
        if self.flow != Flow::Open && !self.resume(patience) {
            return self.over(patience);
        }
        if self.lent.is_some() {
            // Looked at and not released: what stands there now is judged anew.
            self.lent = None;
        }
        let record = match self.consumer.peek() {
            Ok(Some(record)) => record,
            Ok(None) => match self.watch(patience)? {
                Some(record) => record,
                None => self.await_record(patience)?,
            },
            Err(fault) => return Err(self.fail(fault).into()),
        };
        self.judge(record, patience)
    }

    /// Watches the ring for about a microsecond, in which an awake peer answers.
    #[inline(always)]
    fn watch(&mut self, patience: Patience) -> Result<Option<Record>> {
        if matches!(patience, Patience::None) || !self.data.watches() {
            return Ok(None);
        }
        self.tell_position();
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

    /// Waits for a record as long as `patience` says.
    #[cold]
    fn await_record(&mut self, patience: Patience) -> Result<Record, TryRecvError> {
        self.tell_position();
        loop {
            let Self { link, consumer, .. } = &*self;
            let (health, next) = link.standing.before(|| consumer.peek());
            match next {
                Ok(Some(record)) => {
                    self.disarm();
                    return Ok(record);
                }
                Ok(None) => {}
                Err(fault) => return Err(self.fail(fault).into()),
            }
            if health != Health::Alive {
                return Err(self.end(health).into());
            }
            let deadline = match patience {
                Patience::None if self.link.by_descriptor() => {
                    if self.arm()? {
                        continue;
                    }
                    self.link.arrivals().told_of_nothing();
                    return Err(TryRecvError::Empty);
                }
                Patience::None => return Err(TryRecvError::Empty),
                Patience::Until(deadline) => Some(deadline),
                Patience::Forever => None,
            };
            let Self { data, consumer, link, .. } = self;
            data.wait(link, deadline, None, || consumer.is_ready())?;
        }
    }

    /// Whether an armed half has something to do: look at what came, or wait in another way.
    #[cold]
    fn resume(&mut self, patience: Patience) -> bool {
        let resumes = self.flow == Flow::Armed
            && (self.consumer.is_ready() || !matches!(patience, Patience::None));
        if resumes {
            self.disarm();
        }
        resumes
    }

    /// The answer once nothing more is to come; and of an armed half, as long as nothing comes.
    #[cold]
    fn over(&mut self, patience: Patience) -> Result<Option<Head>, TryRecvError> {
        match self.flow {
            Flow::Open | Flow::Armed => {
                let record = self.await_record(patience)?;
                self.judge(record, patience)
            }
            Flow::Closed => Ok(None),
            Flow::Failed => Err(self.link.end().into()),
        }
    }

    /// Ends the link because of what the ring says.
    #[cold]
    pub(super) fn fail(&mut self, error: impl Into<Error>) -> Error {
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
    pub(super) fn tell_position(&mut self) {
        if self.consumer.publish() {
            self.offer_room();
        }
    }

    /// Looks whether the peer's sender sleeps for want of room.
    ///
    /// A state that cannot be ends the link: the message at hand is the last one.
    #[inline(always)]
    fn offer_room(&mut self) {
        match self.room.look(self.link.barrier, &self.link.own, &self.link.peer) {
            Ok(None) => {}
            Ok(Some(attention)) => self.attend(attention),
            Err(fault) => drop(self.fail(fault)),
        }
    }

    #[cold]
    fn attend(&mut self, attention: Attention) {
        match attention {
            Attention::Wake => self.link.wake(self.room.bell()),
            Attention::Call => self.link.call(Reason::Room),
            Attention::Gone => return,
        }
        self.stats.wakes += 1;
    }

    /// Judges what a record says of itself.
    #[inline(always)]
    fn judge(&mut self, record: Record, patience: Patience) -> Result<Option<Head>, TryRecvError> {
        let Record { header, offset } = record;
        if header.is_plain() && header.len() <= self.max_message {
            return Ok(Some(Head { header, offset, len: header.len() as usize }));
        }
        if header.kind() == Kind::Parcel {
            self.judge_parcel(header).map_err(|fault| self.fail(fault))?;
            return Ok(Some(Head { header, offset, len: header.len() as usize }));
        }
        self.judge_rare(record, patience)
    }

    #[cold]
    fn judge_rare(
        &mut self,
        mut record: Record,
        patience: Patience,
    ) -> Result<Option<Head>, TryRecvError> {
        let start = Instant::now();
        let mut tokens = 0;
        loop {
            match record.header.kind() {
                Kind::Close => {
                    self.flow = Flow::Closed;
                    return Ok(None);
                }
                Kind::Trigger if self.takes_triggers => {
                    let offset = record.offset;
                    self.token(record).map_err(|fault| self.fail(fault))?;
                    return Ok(Some(Head { header: record.header, offset, len: 4 }));
                }
                Kind::Trigger => {
                    self.token(record).map_err(|fault| self.fail(fault))?;
                    self.stats.stale_tokens += 1;
                    tokens += 1;
                    if tokens == TOKENS {
                        return Err(self.fail(Fault::UnexpectedTokens { count: TOKENS }).into());
                    }
                    self.discard(record.header);
                    record = self.await_record(patience)?;
                }
                Kind::Packets => {
                    self.take_packets(record.header).map_err(|error| self.fail(error))?;
                    self.discard(record.header);
                    // Taking them takes time.
                    patience.check(start)?;
                    record = self.await_record(patience)?;
                }
                Kind::Parcel => return self.judge(record, patience),
                // Also for want of our own memory or descriptors: what came with the record is lost.
                _ => {
                    return Ok(Some(
                        self.judge_envelope(record).map_err(|error| self.fail(error))?,
                    ));
                }
            }
        }
    }

    /// The token in a record that triggers one.
    pub(super) fn token(&self, record: Record) -> Result<u32, Fault> {
        let header = record.header;
        if header.is_pooled() || header.len() != 4 {
            return Err(Fault::RecordHeader { header: header.to_word() });
        }
        let mut token = [0; 4];
        self.link.peer.bytes(record.offset, 4).copy_to(&mut token);
        Ok(u32::from_le_bytes(token))
    }

    /// The peer says that packets wait on the socket: it can send no more before they are taken.
    fn take_packets(&self, header: Header) -> Result<()> {
        if header.is_pooled() || header.len() != 0 {
            return Err(Fault::RecordHeader { header: header.to_word() }.into());
        }
        self.link.arrivals().take(&self.link.socket).map(drop)
    }

    /// Gives back a record that is no message.
    pub(super) fn discard(&mut self, header: Header) {
        if self.consumer.release(header) {
            self.offer_room();
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
        descriptor.judge(max, link.terms.own.loan_slots)?;
        let mut arrivals = link.arrivals();
        arrivals.open_window();
        let segment = arrivals.segment(&link.socket, descriptor.segment)?;
        drop(arrivals);
        let capacity = segment.len() as u64;
        if descriptor.offset > capacity || descriptor.len > capacity - descriptor.offset {
            let Pooled { offset, len, .. } = descriptor;
            return Err(Fault::SegmentRange { offset, len, capacity }.into());
        }
        if descriptor.len > 0 && self.stats.pooled >= self.next_distance {
            self.next_distance = self.stats.pooled + DISTANCE_EVERY;
            let (offset, len) = (descriptor.offset as usize, descriptor.len as usize);
            let took = pool::time_to_come(segment.mapping().bytes(offset, len));
            self.session.core.pool.note_distance(took);
        }
        self.lent = Some(Lent { segment, descriptor });
        Ok(Head { header, offset, len: descriptor.len as usize })
    }

    /// What the record at the ring's position is.
    pub(super) fn kind(&self, head: &Head) -> MessageKind {
        match head.header.kind() {
            Kind::Request => MessageKind::Request(self.id),
            Kind::Response => MessageKind::Response(self.id),
            Kind::Parcel => MessageKind::Tensors,
            _ => MessageKind::Message,
        }
    }

    #[inline(always)]
    pub(super) fn bytes(&self, head: &Head) -> Bytes<'_> {
        match &self.lent {
            None => self.link.peer.bytes(head.offset, head.len),
            Some(lent) => lent.segment.mapping().bytes(lent.descriptor.offset as usize, head.len),
        }
    }

    /// Gives the record at the ring's position back, with its loan.
    #[inline(always)]
    pub(super) fn release(&mut self, head: &Head) {
        if self.lent.is_some() {
            self.return_loan();
        }
        self.stats.messages += 1;
        self.stats.bytes += head.len as u64;
        self.streak = self.streak.saturating_add(1);
        if self.consumer.release(head.header) {
            self.offer_room();
        }
    }

    #[cold]
    fn return_loan(&mut self) {
        if let Some(Lent { descriptor, .. }) = self.lent.take() {
            self.stats.pooled += 1;
            self.session.return_loan(descriptor.slot, descriptor.generation);
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let link = &self.link;
        if link.own.generation().is_current() {
            self.data.leave(link);
            // A sender that sleeps for want of room waits in vain.
            self.room = Waker::new(control::SENDER_STATE, control::ROOM_BELL);
            self.offer_room();
        }
    }
}
