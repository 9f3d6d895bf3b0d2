//! The receiver: the receiving half of a connection. It owns the inbox, the backlog and the requests in flight.
//!
//! 1. A wait for a response sets other messages aside, in the backlog, within its limit. A receive of another kind sets
//!    only responses aside: it fails at a message of another kind, which stays the next one. So no message is ever passed
//!    over by a program that does not receive its kind.
//! 2. A message that is only peeked at stays the next one, as it was checked.
//! 3. A response is accepted only for a request in flight; any other ends the link.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::channel::attachment::Claims;
use crate::channel::backlog::{Backlog, KeptMessage, PINNED};
use crate::channel::calls::Calls;
use crate::channel::inbox::Flow;
use crate::channel::inbox::{Inbox, RecordHead};
use crate::channel::message::{MessageKind, Request, RequestId};
use crate::channel::pipeline::{MESSAGES, REQUESTS, Wanted};
use crate::channel::readiness::Watch;
use crate::channel::stats::HalfStats;
use crate::channel::token::Token;
use crate::error::Fault;
pub use crate::error::TryRecvError;
use crate::error::{Error, ErrorKind, Result};
use crate::link::session::Session;
use crate::patience::RecvPatience;
use crate::ring::Kind;
use crate::shm::Bytes;

/// The receiving half of a [`Connection`](crate::Connection), which one thread uses at a time.
///
/// Dropping it tells the peer's sender that no message will be received. Long messages that are left keep their blocks
/// of the peer's pool until the [`Sender`](crate::Sender) of this side is dropped, too.
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let far = far.join().unwrap()?;
/// let (_sender, mut receiver) = far.split();
/// near.send(b"hello")?;
/// drop(near);
///
/// assert_eq!(receiver.recv()?.as_deref(), Some(&b"hello"[..]));
/// assert_eq!(receiver.recv()?, None);
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct Receiver {
    pub(crate) inbox: Inbox,
    pub(crate) backlog: Backlog,
    pub(crate) calls: Calls,
}

/// Shows the count of messages.
impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("received", &self.stats().messages).finish_non_exhaustive()
    }
}

