//! The receiving half of a connection.

use crate::channel::inbox::Flow;
use crate::channel::message::MessageKind;
use crate::channel::message::Request;
use crate::channel::message::RequestId;
use crate::channel::readiness::Watch;
use crate::channel::stats::RecvStats;
use crate::channel::token::Token;
use crate::error::Fault;
use crate::link::control_socket::DATA_WAKES;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::channel::attachment::Claims;
use crate::channel::backlog::Backlog;
use crate::channel::backlog::KeptMessage;
use crate::channel::backlog::PINNED;
use crate::channel::calls::Calls;
use crate::channel::inbox::Inbox;
use crate::channel::inbox::RecordHead;
use crate::channel::pipeline::MESSAGES;
use crate::channel::pipeline::REQUESTS;
use crate::channel::pipeline::Wanted;
pub use crate::error::TryRecvError;
use crate::error::{Error, ErrorKind, Result};
use crate::link::session::Session;
use crate::patience::RecvPatience;
use crate::ring::Kind;
use crate::shm::Bytes;

/// The receiving half of a [`Connection`](crate::Connection): one thread's at a time.
///
/// Dropping it tells the sender that nobody looks any more. Long messages that were not received stay
/// in the sender's pool until the sending half of this side is dropped, too.
pub struct Receiver {
    pub(crate) inbox: Inbox,
    pub(crate) backlog: Backlog,
    pub(crate) calls: Calls,
}

