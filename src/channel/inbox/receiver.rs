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
use crate::channel::backlog::{Backlog, KeptMessage};
use crate::channel::calls::Calls;
use crate::channel::inbox::awaited::Awaited;
use crate::channel::inbox::{Inbox, RecordHead};
use crate::channel::long_copy::{Copied, LongCopy, SLICE};
use crate::channel::message::{MessageKind, RequestId};
use crate::channel::metadata::Metadata;
use crate::channel::pipeline::{MESSAGES, REQUESTS, Wanted};
use crate::channel::stats::HalfStats;
use crate::channel::token::Token;
use crate::error::Fault;
pub use crate::error::TryRecvError;
use crate::error::{Error, ErrorKind, Result};
use crate::link::link::Link;
use crate::link::session::Session;
use crate::patience::RecvPatience;
use crate::ring::{Header, Kind};
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
    /// The copy of the next message, if it is a long one and the caller serves other peers in between.
    copy: LongCopy,
    /// Whether a call handles a bounded part of what has come, and then finds nothing although there is more: the thread
    /// serves several peers, and comes back.
    takes_turns: bool,
}

/// The most messages that one call sets aside, if the caller takes turns.
const TURN: usize = 64;

/// Shows the count of messages.
impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("received", &self.stats().messages).finish_non_exhaustive()
    }
}

