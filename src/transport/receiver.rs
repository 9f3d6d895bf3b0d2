//! The receiving half of a connection.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub use crate::error::TryRecvError;
use crate::error::{Error, ErrorKind, Result};
use crate::ring::Kind;
use crate::shm::Bytes;
use crate::transport::ahead::{LETTERS, MESSAGES, Wanted};
use crate::transport::backlog::{Backlog, Letter, PINNED};
use crate::transport::calls::Calls;
use crate::transport::inbox::{Head, Inbox};
use crate::transport::link::Session;
use crate::transport::parcel::Claims;
use crate::transport::wait::Patience;

/// Names a request of one connection. A response under an id that was not asked for, or was answered
/// before, ends the connection at the other side.
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
    /// Tensors; see [`Receiver::recv_tensors`].
    Tensors,
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
    /// Tensors, or named sets of them, received.
    pub tensors: u64,
    /// How often the sender had to be woken.
    pub wakes: u64,
    /// How often this half went to sleep for want of messages.
    pub sleeps: u64,
    /// Tokens that the peer triggered and that did nothing here: stale, or invented.
    pub stale_tokens: u64,
}

/// The receiving half of a [`Connection`](crate::Connection): one thread's at a time.
///
/// Dropping it tells the sender that nobody looks any more. Long messages that were not received stay
/// in the sender's pool until the sending half of this side is dropped, too.
pub struct Receiver {
    pub(super) inbox: Inbox,
    pub(super) backlog: Backlog,
    pub(super) calls: Calls,
}

/// Shows the number of messages.
impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("received", &self.stats().messages).finish_non_exhaustive()
    }
}

impl Receiver {
    pub(super) fn new(session: Arc<Session>) -> Self {
        let backlog = Backlog::new(session.core.options.backlog_limit);
        Self { inbox: Inbox::new(session), backlog, calls: Calls::default() }
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
    /// returned. Where there is none, or an error, it may be empty.
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
    /// its turn, and with it the tensors that it may have ([`MessageKind::Tensors`]). Does not wait. Returns how many there were.
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
        self.request(Patience::Forever).map_err(spent)
    }

