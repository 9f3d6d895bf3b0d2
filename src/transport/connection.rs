//! A connection: both halves of a link, and requests with their responses.
//!
//! The connection owns one sender and one receiver, which share one session.
//!
//! 1. [`Connection::split`] and [`Connection::join`] move the halves and change nothing else.
//! 2. A request's id is in flight from [`Connection::submit`] until its response is returned or abandoned.
//! 3. A close ends the link in order: the peer receives everything that was sent before.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::channel::inbox::receiver::Receiver;
use crate::channel::message::{Request, RequestId};
use crate::channel::metadata::Metadata;
use crate::channel::sender::Sender;
use crate::channel::spans::CallSpan;
use crate::channel::stats::HalfStats;
use crate::error::{Error, ErrorKind, Result, TryRecvError};
use crate::handshake::peer::Peer;
use crate::link::LinkSocket;
use crate::link::link::Link;
use crate::link::session::Session;
use crate::patience::{RecvPatience, after};
use crate::shm::Area;

/// A link to another process: messages with boundaries, in order, both ways.
///
/// The connection itself has the operations that every program needs, and calls, which need both halves. The
/// [`sender`](Self::sender) and the [`receiver`](Self::receiver) have all others: deadlines, attempts that do not wait,
/// batches, messages in place, sets of tensors.
///
/// # Examples
///
/// ```
/// use slipring::{Address, Context};
///
/// let address = Address::fresh();
/// let context = Context::new()?;
/// let mut listener = context.listen(&address)?;
/// let server = std::thread::spawn(move || -> slipring::Result<()> {
///     let mut link = listener.accept()?;
///     while let Some(message) = link.recv()? {
///         link.send(&message)?;
///     }
///     Ok(())
/// });
///
/// let mut link = context.connect(&address)?;
/// link.send(b"hello")?;
/// assert_eq!(link.recv()?.as_deref(), Some(&b"hello"[..]));
/// link.close()?;
/// server.join().unwrap()?;
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
}

/// Shows the peer and the numbers of messages on one line.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.peer();
        f.debug_struct("Connection")
            .field("peer_pid", &peer.pid())
            .field("peer_uid", &peer.uid())
            .field("sent", &self.sender.stats().messages)
            .field("received", &self.receiver.stats().messages)
            .finish_non_exhaustive()
    }
}

/// The counters of a connection's halves, and how much is queued, lent and held now.
///
/// The peer publishes its position after an eighth of the ring, or when it finds the ring empty. So
/// [`send_queue`](Self::send_queue) is up to an eighth of the ring too high.
///
/// In the child of a `fork` queues, loans and the pool are 0.
///
/// # Examples
///
/// ```
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut listener = context.listen(&address)?;
/// let accepted = std::thread::spawn(move || listener.accept());
/// let mut near = context.connect(&address)?;
/// let mut far = accepted.join().unwrap()?;
///
/// near.send(b"waits in the ring")?;
/// let stats = near.stats();
/// assert_eq!((stats.sent.messages, stats.send_queue), (1, 64)); // a record takes whole lines
/// assert_eq!(far.stats().recv_queue, 64);
///
/// let mut frame = context.alloc::<u8>([1080, 1920])?;
/// frame.fill(128);
/// near.send_tensor(frame)?;
/// far.recv()?;
/// let frame = far.recv_tensor()?;
/// assert_eq!((near.stats().loans_out, far.stats().loans_held), (1, 1));
/// assert!(near.stats().pool_bytes >= 1080 * 1920);
/// drop(frame);
/// assert_eq!((near.stats().loans_out, far.stats().loans_held), (0, 0));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The counters of the sending half.
    pub sent: HalfStats,
    /// The counters of the receiving half.
    pub received: HalfStats,
    /// Bytes of this side's ring that the peer has not given back: 0 to
    /// [`Options::ring_capacity`](crate::Options::ring_capacity). A record takes whole lines of 64 bytes, unless a
    /// batch packs it.
    pub send_queue: u64,
    /// Bytes of the peer's ring that wait to be received: 0 to the peer's capacity. [`Connection::stats`] visits each
    /// of these records. Those behind a move of the peer to a longer ring count once this side has come there.
    pub recv_queue: u64,
    /// Blocks of this process's pool that the peer has not returned: long messages and tensors, also those that the
    /// peer has not received.
    pub loans_out: u64,
    /// Blocks of the peer's pool that tensors of this process hold.
    pub loans_held: u64,
    /// Bytes of the context's pool, which all connections of the context share, that count for
    /// [`Options::pool_quota`](crate::Options::pool_quota).
    pub pool_bytes: u64,
}