/// Shows the number of messages.
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

    /// As [`recv`](Self::recv), into a buffer that is reused: `message` is replaced, and its length
    /// returned. Where there is none, or an error, it may be empty.
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
        let wanted = |kind: &MessageKind| matches!(kind, MessageKind::Request(_));
        let kept = self.kept(wanted, patience, REQUESTS)?;
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

    /// The response to a request. `None`: the peer has finished in order.
    pub(crate) fn response_with(
        &mut self,
        id: RequestId,
        patience: RecvPatience,
    ) -> Result<Option<Vec<u8>>, TryRecvError> {
        if !self.calls.is_made(id) {
            return Err(Error::from(ErrorKind::UnknownRequest { id: id.0 }).into());
        }
        let wanted = |kind: &MessageKind| *kind == MessageKind::Response(id);
        let kept = self.kept(wanted, patience, REQUESTS)?;
        if kept.is_some() {
            self.calls.finish(id);
        }
        Ok(kept.map(|kept| kept.body))
    }

    pub(crate) fn calls(&mut self) -> &mut Calls {
        &mut self.calls
    }

    /// Nobody will ask for the response any more; if it is set aside, it goes.
    pub(crate) fn abandon(&mut self, id: RequestId) {
        self.calls.abandon(id);
        if self.backlog.take(|kind| *kind == MessageKind::Response(id)).is_some() {
            self.calls.finish(id);
        }
    }

    /// What this half has done.
    pub fn stats(&self) -> RecvStats {
        RecvStats { sleeps: self.inbox.data.sleeps, ..self.inbox.stats }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.inbox.session
    }

    /// The next plain message, copied into `message`.
    #[inline(always)]
    fn take(
        &mut self,
        message: &mut Vec<u8>,
        patience: RecvPatience,
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
        Ok(self.kept(wanted, patience, MESSAGES)?.map(|kept| {
            *message = kept.body;
            message.len()
        }))
    }

    /// The next thing of the wanted kind; what comes before it is set aside.
    #[cold]
    fn kept(
        &mut self,
        wanted: impl Fn(&MessageKind) -> bool,
        patience: RecvPatience,
        copies: Wanted,
    ) -> Result<Option<KeptMessage>, TryRecvError> {
        if let Some(kept) = self.backlog.take(&wanted) {
            return Ok(Some(kept));
        }
        loop {
            let mut body = Vec::new();
            let Some((head, copied)) = self.inbox.head_for_copy(patience, copies, &mut body)?
            else {
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
            let kept = self.inbox.kept(&head, kind, (body, copied))?;
            if let MessageKind::Response(id) = kept.kind
                && !self.calls.answered(id).map_err(|fault| self.inbox.fail(fault))?
            {
                // Nobody waits for it any more.
                continue;
            }
            if wanted(&kept.kind) {
                return Ok(Some(kept));
            }
            self.backlog.push(kept);
        }
    }

    /// Gives the next parcel to `open`: its description, and what came with it. Where `open` fails the link
    /// ends.
    #[inline]
    pub(crate) fn open_tensors<T>(
        &mut self,
        patience: RecvPatience,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>, TryRecvError> {
        if !self.backlog.has_tensors()
            && let Some(head) = self.inbox.head(patience)?
            && head.header.kind() == Kind::Tensors
        {
            return Ok(Some(self.inbox.open(&head, open)?));
        }
        self.open_set_aside(patience, open)
    }

    /// From now on what the peer lends is taken to stand still.
    pub(crate) fn trust(&mut self) {
        self.inbox.session.trust();
    }

    #[cold]
    fn open_set_aside<T>(
        &mut self,
        patience: RecvPatience,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>, TryRecvError> {
        let wanted = |kind: &MessageKind| *kind == MessageKind::Tensors;
        let Some(kept) = self.kept(wanted, patience, None)? else { return Ok(None) };
        Ok(Some(self.open_kept(kept, open)?))
    }

    /// Gives a parcel that was set aside to `open`.
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
fn into_error(error: TryRecvError) -> Error {
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
    pub(crate) head: RecordHead,
    pub(crate) receiver: &'a mut Receiver,
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
    pub(crate) fn size(&self) -> usize {
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
        if self.head.header.kind() == Kind::Tensors {
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
            Kind::Tensors => return self.receiver.inbox.keep(&self.head).map(drop),
            _ => {}
        }
        self.receiver.inbox.release(&self.head);
        Ok(())
    }
}

/// What was set aside, copied.
#[derive(Debug)]
pub(crate) enum SetAside<T> {
    Message(MessageKind, Vec<u8>),
    /// A parcel, opened. Its description was `len` bytes long.
    Tensors {
        opened: T,
        len: usize,
    },
}

impl Receiver {
    /// Whether there is something to look at, or the link is over.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.inbox.is_ready()
    }

    /// About to sleep on the socket. True: there is something to look at.
    #[cfg(feature = "tokio")]
    pub(crate) fn arm(&mut self) -> Result<bool> {
        self.inbox.arm()
    }

    /// Says that this half sleeps on the socket, and leaves the rest to the caller: a heavy barrier,
    /// once for any number of halves, and one more look.
    pub(crate) fn doze(&mut self) -> bool {
        let Inbox { flow, data, link, .. } = &mut self.inbox;
        if *flow != Flow::Open {
            return false;
        }
        link.control_socket().expect(DATA_WAKES);
        *flow = Flow::Armed;
        data.arm(link)
    }

    /// Awake again.
    pub(crate) fn wake(&mut self) {
        self.inbox.disarm();
    }

    /// Where the next record will show.
    pub(crate) fn watch(&self) -> Watch {
        Watch::new(self.inbox.link.peer.clone(), self.inbox.consumer.next_header())
    }

    /// Moves a watch to the next record.
    #[inline(always)]
    pub(crate) fn advance(&self, watch: &mut Watch) {
        watch.move_to(self.inbox.consumer.next_header());
    }

    /// Tells the peer how far this half has read: nothing more is there.
    #[inline(always)]
    pub(crate) fn publish_position(&mut self) {
        self.inbox.publish_position();
    }

    /// From now on triggers are given out like messages: [`Received::token`] tells them apart.
    pub(crate) fn take_triggers(&mut self) {
        self.inbox.takes_triggers = true;
    }

    /// What was set aside before, oldest first; a response only if it was asked for. Parcels are given to
    /// `open`; where that fails the link ends.
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
    #[cfg(feature = "tokio")]
    pub(crate) fn try_response(&mut self, id: RequestId) -> Result<Option<Vec<u8>>, TryRecvError> {
        self.response_with(id, RecvPatience::None)
    }

    pub(crate) fn start_call(&mut self) -> Result<RequestId> {
        self.calls.make()
    }

    /// The request was never sent.
    pub(crate) fn cancel_call(&mut self, id: RequestId) {
        self.calls.unmake(id);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn give_up(&mut self, id: RequestId) {
        self.abandon(id);
    }
}

impl Received<'_> {
    /// The token that the peer triggers, if this is no message.
    #[inline(always)]
    pub(crate) fn token(&self) -> Option<Token> {
        if self.head.header.kind() == Kind::Trigger { self.read_token() } else { None }
    }

    fn read_token(&self) -> Option<Token> {
        let mut token = [0; Token::LEN];
        self.bytes().copy_to(&mut token);
        Some(u32::from_le_bytes(token).into())
    }

    /// Gives a trigger back. `known`: it does something here.
    #[inline(always)]
    pub(crate) fn finish_trigger(self, known: bool) {
        let inbox = &mut self.receiver.inbox;
        inbox.stats.stale_tokens += u64::from(!known);
        inbox.discard(self.head.header);
    }
}

impl Receiver {
    /// Ends the connection, because of what the peer sent.
    #[doc(hidden)]
    pub fn fail(&mut self, fault: Fault) -> Error {
        self.inbox.fail(fault)
    }
}