impl Receiver {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        let account = session.link.account().clone();
        let backlog = Backlog::new(session.env.options().backlog_limit, account);
        let (calls, copy) = (Calls::default(), LongCopy::default());
        Self { inbox: Inbox::new(session), backlog, calls, copy, takes_turns: false }
    }

    /// Receives the next message. `None`: the peer has closed in order, and each message that it sent was received.
    /// Waits as long as the peer lives and is silent.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PeerDied`]: the peer ended without closing, and each message that it published was received.
    /// - [`ErrorKind::Fault`]: the peer broke the protocol; the connection is over.
    /// - [`ErrorKind::OtherKind`]: the next message has tensors or is a request, for another method. It stays the next one.
    /// - [`ErrorKind::LoanRevoked`]: the peer ended the link, and has taken back the memory of a long message before this side
    ///   received it.
    /// - [`ErrorKind::BacklogFull`], [`ErrorKind::AccountFull`]: too many responses stand before the next message.
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
    /// - [`TryRecvError::Empty`]: nothing has arrived. After [`take_turns`](Self::take_turns), [`rest`](Self::rest) says whether
    ///   something is left.
    /// - [`TryRecvError::Failed`]: as [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>, TryRecvError> {
        if self.takes_turns {
            return self.try_recv_in_turns();
        }
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
    /// Messages that were set aside during a wait for a response come first. Of tensors that were set aside, the bytes are
    /// their description alone.
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
    /// - [`ErrorKind::LoanRevoked`]: the peer has ended the link and taken back the memory of a long message. `each` did not
    ///   see that message, unless the peer took it back during the call of `each`: the bytes of the last message that
    ///   `each` saw may have been other ones. Those of the messages before it are what the peer has sent.
    /// - Otherwise as [`recv`](Self::recv). Messages that `each` saw before are released.
    #[inline]
    pub fn drain(
        &mut self,
        max: usize,
        mut each: impl FnMut(MessageKind, Bytes<'_>),
    ) -> Result<usize> {
        let mut count = 0;
        while count < max {
            if !self.backlog.has_unasked() {
                let plain = |bytes: Bytes<'_>| {
                    each(MessageKind::Message, bytes);
                    true
                };
                count += self.inbox.drain_run((max - count, true), plain);
                if count == max {
                    break;
                }
            }
            match self.try_peek() {
                Ok(Some(received)) => {
                    each(received.kind(), received.bytes());
                    received.release()?;
                    count += 1;
                }
                Ok(None) | Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Failed(error)) => return Err(error),
            }
        }
        Ok(count)
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

    /// Returns the response to a request, and its metadata. `None`: the peer has closed in order.
    pub(crate) fn response_with(
        &mut self,
        id: RequestId,
        patience: RecvPatience,
    ) -> Result<Option<(Vec<u8>, Metadata)>, TryRecvError> {
        if !self.calls.is_made(id) {
            return Err(Error::from(ErrorKind::UnknownRequest { id: id.0 }).into());
        }
        if let Some(body) = self.response_at_once(id, patience)? {
            return Ok(Some((body, Metadata::new())));
        }
        let kept = self.kept_response(&[id], Awaited::Response(id), patience, REQUESTS)?;
        if kept.is_some() {
            self.calls.finish(id, None);
        }
        Ok(kept.map(|kept| (kept.body, kept.metadata)))
    }

    /// Records that a response has come and goes to the caller. Returns `false` if it is not wanted.
    pub(super) fn take_call(&mut self, id: RequestId) -> Result<bool> {
        self.calls.take(id).map_err(|fault| self.inbox.fail(fault))
    }

    pub(crate) fn calls(&mut self) -> &mut Calls {
        &mut self.calls
    }

    /// Marks a response as not wanted, and drops it if it was set aside.
    pub(crate) fn abandon(&mut self, id: RequestId) {
        self.calls.abandon(id);
        if self.backlog.take(|kind| kind.answers() == Some(id)).is_some() {
            self.calls.finish(id, None);
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

    /// Copies the next message out, if nothing was set aside and an awaited message without metadata comes within about a
    /// microsecond. `None`: [`kept`](Self::kept) returns what there is. Most messages come so, and the general way moves each of
    /// them several times.
    #[inline]
    pub(super) fn body_at_once(
        &mut self,
        awaited: Awaited<'_>,
        patience: RecvPatience,
    ) -> Result<Option<(MessageKind, Vec<u8>)>, TryRecvError> {
        if !self.backlog.is_empty() || self.takes_turns {
            return Ok(None);
        }
        if self.inbox.poll(patience).is_none_or(|word| word == 0) {
            return Ok(None);
        }
        let Some(head) = self.inbox.rare_head(patience)? else { return Ok(None) };
        let kind = self.inbox.kind(&head);
        if head.header.has_metadata() || kind.has_tensors() || !awaited.takes(kind) {
            self.inbox.hold(head);
            return Ok(None);
        }
        let mut body = Vec::new();
        self.inbox.copy_out(&head, &mut body)?;
        Ok(Some((kind, body)))
    }

    /// Returns the next message of the awaited kind, and sets aside what a wait for it may set aside.
    #[cold]
    pub(super) fn kept(
        &mut self,
        awaited: Awaited<'_>,
        patience: RecvPatience,
        copies: Wanted,
    ) -> Result<Option<KeptMessage>, TryRecvError> {
        // What was set aside is the parent's, too.
        self.inbox.generation.check()?;
        if let Some(oldest) = self.backlog.oldest_unasked() {
            awaited.check(oldest.kind)?;
        }
        if let Some(kept) = self.backlog.take(|kind| awaited.takes(*kind)) {
            return Ok(Some(kept));
        }
        if let Some(kind) = self.backlog.find(|kind| awaited.is_other_sort(*kind)) {
            awaited.check(kind)?;
        }
        // A caller that waits serves no other peer meanwhile.
        let in_turns = self.takes_turns && matches!(patience, RecvPatience::None);
        for _ in 0..if in_turns { TURN } else { usize::MAX } {
            let mut body = Vec::new();
            // The caller may set the announced message aside.
            let ahead = (copies, self.backlog.room());
            let found = self.inbox.head_for_copy(patience, ahead, &mut body)?;
            let Some((head, mut copied)) = found else { return Ok(None) };
            let kind = self.inbox.kind(&head);
            let is_expected = kind.answers().is_none_or(|id| self.calls.is_made(id));
            let in_slices = in_turns && head.len > SLICE && !kind.has_tensors();
            let mut charge = None;
            if is_expected && !awaited.takes(kind) {
                let size = self.inbox.size(&head);
                // A copy in slices has a charge of its own.
                let admit = |()| self.backlog.admit(size, !in_slices);
                charge =
                    awaited.check(kind).and_then(admit).inspect_err(|_| self.inbox.hold(head))?;
            }
            if kind.has_tensors() {
                self.await_attachments(&head, patience)?;
            }
            if in_slices {
                let Some(copy) = self.copy_slice(&head) else {
                    self.inbox.hold(head);
                    break;
                };
                (body, charge) = copy.inspect_err(|_| self.inbox.hold(head))?;
                copied = body.len();
            }
            let kept = self.inbox.kept(&head, kind, (body, copied))?;
            if let Some(id) = kept.kind.answers()
                && !self.calls.answered(id).map_err(|fault| self.inbox.fail(fault))?
            {
                // The response is not wanted.
                continue;
            }
            if awaited.takes(kept.kind) {
                return Ok(Some(kept));
            }
            self.backlog.push(KeptMessage { charge, ..kept });
        }
        Err(TryRecvError::Empty)
    }

    /// Waits for the memory that a tensors record names, if the caller takes turns. Otherwise the opening of the record waits for
    /// it.
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: the socket rests, and the caller does not wait. The record stays in the ring.
    /// - As [`recv_deadline`](Self::recv_deadline).
    #[inline]
    pub(super) fn await_attachments(
        &mut self,
        head: &RecordHead,
        patience: RecvPatience,
    ) -> Result<(), TryRecvError> {
        while !self.are_at_hand(head)? {
            self.inbox.await_share(patience).inspect_err(|_| self.inbox.hold(*head))?;
        }
        Ok(())
    }

    /// Returns whether the memory that a tensors record names is at hand, if the caller takes turns.
    #[inline]
    fn are_at_hand(&mut self, head: &RecordHead) -> Result<bool> {
        if !self.takes_turns {
            return Ok(true);
        }
        self.inbox.are_attachments_at_hand(head).map_err(|error| self.inbox.fail(error))
    }

    /// Copies the next slice of a message. Returns the copy when it is whole.
    fn copy_slice(&mut self, head: &RecordHead) -> Option<Result<Copied>> {
        let inbox = &self.inbox;
        self.copy.go_on(inbox.stats.messages, inbox.bytes(head), inbox.link.account())
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
                self.await_attachments(&head, patience)?;
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
        let mut claims = Claims::kept(kept.attachments, kept.metadata, &mut self.inbox.extension);
        open(&kept.body, &mut claims)
            .and_then(|opened| claims.finish().map(|()| opened))
            .map_err(|error| self.inbox.fail(error))
    }

    #[inline(always)]
    fn peek_with(&mut self, patience: RecvPatience) -> Result<Option<Received<'_>>, TryRecvError> {
        if self.backlog.has_unasked() {
            self.inbox.generation.check()?;
            return Ok(Some(self.peek_set_aside()));
        }
        Ok(self.next_with(patience)?.map(|received| {
            received.receiver.inbox.hold(received.head);
            received
        }))
    }

    /// Returns the oldest message that was set aside and is no response.
    #[cold]
    fn peek_set_aside(&mut self) -> Received<'_> {
        let len = self.backlog.oldest_unasked().map_or(0, |kept| kept.body.len());
        // Only its length is used.
        let head = RecordHead { header: Header::POOLED_MESSAGE, offset: SET_ASIDE, len };
        Received { head, receiver: self }
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

    /// Releases the message that was peeked at.
    #[inline(always)]
    pub(crate) fn release(&mut self, head: &RecordHead) -> Result<()> {
        if head.offset == SET_ASIDE {
            drop(self.backlog.take_unasked());
            return Ok(());
        }
        self.inbox.unhold();
        match head.header.kind() {
            Kind::Message | Kind::Request => self.inbox.release(head),
            _ => self.release_rare(head),
        }
    }

    /// Releases a record that answers a request or has tensors. The attachments go back with it.
    #[cold]
    fn release_rare(&mut self, head: &RecordHead) -> Result<()> {
        let kind = self.inbox.kind(head);
        if kind.answers().is_some() {
            self.settle_response()?;
        }
        if kind.has_tensors() {
            self.inbox.keep(head, kind).map(drop)
        } else {
            self.inbox.release(head)
        }
    }

    /// Settles the response at the ring's position, which the caller has read in place.
    #[cold]
    fn settle_response(&mut self) -> Result<()> {
        let id = self.inbox.id;
        self.calls.answered(id).map_err(|fault| self.inbox.fail(fault))?;
        self.calls.finish(id, None);
        Ok(())
    }
}

