//! A connection: both halves, and requests with their responses.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::channel::inbox::receiver::Received;
use crate::channel::inbox::receiver::Receiver;
use crate::channel::message::MessageKind;
use crate::channel::message::Request;
use crate::channel::message::RequestId;
use crate::channel::sender::Sender;
use crate::channel::sender::reservation::Batch;
use crate::channel::sender::reservation::Reservation;
use crate::channel::stats::RecvStats;
use crate::channel::stats::SendStats;
use crate::error::TryRecvError;
use crate::error::TrySendError;
use crate::error::{ErrorKind, Result};
use crate::handshake::peer::Peer;
use crate::link::LinkSocket;
use crate::link::link::Link;
use crate::link::session::Session;
use crate::patience::after;
use crate::shm::{Area, Bytes};

/// A link to another process: messages with boundaries, in order, both ways.
///
/// Most of what can be done with a connection is documented at its halves, [`Sender`] and
/// [`Receiver`].
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

/// Shows the peer and the numbers of messages.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, stats) = (self.peer(), self.stats());
        f.debug_struct("Connection")
            .field("peer_pid", &peer.pid())
            .field("peer_uid", &peer.uid())
            .field("sent", &stats.sent.messages)
            .field("received", &stats.received.messages)
            .finish_non_exhaustive()
    }
}

/// What both halves of a connection have done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The sending half.
    pub sent: SendStats,
    /// The receiving half.
    pub received: RecvStats,
}

impl Connection {
    pub(crate) fn new(session: Session, ring: Area) -> Self {
        let session = Arc::new(session);
        Self { sender: Sender::new(session.clone(), ring), receiver: Receiver::new(session) }
    }

    /// Both halves, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// The halves of one connection, joined again. `Err` gives back halves that are not.
    #[expect(clippy::result_large_err, reason = "halves live where their thread keeps them")]
    pub fn join(sender: Sender, receiver: Receiver) -> Result<Self, (Sender, Receiver)> {
        if Arc::ptr_eq(sender.session(), receiver.session()) {
            Ok(Self { sender, receiver })
        } else {
            Err((sender, receiver))
        }
    }

    /// The sending half.
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// The receiving half.
    pub fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// Who is on the other side, as the kernel vouched for when the connection was made.
    pub fn peer(&self) -> &Peer {
        &self.link().identity
    }

    /// What this side has done.
    pub fn stats(&self) -> Stats {
        Stats { sent: self.sender.stats(), received: self.receiver.stats() }
    }

    /// The longest message in bytes: the smaller of both sides' limits.
    pub fn max_message(&self) -> u64 {
        self.sender.max_message()
    }

    /// Ends the connection in order. What was sent before is delivered, also when this process ends
    /// right after. Dropping does the same without telling of errors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerDied`], [`ErrorKind::Fault`]: what was sent last may not be received.
    pub fn close(self) -> Result<()> {
        self.link().own.generation().check()?;
        if self.link().is_alive() {
            return Ok(());
        }
        let error = self.link().end();
        // A peer that closed first, in order, is no reason to complain.
        if *error.kind() == ErrorKind::PeerClosed { Ok(()) } else { Err(error) }
    }