impl Receiver {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        let backlog = Backlog::new(session.env.options().backlog_limit);
        Self { inbox: Inbox::new(session), backlog, calls: Calls::default() }
    }

    /// Receives the next message. `None`: the peer has closed in order, and each message that it sent was received.
    /// Waits as long as the peer lives and is silent.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PeerDied`]: the peer ended without closing, and each message that it published was received.
    /// - [`ErrorKind::Fault`]: the peer broke the protocol; the connection is over.
    /// - [`ErrorKind::OtherKind`]: the next message has tensors or is a request, for another method. It stays the next one.
    /// - [`ErrorKind::BacklogFull`]: too many responses stand before the next message.
    /// - [`ErrorKind::OutOfMemory`]: the allocator has no memory for the message, which stays the next one.
    /// - [`ErrorKind::Forked`]: the process that made the connection is the parent of this one.
    pub fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        Ok(self.take(&mut message, RecvPatience::Forever).map_err(into_error)?.map(|_| message))
    }

    /// As [`recv`](Self::recv), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        Ok(self
            .take(&mut message, RecvPatience::Until(deadline))
            .map_err(into_error)?
            .map(|_| message))
    }

    /// As [`recv`](Self::recv), but does not wait.
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: nothing has arrived.
    /// - [`TryRecvError::Failed`]: as [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>, TryRecvError> {
        let mut message = Vec::new();
        Ok(self.take(&mut message, RecvPatience::None)?.map(|_| message))
    }

    /// Receives as [`recv`](Self::recv) does, into a buffer that the caller reuses. Replaces `message` and returns its
    /// length in bytes. Without a message, `message` may be empty afterwards.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    #[inline(always)]
    pub fn recv_into(&mut self, message: &mut Vec<u8>) -> Result<Option<usize>> {
        self.take(message, RecvPatience::Forever).map_err(into_error)
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
        self.take(message, RecvPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`recv_into`](Self::recv_into), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    #[inline(always)]
    pub fn try_recv_into(&mut self, message: &mut Vec<u8>) -> Result<Option<usize>, TryRecvError> {
        self.take(message, RecvPatience::None)
    }

    /// Receives as [`recv_into`](Self::recv_into) does, into the front of a slice.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::BufferTooShort`]: the message is longer than `buffer`. It stays the next one.
    /// - Otherwise as [`recv`](Self::recv).
    pub fn recv_to(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.take_to(buffer, RecvPatience::Forever).map_err(into_error)
    }

    /// As [`recv_to`](Self::recv_to), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv_to`](Self::recv_to).
    pub fn recv_to_deadline(
        &mut self,
        buffer: &mut [u8],
        deadline: Instant,
    ) -> Result<Option<usize>> {
        self.take_to(buffer, RecvPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`recv_to`](Self::recv_to), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv) and [`recv_to`](Self::recv_to).
    pub fn try_recv_to(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TryRecvError> {
        self.take_to(buffer, RecvPatience::None)
    }

    /// Returns the next message in the ring, of any kind, without a copy. It stays the next one until it is
    /// [released](Received::release). Waits as [`recv`](Self::recv) does.
    ///
    /// It does not return messages that were set aside during a wait for another kind.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Received<'_>>> {
        self.peek_with(RecvPatience::Forever).map_err(into_error)
    }

    /// As [`peek`](Self::peek), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn peek_deadline(&mut self, deadline: Instant) -> Result<Option<Received<'_>>> {
        self.peek_with(RecvPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`peek`](Self::peek), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    #[inline(always)]
    pub fn try_peek(&mut self) -> Result<Option<Received<'_>>, TryRecvError> {
        self.peek_with(RecvPatience::None)
    }

    /// Calls `each` with up to `max` messages that have arrived, in place and without a copy, and releases each one
    /// after its call. Tensors go back unopened ([`MessageKind::Tensors`]). Does not wait. Returns the count of messages.
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

    /// As [`drain`](Self::drain), but waits until `deadline` for the first message. Returns 0 if the peer has closed in
    /// order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`drain`](Self::drain).
    pub fn drain_deadline(
        &mut self,
        max: usize,
        deadline: Instant,
        each: impl FnMut(MessageKind, Bytes<'_>),
    ) -> Result<usize> {
        if max > 0 && self.peek_deadline(deadline)?.is_none() {
            return Ok(0);
        }
        self.drain(max, each)
    }

    /// Receives the next request. `None`: the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_request(&mut self) -> Result<Option<Request>> {
        self.request(RecvPatience::Forever).map_err(into_error)
    }

    /// As [`recv_request`](Self::recv_request), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_request_deadline(&mut self, deadline: Instant) -> Result<Option<Request>> {
        self.request(RecvPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`recv_request`](Self::recv_request), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    pub fn try_recv_request(&mut self) -> Result<Option<Request>, TryRecvError> {
        self.request(RecvPatience::None)
    }

    fn request(&mut self, patience: RecvPatience) -> Result<Option<Request>, TryRecvError> {
        let kept = self.kept(Awaited::Request, patience, REQUESTS)?;
        Ok(kept.and_then(|KeptMessage { kind, body, .. }| match kind {
            MessageKind::Request(id) => Some(Request { id, body }),
            _ => None,
        }))
    }

    /// Receives the response to a request.
    pub(crate) fn response(&mut self, id: RequestId, deadline: Instant) -> Result<Vec<u8>> {
        let response = self.response_with(id, RecvPatience::Until(deadline)).map_err(into_error)?;
        response.ok_or_else(|| ErrorKind::PeerClosed.into())
    }

    /// Returns the response to a request. `None`: the peer has closed in order.
    pub(crate) fn response_with(
        &mut self,
        id: RequestId,
        patience: RecvPatience,
    ) -> Result<Option<Vec<u8>>, TryRecvError> {
        if !self.calls.is_made(id) {
            return Err(Error::from(ErrorKind::UnknownRequest { id: id.0 }).into());
        }
        let kept = self.kept(Awaited::Response(id), patience, REQUESTS)?;
        if kept.is_some() {
            self.calls.finish(id);
        }
        Ok(kept.map(|kept| kept.body))
    }

    pub(crate) fn calls(&mut self) -> &mut Calls {
        &mut self.calls
    }

    /// Marks a response as not wanted, and drops it if it was set aside.
    pub(crate) fn abandon(&mut self, id: RequestId) {
        self.calls.abandon(id);
        if self.backlog.take(|kind| *kind == MessageKind::Response(id)).is_some() {
            self.calls.finish(id);
        }
    }

    /// Returns the counters of this receiver.
    pub fn stats(&self) -> HalfStats {
        HalfStats { sleeps: self.inbox.data.sleeps, ..self.inbox.stats }
    }

    /// Returns the bytes of the peer's ring that wait to be received.
    pub(crate) fn unread(&self) -> u64 {
        self.inbox.consumer.unread()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.inbox.session
    }

    /// Copies the next plain message into `message`, and returns its length in bytes. `None`: the peer has closed in order.
    #[inline(always)]
    fn take(
        &mut self,
        message: &mut Vec<u8>,
        patience: RecvPatience,
    ) -> Result<Option<usize>, TryRecvError> {
        if self.backlog.is_empty() {
            if let Some(head) = self.inbox.plain(patience) {
                return Ok(Some(self.inbox.copy_out(&head, message)?));
            }
            if let Some((head, copied)) =
                self.inbox.head_ahead(patience, (MESSAGES, usize::MAX), message)?
            {
                if head.header.kind() == Kind::Message {
                    return Ok(Some(self.inbox.copy_rest(&head, message, copied)?));
                }
                if copied > 0 {
                    message.clear();
                }
                self.inbox.hold(head);
            }
        }
        Ok(self.kept(Awaited::Message, patience, MESSAGES)?.map(|kept| {
            *message = kept.body;
            message.len()
        }))
    }

    /// Copies the next plain message to the front of `buffer`.
    fn take_to(
        &mut self,
        buffer: &mut [u8],
        patience: RecvPatience,
    ) -> Result<Option<usize>, TryRecvError> {
        let room = buffer.len();
        let too_short = |len| Error::from(ErrorKind::BufferTooShort { len, room });
        if self.backlog.is_empty() {
            let Some(received) = self.next_with(patience)? else { return Ok(None) };
            let (kind, len) = (received.kind(), received.len());
            if kind == MessageKind::Message && len <= room {
                received.bytes().copy_to(&mut buffer[..len]);
                received.release()?;
                return Ok(Some(len));
            }
            received.leave();
            if kind == MessageKind::Message {
                return Err(too_short(len).into());
            }
        }
        let Some(kept) = self.kept(Awaited::Message, patience, MESSAGES)? else { return Ok(None) };
        let len = kept.body.len();
        if len > room {
            self.backlog.put_back(kept);
            return Err(too_short(len).into());
        }
        buffer[..len].copy_from_slice(&kept.body);
        Ok(Some(len))
    }

    /// Returns the next message of the awaited kind, and sets aside what a wait for it may set aside.
    #[cold]
    fn kept(
        &mut self,
        awaited: Awaited,
        patience: RecvPatience,
        copies: Wanted,
    ) -> Result<Option<KeptMessage>, TryRecvError> {
        if let Some(oldest) = self.backlog.oldest_unasked() {
            awaited.check(oldest)?;
        }
        if let Some(kept) = self.backlog.take(|kind| awaited.takes(*kind)) {
            return Ok(Some(kept));
        }
        loop {
            let mut body = Vec::new();
            // The caller may set the announced message aside.
            let ahead = (copies, self.backlog.room());
            let Some((head, copied)) = self.inbox.head_for_copy(patience, ahead, &mut body)? else {
                return Ok(None);
            };
            let kind = self.inbox.kind(&head);
            let is_expected = match kind {
                MessageKind::Response(id) => self.calls.is_made(id),
                _ => true,
            };
            if is_expected && !awaited.takes(kind) {
                let size = head.len + head.header.attachments() * PINNED;
                if let Err(error) = awaited.check(kind).and_then(|()| self.backlog.admit(size)) {
                    self.inbox.hold(head);
                    return Err(error.into());
                }
            }
            let kept = self.inbox.kept(&head, kind, (body, copied))?;
            if let MessageKind::Response(id) = kept.kind
                && !self.calls.answered(id).map_err(|fault| self.inbox.fail(fault))?
            {
                // The response is not wanted.
                continue;
            }
            if awaited.takes(kept.kind) {
                return Ok(Some(kept));
            }
            self.backlog.push(kept);
        }
    }

    /// Calls `open` with the description and the attachments of the next tensors record. If `open` fails, the link ends.
    #[inline]
    pub(crate) fn open_tensors<T>(
        &mut self,
        patience: RecvPatience,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>, TryRecvError> {
        if !self.backlog.has_unasked()
            && let Some(head) = self.inbox.head(patience)?
        {
            if head.header.kind() == Kind::Tensors {
                return Ok(Some(self.inbox.open(&head, open)?));
            }
            self.inbox.hold(head);
        }
        self.open_set_aside(patience, open)
    }

    /// Treats the memory that the peer lends as memory that it does not change.
    pub(crate) fn trust(&mut self) {
        self.inbox.session.trust();
    }

    #[cold]
    fn open_set_aside<T>(
        &mut self,
        patience: RecvPatience,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>, TryRecvError> {
        let kept = self.kept(Awaited::Tensors, patience, None)?;
        let Some(kept) = kept else { return Ok(None) };
        Ok(Some(self.open_kept(kept, open)?))
    }

    /// Calls `open` with a tensors record that was set aside.
    pub(crate) fn open_kept<T>(
        &mut self,
        kept: KeptMessage,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut claims = Claims::kept(kept.attachments, &mut self.inbox.extension);
        open(&kept.body, &mut claims)
            .and_then(|opened| claims.finish().map(|()| opened))
            .map_err(|error| self.inbox.fail(error))
    }

    #[inline(always)]
    fn peek_with(&mut self, patience: RecvPatience) -> Result<Option<Received<'_>>, TryRecvError> {
        Ok(self.next_with(patience)?.map(|received| {
            received.receiver.inbox.hold(received.head);
            received
        }))
    }

    /// As [`try_peek`](Self::try_peek), for a caller that [leaves](Received::leave) what it does not take.
    #[inline(always)]
    pub(crate) fn try_next(&mut self) -> Result<Option<Received<'_>>, TryRecvError> {
        self.next_with(RecvPatience::None)
    }

    #[inline(always)]
    fn next_with(&mut self, patience: RecvPatience) -> Result<Option<Received<'_>>, TryRecvError> {
        if let Some(head) = self.inbox.plain(patience) {
            return Ok(Some(Received { head, receiver: self }));
        }
        let head = self.inbox.rare_head(patience)?;
        Ok(head.map(|head| Received { head, receiver: self }))
    }

    /// Settles the response at the ring's position, which the caller has read in place.
    #[cold]
    fn settle_response(&mut self) -> Result<()> {
        let id = self.inbox.id;
        self.calls.answered(id).map_err(|fault| self.inbox.fail(fault))?;
        self.calls.finish(id);
        Ok(())
    }
}