    /// As [`recv_request`](Self::recv_request), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_request_deadline(&mut self, deadline: Instant) -> Result<Option<Request>> {
        self.request(Patience::Until(deadline)).map_err(spent)
    }

    /// As [`recv_request`](Self::recv_request), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    pub fn try_recv_request(&mut self) -> Result<Option<Request>, TryRecvError> {
        self.request(Patience::None)
    }

    fn request(&mut self, patience: Patience) -> Result<Option<Request>, TryRecvError> {
        let wanted = |kind: &MessageKind| matches!(kind, MessageKind::Request(_));
        let letter = self.letter(wanted, patience, LETTERS)?;
        Ok(letter.and_then(|Letter { kind, body, .. }| match kind {
            MessageKind::Request(id) => Some(Request { id, body }),
            _ => None,
        }))
    }

    /// Receives the response to a request.
    pub(super) fn response(&mut self, id: RequestId, deadline: Instant) -> Result<Vec<u8>> {
        let response = self.response_with(id, Patience::Until(deadline)).map_err(spent)?;
        response.ok_or_else(|| ErrorKind::PeerClosed.into())
    }

    /// The response to a request. `None`: the peer has finished in order.
    pub(super) fn response_with(
        &mut self,
        id: RequestId,
        patience: Patience,
    ) -> Result<Option<Vec<u8>>, TryRecvError> {
        if !self.calls.is_made(id) {
            return Err(Error::from(ErrorKind::UnknownRequest { id: id.0 }).into());
        }
        let wanted = |kind: &MessageKind| *kind == MessageKind::Response(id);
        let letter = self.letter(wanted, patience, LETTERS)?;
        if letter.is_some() {
            self.calls.finish(id);
        }
        Ok(letter.map(|letter| letter.body))
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
        RecvStats { sleeps: self.inbox.data.sleeps, ..self.inbox.stats }
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.inbox.session
    }

    /// The next plain message, copied into `message`.
    #[inline(always)]
    fn take(
        &mut self,
        message: &mut Vec<u8>,
        patience: Patience,
    ) -> Result<Option<usize>, TryRecvError> {
        if self.backlog.is_empty() {
            if let Some(head) = self.inbox.plain(patience) {
                return Ok(Some(self.inbox.copy_out(&head, message)));
            }
            if let Some((head, copied)) = self.inbox.head_ahead(patience, MESSAGES, message)? {
                if head.header.kind() == Kind::Message {
                    return Ok(Some(self.inbox.copy_rest(&head, message, copied)));
                }
                if copied > 0 {
                    message.clear();
                }
            }
        }
        let wanted = |kind: &MessageKind| *kind == MessageKind::Message;
        Ok(self.letter(wanted, patience, MESSAGES)?.map(|letter| {
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
        copies: Wanted,
    ) -> Result<Option<Letter>, TryRecvError> {
        if let Some(letter) = self.backlog.take(&wanted) {
            return Ok(Some(letter));
        }
        loop {
            let mut body = Vec::new();
            let Some((head, copied)) = self.inbox.letter_head(patience, copies, &mut body)? else {
                return Ok(None);
            };
            let kind = self.inbox.kind(&head);
            let is_awaited = match kind {
                MessageKind::Response(id) => self.calls.is_made(id),
                _ => true,
            };
            if is_awaited && !wanted(&kind) {
                self.backlog.admit(head.len + head.header.attachments() * PINNED)?;
            }
            let letter = self.inbox.letter(&head, kind, (body, copied))?;
            if let MessageKind::Response(id) = letter.kind
                && !self.calls.answered(id).map_err(|fault| self.inbox.fail(fault))?
            {
                // Nobody waits for it any more.
                continue;
            }
            if wanted(&letter.kind) {
                return Ok(Some(letter));
            }
            self.backlog.push(letter);
        }
    }

    /// Gives the next parcel to `open`: its description, and what came with it. Where `open` fails the link
    /// ends.
    #[inline]
    pub(crate) fn parcel<T>(
        &mut self,
        patience: Patience,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>, TryRecvError> {
        if !self.backlog.has_tensors()
            && let Some(head) = self.inbox.head(patience)?
            && head.header.kind() == Kind::Parcel
        {
            return Ok(Some(self.inbox.open(&head, open)?));
        }
        self.parcel_set_aside(patience, open)
    }

    /// From now on what the peer lends is taken to stand still.
    pub(crate) fn trust(&mut self) {
        self.inbox.session.trust();
    }

    #[cold]
    fn parcel_set_aside<T>(
        &mut self,
        patience: Patience,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>, TryRecvError> {
        let wanted = |kind: &MessageKind| *kind == MessageKind::Tensors;
        let Some(letter) = self.letter(wanted, patience, None)? else { return Ok(None) };
        Ok(Some(self.open_letter(letter, open)?))
    }

    /// Gives a parcel that was set aside to `open`.
    pub(super) fn open_letter<T>(
        &mut self,
        letter: Letter,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut claims = Claims::kept(letter.attachments, &mut self.inbox.shelf);
        open(&letter.body, &mut claims)
            .and_then(|opened| claims.finish().map(|()| opened))
            .map_err(|error| self.inbox.fail(error))
    }

    #[inline(always)]
    fn peek_with(&mut self, patience: Patience) -> Result<Option<Received<'_>>, TryRecvError> {
        if let Some(head) = self.inbox.plain(patience) {
            return Ok(Some(Received { head, receiver: self }));
        }
        let head = self.inbox.rare_head(patience)?;
        Ok(head.map(|head| Received { head, receiver: self }))
    }

    /// The response at the ring's position was taken by looking at it.
    #[cold]
    fn settle_response(&mut self) -> Result<()> {
        let id = self.inbox.id;
        self.calls.answered(id).map_err(|fault| self.inbox.fail(fault))?;
        self.calls.finish(id);
        Ok(())
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
    pub(super) head: Head,
    pub(super) receiver: &'a mut Receiver,
}

impl Received<'_> {
    /// The message's bytes, to copy out or to read in place.
    #[inline(always)]
    pub fn bytes(&self) -> Bytes<'_> {
        self.receiver.inbox.bytes(&self.head)
    }

    /// The message's length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head.len
    }

    /// Bytes that it counts where it is set aside.
    pub(crate) fn weight(&self) -> usize {
        self.head.len + self.head.header.attachments() * PINNED
    }

    /// Whether the message has no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head.len == 0
    }

    /// What the message is.
    #[inline(always)]
    pub fn kind(&self) -> MessageKind {
        self.receiver.inbox.kind(&self.head)
    }

    /// Gives a parcel to `open`, and then back. `None`: it is something else, and was released.
    pub(crate) fn open<T>(
        self,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.head.header.kind() == Kind::Parcel {
            return self.receiver.inbox.open(&self.head, open).map(Some);
        }
        self.release().map(|()| None)
    }

    /// Gives the message's memory back to the sender.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Fault`]: the peer broke the protocol.
    #[inline(always)]
    pub fn release(self) -> Result<()> {
        match self.head.header.kind() {
            Kind::Response => self.receiver.settle_response()?,
            // What came with it goes back.
            Kind::Parcel => return self.receiver.inbox.keep(&self.head).map(drop),
            _ => {}
        }
        self.receiver.inbox.release(&self.head);
        Ok(())
    }
}
