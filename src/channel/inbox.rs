//! The inbox: the reader's end of a ring. It finds the next record, checks it, waits for it, and releases it.
//!
//! 1. Each header and each descriptor is read once and checked before it is used. The head of a record that a caller has
//!    seen and left in the ring is kept: nothing of it is read or checked anew, whatever the peer writes there.
//! 2. `lent` is set only while a checked descriptor's segment is cached, and only for the record at the ring's position.
//! 3. A fault sets `flow` to `Failed`: this half reads nothing that the peer writes afterwards.
//! 4. Before it waits, the inbox publishes its position, so that a sender without room goes on.
//! 5. A record that may need the socket stays in the ring while the socket [rests](crate::link::share), and the half finds
//!    nothing then. Only halves whose thread serves several peers let it rest.
//! 6. After the end of the peer at most one ring of records is left. The inbox counts them whenever it publishes its
//!    position, so a ring in which each word looks like a record does not keep a dead peer's link alive.

use std::sync::Arc;

use crate::channel::backlog::PINNED;
use crate::channel::extension::ExtensionSlot;
use crate::channel::loan_descriptor::LoanDescriptor;
use crate::channel::message::{MessageKind, RequestId};
use crate::channel::metadata::Metadata;
use crate::channel::pipeline::CopyAhead;
use crate::channel::segment_cache::SegmentCache;
use crate::channel::stats::HalfStats;
use crate::error::{Error, Fault, Result, TryRecvError, memory};
use crate::handshake::layout;
use crate::handshake::packet::Reason;
use crate::link::health::Health;
use crate::link::link::Link;
use crate::link::session::Session;
use crate::link::waiter::Waiter;
use crate::patience::RecvPatience;
use crate::ring::{Consumer, Header, Kind, Record, SHORT, largest_payload};
use crate::shm::fork::Generation;
use crate::shm::{Bytes, Mapping, PeerMapping, PeerWords};
use crate::status::Awaited;
use crate::status::layout::{RECEIVER, WAKES};
use crate::wake::{Attention, Sleeper, Waker};

mod arming;
mod at_once;
mod awaited;
mod envelope;
mod loans;
mod pipelined;
mod polled;
pub(crate) mod rare;
pub(crate) mod receiver;
mod requests;
mod runs;
pub(crate) mod tensor_calls;
mod tensors;
mod with_metadata;

/// Polls of the ring before anything else is considered: about a microsecond.
const POLLS: u32 = 1000;

/// The reader's end of a ring, and its state between records.
#[derive(Debug)]
pub(crate) struct Inbox {
    consumer: Consumer<Mapping, PeerMapping>,
    /// The peer's segment with the ring that this half reads.
    ring: PeerMapping,
    data: Waiter,
    room: Waker,
    generation: Generation,
    link: Arc<Link>,
    session: Arc<Session>,
    /// The checked descriptor of the record at the ring's position, if it is a pooled one. Its segment is cached.
    lent: Option<LoanDescriptor>,
    /// The segment of the last tensor's loan and the slot of the last loan, if nothing is prepared for the next one.
    last_segment: Option<u32>,
    last_slot: Option<u32>,
    /// The id of the record at the ring's position, if it is a request or response.
    id: RequestId,
    /// The metadata of the record at the ring's position, if the record has some.
    metadata: Metadata,
    /// Length of the description in the last attachment of the record at the ring's position, if it has one there.
    description: u64,
    /// The head of the record at the ring's position, if `flow` is `Held`.
    held: RecordHead,
    /// The longest message of this link, in bytes.
    max_message: u64,
    /// The longest one in the ring, in bytes.
    plain_max: u64,
    /// Whether the last record was longer than its header's line. The next one mostly is, too, so the polls load its
    /// second line with the first. Loading it afterwards takes 0.1 of a round trip near, 0.2 far.
    is_long: bool,
    flow: Flow,
    /// The caller takes triggers like messages.
    takes_triggers: bool,
    segments: SegmentCache,
    /// Boxed, so that the fields that every message needs stay close together.
    ahead: Box<CopyAhead>,
    /// Made on its first use.
    extension: Option<Arc<ExtensionSlot>>,
    /// The position at which the inbox first saw that the link has ended.
    ended_at: Option<u64>,
    /// The triggers in a row that nobody takes, and the count of messages before them.
    stray_tokens: (u64, u32),
    /// The records that say that packets wait.
    packets_records: u64,
    stats: HalfStats,
}