/// The message that a caller waits for.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    Message,
    Request,
    Tensors,
    Response(RequestId),
}

impl Awaited {
    fn takes(self, kind: MessageKind) -> bool {
        match self {
            Self::Message => kind == MessageKind::Message,
            Self::Request => matches!(kind, MessageKind::Request(_)),
            Self::Tensors => kind == MessageKind::Tensors,
            Self::Response(id) => kind == MessageKind::Response(id),
        }
    }

    /// Checks that the caller takes a message of this kind, or that the receiver may set it aside for a caller who will
    /// ask for it. A caller that only receives another kind may never ask: it would lose the message unseen.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherKind`]: the caller receives the message by another method first.
    fn check(self, kind: MessageKind) -> Result<()> {
        let (next, method) = match kind {
            _ if self.takes(kind) || matches!(self, Self::Response(_)) => return Ok(()),
            MessageKind::Response(_) => return Ok(()),
            MessageKind::Message => ("is a plain one", "`recv`"),
            MessageKind::Request(_) => ("is a request", "`recv_request`"),
            MessageKind::Tensors => ("has tensors", "`recv_tensor` or `recv_tensors`"),
        };
        Err(ErrorKind::OtherKind { next, method }.into())
    }
}

/// Returns the error of an operation that waited.
fn into_error(error: TryRecvError) -> Error {
    match error {
        TryRecvError::Failed(error) => error,
        // An operation that waits ends by its deadline, so this arm is not reached.
        TryRecvError::Empty => ErrorKind::TimedOut { after: std::time::Duration::ZERO }.into(),
    }
}