    /// Makes a request and waits for its response, for as long as
    /// [`Options::send_timeout`](crate::Options::send_timeout) allows. Other messages that come
    /// meanwhile are set aside for [`recv`](Self::recv) and [`recv_request`](Self::recv_request).
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
    /// - [`ErrorKind::TimedOut`]: a response that comes later is dropped.
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`]: none will come.
    /// - [`ErrorKind::BacklogFull`]: too much else came first; receive it.
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
        let id = self.submit_deadline(request, deadline)?;
        let response = self.receiver.response(id, deadline);
        if response.is_err() {
            self.receiver.abandon(id);
        }
        response
    }

    /// Makes a request without waiting for its response; several may be in flight.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::BacklogFull`]: 4096 requests wait for their response.
    /// - Otherwise as [`Sender::send`].
    pub fn submit(&mut self, request: &[u8]) -> Result<RequestId> {
        self.submit_deadline(request, self.default_deadline())
    }

    fn submit_deadline(&mut self, request: &[u8], deadline: Instant) -> Result<RequestId> {
        let id = self.receiver.calls().make()?;
        let sent = self.sender.send_request(id.0, request, deadline);
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
    /// - [`ErrorKind::TimedOut`]: the request stays in flight; wait again, or
    ///   [`abandon`](Self::abandon) it.
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
        self.receiver.response(request, deadline)
    }

    /// Says that nobody will wait for this response: it is dropped when it comes.
    pub fn abandon(&mut self, request: RequestId) {
        self.receiver.abandon(request);
    }

    fn default_deadline(&self) -> Instant {
        after(self.sender.session().env.options().send_timeout)
    }

    /// The socket that wakes an armed half.
    pub(crate) fn socket(&self) -> LinkSocket {
        LinkSocket::new(self.link().clone(), self.sender.session().env.options().spin)
    }

    /// Bytes that may be set aside, and bytes of writes that may wait for room.
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
/// Ask for the descriptor first, then look: only from the first call on does finding nothing make the
/// descriptor tell of what comes. Whoever sleeps on a descriptor that it asked for after it looked can
/// miss what came in between.
///
/// Whoever has this descriptor looks before it sleeps: [`try_recv`](Connection::try_recv) (or another
/// `try_` form) until it says [`Empty`](TryRecvError::Empty), and where there was no room for a message,
/// [`try_send`](Connection::try_send) until it says [`Full`](TrySendError::Full). From then on the
/// descriptor becomes readable when there is something to receive, room to send, or an end of the
/// connection; never writable. Do the same each time it is readable, and before the first sleep.
///
/// Room means room in the ring, and blocks that the peer returns. A message that is `Full` because
/// other peers hold what the pool may have is not told of; try it again later.
///
/// From the first call on, finding nothing costs system calls: it is meant for a sleep.
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link().use_descriptor();
        self.link().socket.as_fd()
    }
}

/// The halves' operations, for a connection that one thread uses.
impl Connection {
    /// See [`Sender::send`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.sender.send(message)
    }

    /// See [`Sender::send_deadline`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send_deadline(&mut self, message: &[u8], deadline: Instant) -> Result<()> {
        self.sender.send_deadline(message, deadline)
    }

    /// See [`Sender::try_send`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        self.sender.try_send(message)
    }

    /// See [`Sender::reserve`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<Reservation<'_>> {
        self.sender.reserve(len)
    }

    /// See [`Sender::try_reserve`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn try_reserve(&mut self, len: usize) -> Result<Reservation<'_>, TrySendError> {
        self.sender.try_reserve(len)
    }

    /// See [`Sender::batch`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn batch(&mut self) -> Result<Batch<'_>> {
        self.sender.batch()
    }

    /// See [`Receiver::recv`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv(&mut self) -> Result<Option<Vec<u8>>> {
        self.receiver.recv()
    }

    /// See [`Receiver::recv_deadline`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>> {
        self.receiver.recv_deadline(deadline)
    }

    /// See [`Receiver::try_recv`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_recv(&mut self) -> Result<Option<Vec<u8>>, TryRecvError> {
        self.receiver.try_recv()
    }

    /// See [`Receiver::recv_into`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn recv_into(&mut self, message: &mut Vec<u8>) -> Result<Option<usize>> {
        self.receiver.recv_into(message)
    }

    /// See [`Receiver::peek`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Received<'_>>> {
        self.receiver.peek()
    }

    /// See [`Receiver::try_peek`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn try_peek(&mut self) -> Result<Option<Received<'_>>, TryRecvError> {
        self.receiver.try_peek()
    }

    /// See [`Receiver::drain`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn drain(&mut self, max: usize, each: impl FnMut(MessageKind, Bytes<'_>)) -> Result<usize> {
        self.receiver.drain(max, each)
    }

    /// See [`Receiver::recv_request`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv_request(&mut self) -> Result<Option<Request>> {
        self.receiver.recv_request()
    }

    /// See [`Sender::respond`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn respond(&mut self, request: RequestId, body: &[u8]) -> Result<()> {
        self.sender.respond(request, body)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Address, Context};

    #[test]
    fn debug_shows_the_peer_and_the_traffic_on_one_line() {
        let (context, address) = (Context::new().unwrap(), Address::fresh());
        let mut listener = context.listen(&address).unwrap();
        let far = std::thread::spawn(move || listener.accept().unwrap());
        let mut near = context.connect(&address).unwrap();
        let _far = far.join().unwrap();
        near.send(b"hello").unwrap();
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        let peer = format!("peer_pid: Some({pid}), peer_uid: {uid}");
        let shown = format!("Connection {{ {peer}, sent: 1, received: 0, .. }}");
        assert_eq!(format!("{near:?}"), shown);
    }
}