/// Returns the error of an operation that waited.
pub(super) fn into_error(error: TryRecvError) -> Error {
    match error {
        TryRecvError::Failed(error) => error,
        // An operation that waits ends by its deadline, so this arm is not reached.
        TryRecvError::Empty => ErrorKind::TimedOut { after: std::time::Duration::ZERO }.into(),
    }
}

/// The offset of a message that was set aside. No segment is that long.
const SET_ASIDE: usize = usize::MAX;

/// A received message in the sender's memory, without a copy.
///
/// A peer that [aborts](crate::Sender::abort) the link, or has dropped it for
/// [`Options::release_grace`](crate::Options::release_grace), takes back the memory of a message that is longer than its
/// [`Options::inline_max`](crate::Options::inline_max). The bytes may then be those of any other message of that process.
/// [`release`](Self::release) reports it, so a caller acts on what it has read after that.
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
    /// Its offset is [`SET_ASIDE`] if it is the oldest one in the backlog that is no response. Otherwise it stands at the
    /// ring's position.
    pub(crate) head: RecordHead,
    pub(crate) receiver: &'a mut Receiver,
}

impl Received<'_> {
    /// Returns a view of the message's bytes.
    #[inline(always)]
    pub fn bytes(&self) -> Bytes<'_> {
        match self.set_aside() {
            Some(kept) => Bytes::of(&kept.body),
            None => self.receiver.inbox.bytes(&self.head),
        }
    }

    /// Returns whether the message was set aside. A field for it would be a byte with padding behind it, which the compiler
    /// copies in overlapping parts: a load waits for two stores then, 9 ns a message.
    #[inline(always)]
    fn is_set_aside(&self) -> bool {
        self.head.offset == SET_ASIDE
    }

    /// Returns the message if it was set aside.
    #[inline(always)]
    pub(super) fn set_aside(&self) -> Option<&KeptMessage> {
        if self.is_set_aside() { self.receiver.backlog.oldest_unasked() } else { None }
    }

    /// Checks that the peer has not taken the message's memory back. Then what was read of it is what the peer has sent.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set_aside() { Ok(()) } else { self.receiver.inbox.check_loan() }
    }

    /// Returns the link whose peer may take the message's memory back.
    #[inline(always)]
    pub(crate) fn lender(&self) -> Option<&Link> {
        if self.is_set_aside() { None } else { self.receiver.inbox.lender() }
    }

    /// Returns the message's length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head.len
    }

    /// Returns the message's size in the backlog, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.receiver.inbox.size(&self.head)
    }

    /// Returns whether the message has no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head.len == 0
    }

    /// Returns the message's kind.
    #[inline(always)]
    pub fn kind(&self) -> MessageKind {
        match self.set_aside() {
            Some(kept) => kept.kind,
            None => self.receiver.inbox.kind(&self.head),
        }
    }

    /// Takes a tensors record out as it is described, and releases it.
    ///
    /// # Errors
    ///
    /// An attachment is impossible: the link ends.
    pub(crate) fn keep(self) -> Result<KeptMessage> {
        self.receiver.inbox.unhold();
        let kind = self.receiver.inbox.kind(&self.head);
        self.receiver.inbox.keep(&self.head, kind)
    }

    /// Calls `open` with a tensors record and releases it. `None`: the record is of another kind, and is released.
    pub(crate) fn open<T>(
        self,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.is_set_aside() {
            let kept = self.receiver.backlog.take_unasked();
            let tensors = kept.filter(|kept| kept.kind.has_tensors());
            return tensors.map(|kept| self.receiver.open_kept(kept, open)).transpose();
        }
        if self.head.header.has_tensors() {
            self.receiver.inbox.unhold();
            if self.head.header.kind() == Kind::TensorResponse {
                self.receiver.settle_response()?;
            }
            return self.receiver.inbox.open(&self.head, open).map(Some);
        }
        self.release().map(|()| None)
    }

    /// Returns whether the memory that a tensors record names has come. Otherwise a caller that takes turns
    /// [leaves](Self::leave) the message, and comes back.
    pub(crate) fn is_at_hand(&mut self) -> Result<bool> {
        self.receiver.are_at_hand(&self.head)
    }

    /// Copies the next slice of the message. Returns the copy when it is whole. A caller that gets `None`
    /// [leaves](Self::leave) the message, and goes on when it gets the message again.
    pub(crate) fn copy_slice(&mut self) -> Option<Result<Copied>> {
        self.receiver.copy_slice(&self.head)
    }

    /// Returns the message's memory to the sender.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::LoanRevoked`]: the peer has taken the message's memory back, so its bytes may have been other ones.
    /// - [`ErrorKind::Fault`]: the peer broke the protocol.
    #[inline(always)]
    pub fn release(self) -> Result<()> {
        self.receiver.release(&self.head)
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

impl Receiver {
    /// Returns whether a record has come, a promised one is missing, or the link is over.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.inbox.is_ready()
    }

    /// Notes that the calling thread serves other peers, too, and comes back to this one: for event loops that watch the
    /// descriptors of several [connections](crate::Connection).
    ///
    /// From then on the peer of this link has a share of the thread's time, a quarter at most, and all such peers together have
    /// half of it. A `try_` form handles what that share allows, and a part of a long message at a time. It answers
    /// [`Empty`](TryRecvError::Empty) although something is left, and [`rest`](Self::rest) then says when the thread goes on. No
    /// event of the descriptor says so. Functions that wait go on by themselves. `try_recv_into`, `try_recv_to` and
    /// `try_peek` return a long message as a whole.
    ///
    /// Without this call, a peer that announces memory of 16 GiB holds the thread for more than 0.1 s in one call.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use slipring::error::TryRecvError;
    /// use slipring::{Connection, Result};
    ///
    /// enum Next {
    ///     /// Wait for an event of the descriptor.
    ///     Event,
    ///     /// Call again after this time, or in the next turn if it is zero.
    ///     After(Duration),
    ///     Closed,
    /// }
    ///
    /// fn serve(link: &mut Connection) -> Result<Next> {
    ///     match link.receiver().try_recv() {
    ///         Ok(Some(message)) => link.send(&message).map(|()| Next::After(Duration::ZERO)),
    ///         Ok(None) => Ok(Next::Closed),
    ///         Err(TryRecvError::Empty) => Ok(link.receiver().rest().map_or(Next::Event, Next::After)),
    ///         Err(TryRecvError::Failed(error)) => Err(error),
    ///     }
    /// }
    ///
    /// # let (context, address) = (slipring::Context::new()?, slipring::Address::fresh());
    /// # let mut listener = context.listen(&address)?;
    /// # let far = std::thread::spawn(move || listener.accept());
    /// # let mut near = context.connect(&address)?;
    /// let mut link = far.join().unwrap()?;
    /// link.receiver().take_turns();
    /// assert!(matches!(serve(&mut link)?, Next::Event));
    /// near.send(b"hello")?;
    /// assert!(matches!(serve(&mut link)?, Next::After(Duration::ZERO)));
    /// assert_eq!(near.recv()?.as_deref(), Some(&b"hello"[..]));
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn take_turns(&mut self) {
        let link = &self.inbox.link;
        // In a forked child the lock may be held for ever.
        if !self.inbox.generation.is_current() {
            return;
        }
        self.takes_turns = true;
        link.control_socket().take_turns((link.identity().uid(), link.identity().pid()));
    }

    /// As [`try_recv`](Self::try_recv), for a caller that takes turns: a long message takes several calls.
    fn try_recv_in_turns(&mut self) -> Result<Option<Vec<u8>>, TryRecvError> {
        if self.backlog.is_empty()
            && let Some(head) = self.inbox.plain(RecvPatience::None)
        {
            if head.len <= SLICE {
                let mut message = Vec::new();
                self.inbox.copy_out(&head, &mut message)?;
                return Ok(Some(message));
            }
            self.inbox.hold(head);
        }
        Ok(self.kept(Awaited::Message, RecvPatience::None, None)?.map(|kept| kept.body))
    }

    /// Takes the oldest message out of the backlog, with its charge.
    pub(crate) fn pop_kept(&mut self) -> Option<KeptMessage> {
        let kept = self.backlog.take(|_| true)?;
        if let Some(id) = kept.kind.answers() {
            self.calls.finish(id, None);
        }
        Some(kept)
    }

    /// As [`response`](Self::response), but does not wait.
    pub(crate) fn try_response(&mut self, id: RequestId) -> Result<Option<Vec<u8>>, TryRecvError> {
        Ok(self.response_with(id, RecvPatience::None)?.map(|(body, _)| body))
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