/// A received message in the sender's memory, without a copy.
///
/// Dropped without [`release`](Self::release), it stays the next message, with the kind and the length that it had.
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
/// near.send(b"hello")?;
///
/// let received = far.receiver().peek()?.expect("the peer has not closed");
/// assert_eq!(received.len(), 5);
/// assert_eq!(received.bytes().to_vec(), b"hello");
/// received.release()?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
pub struct Received<'a> {
    pub(crate) head: RecordHead,
    pub(crate) receiver: &'a mut Receiver,
}

impl Received<'_> {
    /// Returns a view of the message's bytes.
    #[inline(always)]
    pub fn bytes(&self) -> Bytes<'_> {
        self.receiver.inbox.bytes(&self.head)
    }

    /// Returns the message's length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head.len
    }

    /// Returns the message's size in the backlog, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.head.len + self.head.header.attachments() * PINNED
    }

    /// Returns whether the message has no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head.len == 0
    }

    /// Returns the message's kind.
    #[inline(always)]
    pub fn kind(&self) -> MessageKind {
        self.receiver.inbox.kind(&self.head)
    }

    /// Calls `open` with a tensors record and releases it. `None`: the record is of another kind, and is released.
    pub(crate) fn open<T>(
        self,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.head.header.kind() == Kind::Tensors {
            self.receiver.inbox.unhold();
            return self.receiver.inbox.open(&self.head, open).map(Some);
        }
        self.release().map(|()| None)
    }

    /// Returns the message's memory to the sender.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Fault`]: the peer broke the protocol.
    #[inline(always)]
    pub fn release(self) -> Result<()> {
        self.receiver.inbox.unhold();
        match self.head.header.kind() {
            Kind::Response => self.receiver.settle_response()?,
            // The attachments go back with their record.
            Kind::Tensors => return self.receiver.inbox.keep(&self.head).map(drop),
            _ => {}
        }
        self.receiver.inbox.release(&self.head);
        Ok(())
    }

    /// Ends the link: this process cannot take the message.
    pub(crate) fn fail(self, error: Error) -> Error {
        self.receiver.end(error)
    }

    /// Leaves the message in the ring as it was checked. [`Receiver::try_peek`] does so ahead.
    pub(crate) fn leave(self) {
        self.receiver.inbox.hold(self.head);
    }
}