impl Stats {
    /// Returns what the two halves of one connection tell. For crates of this project: it may change in any release.
    #[doc(hidden)]
    pub fn of(sender: &Sender, receiver: &Receiver) -> Self {
        let session = sender.session();
        let (link, pool) = (&session.link, session.env.pool());
        let counters = Self { sent: sender.stats(), received: receiver.stats(), ..Self::default() };
        if !link.own().generation().is_current() {
            // A forked child has no shared memory, and the lock of its copy of the pool may be held for ever.
            return counters;
        }
        Self {
            send_queue: sender.unread(),
            recv_queue: receiver.unread(),
            loans_out: pool.settle(link.borrower()) as u64,
            loans_held: session.kept_loans(),
            pool_bytes: pool.used(),
            ..counters
        }
    }
}

impl Connection {
    pub(crate) fn new(session: Session, ring: Area) -> Self {
        let session = Arc::new(session);
        Self { sender: Sender::new(session.clone(), ring), receiver: Receiver::new(session) }
    }

    /// Returns both halves, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// Returns the connection of two halves.
    ///
    /// # Errors
    ///
    /// Both halves, if they belong to different connections.
    #[expect(clippy::result_large_err, reason = "halves live where their thread keeps them")]
    pub fn join(sender: Sender, receiver: Receiver) -> Result<Self, (Sender, Receiver)> {
        if Arc::ptr_eq(sender.session(), receiver.session()) {
            Ok(Self { sender, receiver })
        } else {
            Err((sender, receiver))
        }
    }

    /// Returns the sending half.
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
    /// let mut message = near.sender().reserve(5)?; // written where the peer reads it
    /// message.copy_from_slice(b"hello");
    /// message.publish()?;
    ///
    /// let message = far.receiver().peek()?.expect("a message");
    /// assert_eq!(message.bytes().to_vec(), b"hello");
    /// # Ok::<(), slipring::Error>(())
    /// ```
    #[inline(always)]
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Returns the receiving half.
    #[inline(always)]
    pub fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// Returns the process on the other side, as the kernel described it when the connection was made.
    pub fn peer(&self) -> &Peer {
        self.link().identity()
    }