/// Whether more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Open,
    /// A caller has seen the record at the ring's position and has left it there.
    Held,
    /// Nothing had come, and the peer was told that this half sleeps on the socket.
    Armed,
    /// The peer's sender has finished.
    Closed,
    /// The peer broke the protocol towards this half, or this process lacks the memory or descriptor that its message
    /// needs. This half reads nothing that the peer writes afterwards.
    Failed,
}

/// The record at the ring's position, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordHead {
    pub(crate) header: Header,
    /// Start of the message behind the envelope, in bytes from the segment's start.
    pub(crate) offset: usize,
    /// Length of the message in bytes.
    pub(crate) len: usize,
}

impl Inbox {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        let link = session.link.clone();
        let peer = link.terms().peer;
        let options = &session.env.options();
        let consumer = Consumer::new(
            link.own().clone(),
            link.peer().clone(),
            peer.control,
            layout::POSITION,
            peer.ring,
            0,
        );
        let sleeper = Sleeper::new(layout::RECEIVER_STATE, layout::DATA_BELL)
            .with_interrupts(link.interrupts());
        Self {
            consumer,
            ring: link.peer().clone(),
            data: Waiter::new(sleeper, options.spin, link.row().half(RECEIVER)),
            room: Waker::new(layout::SENDER_STATE, layout::ROOM_BELL),
            lent: None,
            last_segment: None,
            last_slot: None,
            id: RequestId(0),
            metadata: Metadata::new(),
            description: 0,
            held: RecordHead { header: Header::POOLED_MESSAGE, offset: 0, len: 0 },
            max_message: link.terms().max_message,
            plain_max: link.terms().max_message.min(largest_payload(peer.ring)),
            is_long: false,
            flow: Flow::Open,
            takes_triggers: false,
            segments: SegmentCache::default(),
            ahead: Box::default(),
            extension: None,
            ended_at: None,
            stray_tokens: (0, 0),
            packets_records: 0,
            stats: HalfStats::default(),
            generation: *link.own().generation(),
            link,
            session,
        }
    }

    /// Returns the record at the ring's position, checked.
    #[inline(always)]
    pub(crate) fn head(
        &mut self,
        patience: RecvPatience,
    ) -> Result<Option<RecordHead>, TryRecvError> {
        self.poll(patience);
        self.next_head(patience)
    }

    /// As [`next_head`](Self::next_head), out of the way of plain messages.
    #[inline(never)]
    pub(crate) fn rare_head(
        &mut self,
        patience: RecvPatience,
    ) -> Result<Option<RecordHead>, TryRecvError> {
        self.next_head(patience)
    }

    /// Returns the next record if it is a plain message, in the ring or in the pool, and comes within about a microsecond.
    /// `None`: [`rare_head`](Self::rare_head) returns what there is.
    #[inline(always)]
    pub(crate) fn plain(&mut self, patience: RecvPatience) -> Option<RecordHead> {
        let word = self.poll(patience)?;
        if let Some(Record { header, offset }) = self.consumer.plain(word, self.plain_max) {
            return Some(RecordHead { header, offset, len: header.len() as usize });
        }
        let header = Header::POOLED_MESSAGE;
        let is_pooled = word == header.to_word() && self.find_pooled();
        is_pooled.then(|| self.pooled_head(Record { header, offset: 0 }))
    }

    /// Polls the ring for about a microsecond. Returns the word at its position, or 0 if nothing has come. `None`: the
    /// caller checks something else first.
    #[inline(always)]
    pub(crate) fn poll(&mut self, patience: RecvPatience) -> Option<u64> {
        if !self.generation.is_current() || self.flow != Flow::Open || self.lent.is_some() {
            return None;
        }
        self.consumer.give_way();
        match self.consumer.word() {
            0 => {
                self.consumer.caught_up();
                Some(self.poll_briefly(patience))
            }
            word => Some(word),
        }
    }

    /// Returns the link whose peer may take back the memory of the record at the ring's position.
    #[inline(always)]
    fn lender(&self) -> Option<&Link> {
        if self.lent.is_some() { Some(&self.link) } else { None }
    }

    /// Checks that the peer has not taken back what it lent for the record at the ring's position. Memory of the ring stays.
    fn check_loan(&self) -> Result<()> {
        if self.lent.is_some() { self.link.check_loans() } else { Ok(()) }
    }

    /// Returns the record at the ring's position, of any kind, checked.
    #[inline(always)]
    fn next_head(&mut self, patience: RecvPatience) -> Result<Option<RecordHead>, TryRecvError> {
        self.generation.check()?;
        if self.flow != Flow::Open {
            if self.unhold() {
                return Ok(Some(self.held));
            }
            if !self.resume(patience) {
                return self.over(patience);
            }
        }
        if self.lent.is_some() {
            // A panic ended the caller between its look at the record and its release.
            self.lent = None;
        }
        let record = match self.consumer.peek() {
            Ok(Some(record)) => record,
            Ok(None) => self.await_record(patience)?,
            Err(fault) => return Err(self.fail(fault).into()),
        };
        self.check_record(record, patience)
    }

    /// Keeps the head of a record that a caller has seen and leaves in the ring.
    #[inline(always)]
    pub(crate) fn hold(&mut self, head: RecordHead) {
        // After a fault this half reads nothing more.
        if self.flow == Flow::Open {
            self.held = head;
            self.flow = Flow::Held;
        }
    }

    /// Returns whether a head was kept. The caller takes its record.
    #[inline(always)]
    pub(crate) fn unhold(&mut self) -> bool {
        let is_held = self.flow == Flow::Held;
        if is_held {
            self.flow = Flow::Open;
        }
        is_held
    }

    /// Prepares the next loan. The receiver does so before it polls, when nothing waits for it.
    #[inline(always)]
    fn prepare_loan(&mut self) {
        if let Some(segment) = self.last_segment.take() {
            self.segments.refill(segment);
        }
        if let Some(slot) = self.last_slot.take() {
            self.session.prepare_return(slot);
        }
    }

    /// Watches the ring for about a microsecond, in which an awake peer answers: the word that came, or 0.
    #[inline(always)]
    fn poll_briefly(&mut self, patience: RecvPatience) -> u64 {
        if matches!(patience, RecvPatience::None) || !self.data.polls() {
            return 0;
        }
        self.publish_position();
        self.prepare_loan();
        for _ in 0..POLLS {
            if self.is_long {
                self.consumer.touch();
            }
            let word = self.consumer.word();
            if word != 0 {
                self.data.caught();
                return word;
            }
        }
        0
    }

    /// Waits for a record as long as `patience` allows.
    #[cold]
    pub(crate) fn await_record(&mut self, patience: RecvPatience) -> Result<Record, TryRecvError> {
        self.publish_position();
        if self.flow == Flow::Failed {
            // The release of the record before, or the position, ended the link.
            return Err(self.link.end().into());
        }
        loop {
            let Self { link, consumer, .. } = &*self;
            let (health, next) = link.health_word().before(|| consumer.peek());
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
                RecvPatience::None if self.link.by_descriptor() => {
                    if self.arm()? {
                        continue;
                    }
                    self.link.control_socket().found_nothing();
                    return Err(TryRecvError::Empty);
                }
                RecvPatience::None => return Err(TryRecvError::Empty),
                RecvPatience::Until(deadline) => Some(deadline),
                RecvPatience::Forever => None,
            };
            let Self { data, consumer, link, ahead, .. } = self;
            let is_told =
                || ahead.wanted.is_some() && link.peer().load(layout::FILLED) != ahead.told;
            data.wait(link, Awaited::Message, (deadline, None), || {
                consumer.is_ready() || is_told()
            })?;
            if ahead.wanted.is_some() && !consumer.is_ready() {
                self.copy_ahead(patience);
            }
        }
    }

    /// Disarms an armed half that has something to do: a record has come, or the caller waits without the socket. Returns
    /// whether it did.
    #[cold]
    fn resume(&mut self, patience: RecvPatience) -> bool {
        let resumes = self.flow == Flow::Armed
            && (self.consumer.is_ready() || !matches!(patience, RecvPatience::None));
        if resumes {
            self.disarm();
        }
        resumes
    }

    /// Returns the answer of a half to which nothing more comes, or of an armed half while nothing comes.
    #[cold]
    fn over(&mut self, patience: RecvPatience) -> Result<Option<RecordHead>, TryRecvError> {
        match self.flow {
            Flow::Open | Flow::Held | Flow::Armed => {
                let record = self.await_record(patience)?;
                self.check_record(record, patience)
            }
            Flow::Closed => Ok(None),
            Flow::Failed => Err(self.link.end().into()),
        }
    }

    /// Ends the link because of what the ring says.
    #[cold]
    pub(crate) fn fail(&mut self, error: impl Into<Error>) -> Error {
        self.flow = Flow::Failed;
        self.link.fail(error)
    }

    /// Returns the error of a link that ended before the peer's sender had finished.
    #[cold]
    fn end(&self, health: Health) -> Error {
        match health {
            Health::Failed => self.link.end(),
            _ => self.link.death(),
        }
    }

    /// Publishes the position for the peer's sender, because nothing is left to read.
    #[inline(always)]
    pub(crate) fn publish_position(&mut self) {
        let HalfStats { messages, bytes, tensors, .. } = self.stats;
        self.data.status().passed(messages + tensors, bytes);
        if self.consumer.publish() {
            self.published();
        }
    }

    /// Does what follows from a published position. A half whose ring never runs empty publishes with releases alone.
    #[inline(always)]
    fn published(&mut self) {
        self.data.progress(&self.link, self.consumer.position());
        self.offer_room();
        if !self.link.is_alive() {
            self.count_after_end();
        }
    }

    /// Counts the bytes of records after the end of the link. More than the peer's ring holds are a fault.
    #[cold]
    fn count_after_end(&mut self) {
        let (capacity, position) = (self.consumer.capacity(), self.consumer.position());
        let len = position.wrapping_sub(*self.ended_at.get_or_insert(position));
        if len > capacity {
            self.fail(Fault::RecordsAfterEnd { len, capacity });
        }
    }

    /// Wakes the peer's sender if it sleeps because there was no room. An invalid state of the sender ends the link.
    #[inline(always)]
    pub(crate) fn offer_room(&mut self) {
        match self.room.look(self.link.own(), self.link.peer()) {
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
        self.data.status().store(WAKES, self.stats.wakes);
    }

    /// Checks a record's header.
    #[inline(always)]
    pub(crate) fn check_record(
        &mut self,
        record: Record,
        patience: RecvPatience,
    ) -> Result<Option<RecordHead>, TryRecvError> {
        let Record { header, offset } = record;
        if header.is_plain() && header.len() <= self.max_message {
            return Ok(Some(RecordHead { header, offset, len: header.len() as usize }));
        }
        if header.is_plain_tensors() {
            let head = RecordHead { header, offset, len: header.len() as usize };
            self.check_tensors(&head).map_err(|fault| self.fail(fault))?;
            return Ok(Some(head));
        }
        self.check_rare(record, patience)
    }

    /// Returns the kind of the record at the ring's position.
    pub(crate) fn kind(&self, head: &RecordHead) -> MessageKind {
        match head.header.kind() {
            Kind::Request => MessageKind::Request(self.id),
            Kind::Response => MessageKind::Response(self.id),
            Kind::Tensors => MessageKind::Tensors,
            Kind::TensorRequest => MessageKind::TensorRequest(self.id),
            Kind::TensorResponse => MessageKind::TensorResponse(self.id),
            _ => MessageKind::Message,
        }
    }

    /// Returns the size of the record at the ring's position in a backlog, in bytes.
    pub(crate) fn size(&self, head: &RecordHead) -> usize {
        let in_pool = head.header.has_tensors() && head.header.is_pooled();
        let description = if in_pool { self.description as usize } else { 0 };
        let attachments = head.header.attachments() * PINNED;
        head.len + self.metadata(head).section().len() + attachments + description
    }

    #[inline(always)]
    pub(crate) fn bytes(&self, head: &RecordHead) -> Bytes<'_> {
        match &self.lent {
            None => self.ring.bytes(head.offset, head.len),
            Some(lent) => {
                let cached = self.segments.get(lent.segment).expect("until it is released");
                cached.segment.mapping().bytes(lent.offset as usize, head.len)
            }
        }
    }

    /// Copies the message at the ring's position out, and releases its record. Returns its length in bytes.
    #[inline(always)]
    pub(crate) fn copy_out(&mut self, head: &RecordHead, message: &mut Vec<u8>) -> Result<usize> {
        self.copy_rest(head, message, 0)
    }

    /// Copies the message at the ring's position out from byte `copied` on, and releases its record. Returns its length in
    /// bytes. A message for which there is no memory stays the next one.
    #[inline(always)]
    pub(crate) fn copy_rest(
        &mut self,
        head: &RecordHead,
        message: &mut Vec<u8>,
        copied: usize,
    ) -> Result<usize> {
        if message.len() != head.len {
            if message.capacity() < head.len {
                self.make_room(head, message)?;
            }
            message.resize(head.len, 0);
        }
        let rest = self.bytes(head).slice(copied, head.len - copied);
        rest.copy_to(&mut message[copied..]);
        self.release(head)?;
        Ok(head.len)
    }

    /// Makes room for a message, or leaves it in the ring.
    #[cold]
    fn make_room(&mut self, head: &RecordHead, message: &mut Vec<u8>) -> Result<()> {
        let made = memory::reserve(message, head.len - message.len());
        made.inspect_err(|_| self.hold(*head))
    }

    /// Releases the record at the ring's position, with its loan.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LoanRevoked`]: the peer has taken the loan back, so the caller may have read other bytes. The link is over.
    #[inline(always)]
    pub(crate) fn release(&mut self, head: &RecordHead) -> Result<()> {
        // Most records have no loan, and then nothing is stored.
        if let Some(LoanDescriptor { slot, generation, .. }) = self.lent {
            self.lent = None;
            self.link.check_loans().map_err(|error| self.fail(error))?;
            self.stats.pooled += 1;
            self.session.return_loan(slot, generation);
            self.last_slot = Some(slot);
        }
        self.count(head);
        self.discard(head.header);
        Ok(())
    }

    /// Counts a received message.
    #[inline(always)]
    fn count(&mut self, head: &RecordHead) {
        self.stats.messages += 1;
        self.stats.bytes += head.len as u64;
    }

    /// Releases a record.
    #[inline(always)]
    pub(crate) fn discard(&mut self, header: Header) {
        self.pass(header);
        if self.consumer.release(header) {
            self.published();
        }
    }

    /// Notes what passes with a record, and shows it in the status page.
    #[inline(always)]
    fn pass(&mut self, header: Header) {
        self.is_long = header.len() > SHORT;
        let HalfStats { messages, bytes, tensors, .. } = self.stats;
        let is_hot = self.data.is_hot();
        self.data.status().pass(messages + tensors, bytes, is_hot);
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let link = &self.link;
        if link.own().generation().is_current() {
            let HalfStats { messages, bytes, tensors, .. } = self.stats;
            self.data.status().passed(messages + tensors, bytes);
            self.data.leave(link);
            // A sender that sleeps because there was no room would not wake up otherwise.
            self.room = Waker::new(layout::SENDER_STATE, layout::ROOM_BELL);
            self.offer_room();
        }
        self.session.leave();
    }
}