/// A message that was set aside.
#[derive(Debug)]
pub(crate) enum SetAside<T> {
    Message(MessageKind, Vec<u8>),
    /// Tensors, opened. The record had size `len` in the backlog, in bytes.
    Tensors {
        opened: T,
        len: usize,
    },
}

impl Receiver {
    /// Returns whether a record has come, a promised one is missing, or the link is over.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.inbox.is_ready()
    }

    /// Returns whether a promised record is missing, of which no header tells.
    pub(crate) fn is_cut(&self) -> bool {
        self.inbox.consumer.is_cut()
    }

    /// Publishes that this half sleeps on the socket. The caller issues one barrier for any number of halves, and then
    /// checks each once more.
    pub(crate) fn doze(&mut self) -> bool {
        let Inbox { flow, data, link, .. } = &mut self.inbox;
        if *flow != Flow::Open {
            return false;
        }
        *flow = Flow::Armed;
        data.arm(link)
    }

    /// Publishes that this half is awake.
    pub(crate) fn wake(&mut self) {
        self.inbox.disarm();
    }

    /// Returns a watch of the next record's header.
    pub(crate) fn watch(&self) -> Watch {
        Watch::new(self.inbox.link.peer().clone(), self.inbox.consumer.next_header())
    }

    /// Moves a watch to the next record.
    #[inline(always)]
    pub(crate) fn advance(&self, watch: &mut Watch) {
        watch.move_to(self.inbox.consumer.next_header());
    }

    /// Publishes the position up to which this half has read.
    #[inline(always)]
    pub(crate) fn publish_position(&mut self) {
        self.inbox.publish_position();
    }

    /// Makes triggers appear like messages. [`Received::token`] tells them apart.
    pub(crate) fn take_triggers(&mut self) {
        self.inbox.takes_triggers = true;
    }

    /// Takes the oldest message out of the backlog, and calls `open` with tensors. If `open` fails, the link ends.
    pub(crate) fn pop_kept<T>(
        &mut self,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<SetAside<T>>> {
        let Some(kept) = self.backlog.take(|_| true) else { return Ok(None) };
        match kept.kind {
            MessageKind::Tensors => {
                let len = kept.body.len() + kept.attachments.len() * PINNED;
                let opened = self.open_kept(kept, open)?;
                return Ok(Some(SetAside::Tensors { opened, len }));
            }
            MessageKind::Response(id) => self.calls.finish(id),
            _ => {}
        }
        Ok(Some(SetAside::Message(kept.kind, kept.body)))
    }

    /// As [`response`](Self::response), but does not wait.
    pub(crate) fn try_response(&mut self, id: RequestId) -> Result<Option<Vec<u8>>, TryRecvError> {
        self.response_with(id, RecvPatience::None)
    }

    pub(crate) fn start_call(&mut self) -> Result<RequestId> {
        self.calls.make()
    }

    /// Forgets a request that was not sent.
    pub(crate) fn cancel_call(&mut self, id: RequestId) {
        self.calls.unmake(id);
    }
}

impl Received<'_> {
    /// Returns the token that the peer triggers, if this is a trigger.
    #[inline(always)]
    pub(crate) fn token(&self) -> Option<Token> {
        if self.head.header.kind() == Kind::Trigger { self.read_token() } else { None }
    }

    fn read_token(&self) -> Option<Token> {
        let mut token = [0; Token::LEN];
        self.bytes().copy_to(&mut token);
        Some(u32::from_le_bytes(token).into())
    }

    /// Releases a trigger. `known`: its token is registered here.
    #[inline(always)]
    pub(crate) fn finish_trigger(self, known: bool) {
        let inbox = &mut self.receiver.inbox;
        inbox.unhold();
        inbox.stats.stale_tokens += u64::from(!known);
        inbox.discard(self.head.header);
    }
}

impl Receiver {
    /// Ends the connection because this process lacks something. Returns the error that the connection ends with.
    pub(crate) fn end(&mut self, error: Error) -> Error {
        self.inbox.fail(error)
    }

    /// Ends the connection because the peer is at fault.
    #[doc(hidden)]
    pub fn fail(&mut self, fault: Fault) -> Error {
        self.inbox.fail(fault)
    }
}