    /// Returns the counters of this side, and how much is queued, lent and held now.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.sender, &self.receiver)
    }

    /// Ends the connection in order. The peer receives all messages sent before, even if this process ends right after.
    /// Dropping the connection does the same and reports no error.
    ///
    /// The peer may receive long messages, and keep tensors, until
    /// [`Options::release_grace`](crate::Options::release_grace) is over or this process ends.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PeerDied`]: the peer may not have received the last messages.
    /// - [`ErrorKind::Fault`]: the peer broke the protocol, and may not have received the last messages.
    /// - [`ErrorKind::Forked`]: this process is a fork of the one that made the connection.
    pub fn close(self) -> Result<()> {
        self.link().own().generation().check()?;
        if self.link().is_alive() {
            return Ok(());
        }
        let error = self.link().end();
        // A peer that closed first, in order, is no error.
        if *error.kind() == ErrorKind::PeerClosed { Ok(()) } else { Err(error) }
    }

    /// Ends the connection, and takes back at once all memory that the peer holds, as [`Sender::abort`] does.
    pub fn abort(self) {
        self.sender.abort();
    }

    /// Sends a request and waits for its response, at most for
    /// [`Options::send_timeout`](crate::Options::send_timeout). The connection sets aside other messages that come
    /// meanwhile, for [`recv`](Self::recv) and [`recv_request`](Self::recv_request).
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context};
    /// # let address = Address::fresh();
    /// # let context = Context::new()?;
    /// # let mut listener = context.listen(&address)?;
    /// # let server = std::thread::spawn(move || -> slipring::Result<()> {
    /// #     let mut link = listener.accept()?;
    /// while let Some(request) = link.recv_request()? {
    ///     link.respond(request.id, &request.body)?;
    /// }
    /// #     Ok(())
    /// # });
    /// # let mut link = context.connect(&address)?;
    /// // In the other process:
    /// assert_eq!(link.call(b"question")?, b"question");
    /// # drop(link);
    /// # server.join().unwrap()?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TimedOut`]: no response came in time. The connection drops one that comes later.
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`]: no response will come.
    /// - [`ErrorKind::OtherKind`]: the response has tensors, for [`call_tensors`](Self::call_tensors). The connection drops it.
    /// - [`ErrorKind::BacklogFull`], [`ErrorKind::AccountFull`]: other messages fill the backlog, or the account of the
    ///   [memory](crate::options::Resource::Memory) of messages set aside; receive them first.
    /// - Otherwise as [`Sender::send`].
    pub fn call(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        self.call_deadline(request, self.default_deadline())
    }

    /// As [`call`](Self::call), but waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn call_deadline(&mut self, request: &[u8], deadline: Instant) -> Result<Vec<u8>> {
        Ok(self.call_in((request, &Metadata::new()), deadline)?.0)
    }

    /// Sends a request with metadata, and returns its response with the metadata of that, as [`call`](Self::call) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context};
    /// # let address = Address::fresh();
    /// # let context = Context::new()?;
    /// # let mut listener = context.listen(&address)?;
    /// use slipring::message::Value;
    /// use slipring::meta;
    ///
    /// let server = std::thread::spawn(move || -> slipring::Result<()> {
    ///     let mut link = listener.accept()?;
    ///     while let Some(request) = link.recv_request()? {
    ///         let user = request.metadata.get("user").is_some();
    ///         link.sender().respond_with(request.id, b"done", &meta! { "known" => user }?)?;
    ///     }
    ///     Ok(())
    /// });
    /// # let mut link = context.connect(&address)?;
    /// let (response, metadata) = link.call_with(b"question", &meta! { "user" => "ann" }?)?;
    /// assert_eq!((&response[..], metadata.get("known")), (&b"done"[..], Some(Value::Bool(true))));
    /// # drop(link);
    /// # server.join().unwrap()?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn call_with(
        &mut self,
        request: &[u8],
        metadata: &Metadata,
    ) -> Result<(Vec<u8>, Metadata)> {
        self.call_in((request, metadata), self.default_deadline())
    }

    fn call_in(
        &mut self,
        request: (&[u8], &Metadata),
        deadline: Instant,
    ) -> Result<(Vec<u8>, Metadata)> {
        let (mut span, (body, metadata)) = (self.begin_span(), request);
        let carried = span.carry(metadata);
        let request = (body, carried.as_ref().unwrap_or(metadata));
        let response = self.send_request(request, deadline).and_then(|id| {
            let response = self.receiver.response(id, deadline);
            if response.is_err() {
                self.receiver.abandon(id);
            }
            response
        });
        span.end(&response);
        response
    }

    /// Sends a request without waiting for its response. Several requests may be in flight.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::CallsInFlight`]: 4096 requests wait for their response. [`abandon`](Self::abandon) ends the wait of one.
    /// - Otherwise as [`Sender::send`].
    pub fn submit(&mut self, request: &[u8]) -> Result<RequestId> {
        self.submit_with(request, &Metadata::new())
    }

    /// As [`submit`](Self::submit), with metadata.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub fn submit_with(&mut self, request: &[u8], metadata: &Metadata) -> Result<RequestId> {
        self.submit_deadline((request, metadata), self.default_deadline())
    }

    /// As [`submit_with`](Self::submit_with), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub fn submit_with_deadline(
        &mut self,
        request: &[u8],
        metadata: &Metadata,
        deadline: Instant,
    ) -> Result<RequestId> {
        self.submit_deadline((request, metadata), deadline)
    }

    fn submit_deadline(
        &mut self,
        (body, metadata): (&[u8], &Metadata),
        deadline: Instant,
    ) -> Result<RequestId> {
        let mut span = self.begin_span();
        let carried = span.carry(metadata);
        let sent = self.send_request((body, carried.as_ref().unwrap_or(metadata)), deadline);
        self.keep_span(span, &sent);
        sent
    }

    #[inline(always)]
    fn send_request(
        &mut self,
        request: (&[u8], &Metadata),
        deadline: Instant,
    ) -> Result<RequestId> {
        let id = self.receiver.calls().make()?;
        let sent = self.sender.send_request(id, request, deadline);
        if sent.is_err() {
            self.receiver.calls().unmake(id);
        }
        sent.map(|()| id)
    }

    /// Waits for the response to a request, in any order.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::UnknownRequest`]: no such request is in flight.
    /// - [`ErrorKind::OtherKind`]: the response has tensors. It waits for [`wait_tensors`](Self::wait_tensors).
    /// - [`ErrorKind::TimedOut`]: the request stays in flight; wait once more, or [`abandon`](Self::abandon) it.
    /// - Otherwise as [`call`](Self::call).
    pub fn wait(&mut self, request: RequestId) -> Result<Vec<u8>> {
        self.wait_deadline(request, self.default_deadline())
    }

    /// As [`wait`](Self::wait), until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_deadline(&mut self, request: RequestId, deadline: Instant) -> Result<Vec<u8>> {
        Ok(self.receiver.response(request, deadline)?.0)
    }

    /// As [`wait`](Self::wait), and returns the response's metadata, too.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_with(&mut self, request: RequestId) -> Result<(Vec<u8>, Metadata)> {
        self.receiver.response(request, self.default_deadline())
    }

    /// As [`wait_with`](Self::wait_with), until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_with_deadline(
        &mut self,
        request: RequestId,
        deadline: Instant,
    ) -> Result<(Vec<u8>, Metadata)> {
        self.receiver.response(request, deadline)
    }

    /// As [`wait`](Self::wait), but does not wait.
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
    /// use slipring::error::TryRecvError;
    ///
    /// let request = near.submit(b"question")?;
    /// assert!(matches!(near.try_wait(request), Err(TryRecvError::Empty)));
    /// let asked = far.recv_request()?.expect("a request");
    /// far.respond(asked.id, b"answer")?;
    /// assert_eq!(near.try_wait(request)?, b"answer");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: the response has not come. The request stays in flight.
    /// - [`TryRecvError::Failed`]: as [`wait`](Self::wait).
    pub fn try_wait(&mut self, request: RequestId) -> Result<Vec<u8>, TryRecvError> {
        let response = self.receiver.try_response(request)?;
        response.ok_or_else(|| Error::from(ErrorKind::PeerClosed).into())
    }

    /// As [`wait_with`](Self::wait_with), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_wait`](Self::try_wait).
    pub fn try_wait_with(
        &mut self,
        request: RequestId,
    ) -> Result<(Vec<u8>, Metadata), TryRecvError> {
        let response = self.receiver.response_with(request, RecvPatience::None)?;
        response.ok_or_else(|| Error::from(ErrorKind::PeerClosed).into())
    }

    /// Abandons a request, which is in flight no longer. The connection drops its response when it comes.
    pub fn abandon(&mut self, request: RequestId) {
        self.receiver.abandon(request);
    }

    /// Starts the span of a call, if the caller has one.
    #[inline]
    pub(crate) fn begin_span(&self) -> CallSpan {
        CallSpan::begin(|| Some(self.link().clone()))
    }

    /// Keeps the span of a request that was sent until its response goes to the caller.
    #[inline]
    pub(crate) fn keep_span(&mut self, span: CallSpan, sent: &Result<RequestId>) {
        match sent {
            Ok(id) => self.receiver.calls().trace(*id, span),
            Err(_) => span.end(sent),
        }
    }

    pub(crate) fn default_deadline(&self) -> Instant {
        after(self.sender.session().env.options().send_timeout)
    }

    /// Returns the socket that wakes an armed half.
    pub(crate) fn socket(&self) -> LinkSocket {
        LinkSocket::new(self.link().clone())
    }

    /// Returns the bytes of messages that may be set aside, and the bytes of writes that may wait for room.
    pub(crate) fn limits(&self) -> (usize, usize) {
        let options = &self.sender.session().env.options();
        (options.backlog_limit, options.write_limit)
    }

    fn link(&self) -> &Arc<Link> {
        &self.sender.session().link
    }
}

/// For event loops, level-triggered or edge-triggered.
///
/// 1. Ask for the descriptor before the first poll. A thread that asks for it after its poll, and then sleeps, can miss
///    a message that came in between.
/// 2. Before each sleep, call [`Receiver::try_recv`] (or another `try_` form) until it returns
///    [`Empty`](crate::error::TryRecvError::Empty). If a message had no room, call [`Sender::try_send`] until it returns
///    [`Full`](crate::error::TrySendError::Full).
/// 3. The descriptor then becomes readable when there is a message to receive, room to send, or the end of the
///    connection. It never becomes writable. Each time it is readable, repeat step 2.
///
/// Room is room in the ring, or a block that the peer returned. If a message is `Full` because other peers hold all
/// blocks of the pool, the descriptor does not report when that ends; send the message later.
///
/// A peer that announces much memory has the thread work for it in one call. A loop that serves several peers calls
/// [`Receiver::take_turns`], and asks [`Receiver::rest`] after each [`Empty`](crate::error::TryRecvError::Empty).
///
/// After the first call of `as_fd`, each `try_` form that finds nothing makes system calls, for a caller that is about
/// to sleep.
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sender.descriptor()
    }
}

/// The operations of the halves that every program needs. [`sender`](Connection::sender) and
/// [`receiver`](Connection::receiver) have all.
impl Connection {
    /// Sends a message, as [`Sender::send`].
    ///
    /// # Errors
    ///
    /// As [`Sender::send`].
    #[inline(always)]
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.sender.send(message)
    }

    /// Receives the next message, as [`Receiver::recv`].
    ///
    /// # Errors
    ///
    /// As [`Receiver::recv`].
    pub fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        self.receiver.recv()
    }

    /// Receives the next request, as [`Receiver::recv_request`].
    ///
    /// # Errors
    ///
    /// As [`Receiver::recv_request`].
    pub fn recv_request(&mut self) -> Result<Option<Request>> {
        self.receiver.recv_request()
    }

    /// Sends the response to a request, as [`Sender::respond`].
    ///
    /// # Errors
    ///
    /// As [`Sender::respond`].
    pub fn respond(&mut self, request: RequestId, body: &[u8]) -> Result<()> {
        self.sender.respond(request, body)
    }
}

#[cfg(test)]
mod tests;
