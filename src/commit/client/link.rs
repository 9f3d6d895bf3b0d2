//! The connection that all threads of a client share: it sends requests, and receives answers for everybody.
//!
//! One thread at a time takes the receiving half, and enters the answers of all threads into the
//! [state](crate::commit::client::state). The others sleep until their answer is there, or until the half is free. An
//! execution locks the state twice: to begin, send and take the receiving half; and to end and put the half back.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::channel::{MessageKind, Receiver, Sender};
use crate::commit::client::state::{ClientState, Pending, Reply, SessionKey};
use crate::commit::wire::message::{self, Answer, Passed, Request};
use crate::error::{CommitFault, Error, ErrorKind, Fault, Result, TryRecvError, TrySendError};
use crate::link::LinkSocket;
use crate::shm::Bytes;
use crate::shm::fork::Generation;
use crate::transport::Connection;

/// A ticket that no request has.
const NO_TICKET: u64 = 0;

/// The connection of a client.
#[derive(Debug)]
pub(super) struct ClientLink {
    shared: Mutex<Shared>,
    /// Notified when an answer comes for another thread, and when a half is put back.
    changed: Condvar,
    socket: LinkSocket,
    generation: Generation,
}

/// The part under the lock. The halves are boxed, so that taking one moves a pointer.
#[derive(Debug)]
pub(super) struct Shared {
    state: ClientState,
    /// `None`: a thread sends, and may wait for room.
    sender: Option<Box<Sender>>,
    /// The tickets of the requests that wait for the sending half, oldest first. Requests leave in the order in which they began:
    /// an execution never follows the release beside it.
    unsent: VecDeque<u64>,
    /// `None`: a thread receives.
    receiver: Option<Box<Receiver>>,
    /// Threads that wait on `changed`.
    sleepers: usize,
}

impl Shared {
    pub(super) fn state(&mut self) -> &mut ClientState {
        &mut self.state
    }

    /// Returns the sending half, unless a request sends or waits for it.
    #[inline]
    fn idle_sender(&mut self) -> Option<&mut Sender> {
        if self.unsent.is_empty() { self.sender.as_deref_mut() } else { None }
    }
}

/// A request that has begun, and is to be sent.
pub(super) struct Begun<'a> {
    shared: MutexGuard<'a, Shared>,
    ticket: u64,
    until: Option<Instant>,
}

/// How long to wait for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as the server lives.
    Forever,
    Until(Instant),
    None,
}

impl ClientLink {
    pub(super) fn new(connection: Connection) -> Result<Self> {
        let socket = connection.socket();
        let (sender, receiver) = connection.split();
        let (sender, receiver) = (Some(Box::new(sender)), Some(Box::new(receiver)));
        let state = ClientState::default();
        let unsent = VecDeque::new();
        let shared = Mutex::new(Shared { state, sender, unsent, receiver, sleepers: 0 });
        Ok(Self { shared, changed: Condvar::new(), socket, generation: Generation::current()? })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Every step under the lock leaves the state whole.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that this process has made the connection, and that it has not ended. Locks the state.
    pub(super) fn check(&self) -> Result<MutexGuard<'_, Shared>> {
        // First: a forked child may have inherited a lock that no thread opens.
        self.generation.check()?;
        let shared = self.lock();
        match shared.state.ended() {
            Some(kind) => Err(kind.clone().into()),
            None => Ok(shared),
        }
    }

    /// Returns whether this process has made the connection.
    pub(super) fn is_here(&self) -> bool {
        self.generation.is_current()
    }

    /// Begins something. If that fails because a session is busy, receives what has come and tries once more.
    #[inline]
    fn begin_with<T>(
        &self,
        mut begin: impl FnMut(&mut ClientState) -> Result<T>,
    ) -> Result<(MutexGuard<'_, Shared>, T)> {
        let mut shared = self.check()?;
        if shared.state.has_unused() {
            self.unload_unused(&mut shared);
        }
        let begun = match begin(&mut shared.state) {
            Err(error) if *error.kind() == ErrorKind::Commit(CommitFault::Busy) => {
                shared = self.poll(shared);
                begin(&mut shared.state)
            }
            begun => begun,
        };
        begun.map(|begun| (shared, begun))
    }

    /// Begins a request, which is sent until then at the latest.
    pub(super) fn begin(
        &self,
        until: Option<Instant>,
        mut request: impl FnMut(&mut ClientState) -> Result<Pending>,
    ) -> Result<Begun<'_>> {
        let (shared, ticket) = self.begin_with(|state| {
            let request = request(state)?;
            state.begin(request)
        })?;
        Ok(Begun { shared, ticket, until })
    }

    /// Begins and sends an execution of one session.
    #[inline]
    fn send_execution(&self, session: SessionKey, until: Option<Instant>) -> Result<Begun<'_>> {
        let (shared, (id, ticket)) = self.begin_with(|state| state.begin_execution(session))?;
        let begun = Begun { shared, ticket, until };
        let shared = self.send_bytes(begun, &message::execute_one(ticket, id))?;
        Ok(Begun { shared, ticket, until })
    }

    /// Starts an execution of one session, and returns its ticket.
    pub(super) fn start(&self, session: SessionKey, until: Option<Instant>) -> Result<u64> {
        Ok(self.send_execution(session, until)?.ticket)
    }

    /// Executes one session, and waits for the answer.
    #[inline]
    pub(super) fn execute(&self, session: SessionKey, until: Option<Instant>) -> Result<()> {
        let Begun { mut shared, ticket, .. } = self.send_execution(session, until)?;
        // Another thread may have received the answer while this one waited for room.
        if !shared.state.is_answered(ticket)
            && let Some(mut receiver) = shared.receiver.take()
        {
            drop(shared);
            // The usual answer says that this execution went well. Any other one stays in the ring.
            let mut well = false;
            let peeked = match until {
                None => receiver.peek(),
                Some(until) => receiver.peek_deadline(until),
            };
            if let Ok(Some(received)) = peeked
                && received.kind() == MessageKind::Message
                && message::is_executed(received.bytes()) == Some(ticket)
            {
                well = received.release().is_ok();
            }
            shared = self.lock();
            shared.receiver = Some(receiver);
            if well && shared.state.finish(ticket) {
                self.notify(&shared);
                return Ok(());
            }
        }
        executed(self.wait_until(shared, ticket, until)?)
    }

    /// Asks the server to unload the models that nobody has a handle of, as far as there is room.
    #[cold]
    fn unload_unused(&self, shared: &mut Shared) {
        while let Some((ticket, (key, id))) = shared.state.begin_close_of_unused() {
            let message = Request::Unload { model: id }.encode(ticket);
            match shared.idle_sender().map(|sender| sender.try_send(&message)) {
                Some(Ok(())) => continue,
                Some(Err(TrySendError::Failed(error))) => {
                    self.end(shared, &error);
                    shared.state.cancel(ticket);
                }
                // The next request looks once more, or the thread that sends.
                Some(Err(TrySendError::Full { .. })) | None => {
                    shared.state.cancel(ticket);
                    shared.state.is_unused(key, id);
                }
            }
            return;
        }
    }

    /// Notes that nobody has a handle of a model. The caller does not wait.
    pub(super) fn unload(&self, key: u64, id: u64) {
        if let Ok(mut shared) = self.check() {
            shared.state.is_unused(key, id);
            self.unload_unused(&mut shared);
        }
    }

    /// Receives what has come, without waiting.
    #[cold]
    pub(super) fn poll<'a>(&'a self, mut shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        if shared.state.ended().is_none()
            && let Some(receiver) = shared.receiver.take()
        {
            drop(shared);
            shared = self.receive(receiver, NO_TICKET, Patience::None).0;
        }
        shared
    }

    /// Wakes the threads that wait for an answer or a half.
    #[inline]
    fn notify(&self, shared: &Shared) {
        if shared.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Sends a request, and returns its ticket. If that fails, the request is canceled.
    pub(super) fn send(&self, begun: Begun<'_>, request: &Request) -> Result<u64> {
        let ticket = begun.ticket;
        drop(self.send_bytes(begun, &request.encode(ticket))?);
        Ok(ticket)
    }

    /// Sends a request with bytes behind it, and returns its ticket. The copy may take long: not under the lock.
    pub(super) fn send_with_bytes(
        &self,
        begun: Begun<'_>,
        request: &Request,
        bytes: &[u8],
    ) -> Result<u64> {
        let (ticket, until) = (begun.ticket, begun.until);
        let sent = self.send_unlocked(begun, |sender| {
            let mut message = request.encode(ticket);
            message.extend_from_slice(bytes);
            send(sender, &message, until)
        });
        sent.map(|_| ticket)
    }

    /// Sends descriptors and a request that names them, and returns its ticket.
    pub(super) fn send_with_descriptors(
        &self,
        begun: Begun<'_>,
        fds: &[BorrowedFd<'_>],
        request: impl FnOnce(Passed) -> Request,
    ) -> Result<u64> {
        let (ticket, until) = (begun.ticket, begun.until);
        let sent = self.send_unlocked(begun, |sender| {
            let latest = sender.default_deadline();
            let deadline = until.map_or(latest, |until| until.min(latest));
            let passed = sender.pass(fds, deadline);
            let sent = passed.and_then(|first| {
                let passed = Passed { first, count: fds.len() as u32 };
                send(sender, &request(passed).encode(ticket), until)
            });
            if sent.is_err() {
                // The server closes the descriptors that have travelled.
                let before = sender.passed();
                let _ = sender.send(&Request::Discard { before }.encode(NO_TICKET));
            }
            sent
        });
        sent.map(|_| ticket)
    }

    #[inline]
    fn send_bytes<'a>(
        &'a self,
        mut begun: Begun<'a>,
        message: &[u8],
    ) -> Result<MutexGuard<'a, Shared>> {
        match begun.shared.idle_sender().map(|sender| sender.try_send(message)) {
            Some(Ok(())) => Ok(begun.shared),
            Some(Err(TrySendError::Failed(error))) => {
                Err(self.cancel(begun.shared, begun.ticket, error))
            }
            Some(Err(TrySendError::Full { .. })) | None => {
                let until = begun.until;
                self.send_unlocked(begun, |sender| send(sender, message, until))
            }
        }
    }

    /// Sends without the lock: waiting for room, or copying, may take long.
    #[cold]
    fn send_unlocked<'a>(
        &'a self,
        begun: Begun<'a>,
        send: impl FnOnce(&mut Sender) -> Result<()>,
    ) -> Result<MutexGuard<'a, Shared>> {
        let Begun { mut shared, ticket, until } = begun;
        let start = Instant::now();
        let patience = until.map_or(Patience::Forever, Patience::Until);
        shared.unsent.push_back(ticket);
        let mut sender = loop {
            if shared.unsent.front() == Some(&ticket)
                && let Some(sender) = shared.sender.take()
            {
                shared.unsent.pop_front();
                break sender;
            }
            // The thread that has it puts it back after its send timeout at the latest.
            match self.sleep(shared, patience) {
                Some(slept) => shared = slept,
                None => {
                    let late = Error::from(ErrorKind::TimedOut { after: start.elapsed() });
                    let error = late.waiting_for("the service makes no room for requests");
                    let mut shared = self.lock();
                    shared.unsent.retain(|waiting| *waiting != ticket);
                    self.notify(&shared);
                    return Err(self.cancel(shared, ticket, error));
                }
            }
        };
        drop(shared);
        let sent = send(&mut sender);
        let mut shared = self.lock();
        shared.sender = Some(sender);
        if shared.state.has_unused() {
            self.unload_unused(&mut shared);
        }
        self.notify(&shared);
        match sent {
            Ok(()) => Ok(shared),
            Err(error) => Err(self.cancel(shared, ticket, error)),
        }
    }

    /// Cancels a request that could not be sent.
    #[cold]
    fn cancel(&self, mut shared: MutexGuard<'_, Shared>, ticket: u64, error: Error) -> Error {
        shared.state.cancel(ticket);
        self.end(&mut shared, &error);
        if error.is_disconnected() {
            // Answers may be before the end.
            drop(self.poll(shared));
        }
        error
    }

    /// Ends the connection, if this error of a send says that the server lies. The end of the server is one for a receive
    /// alone: answers may be before it.
    fn end(&self, shared: &mut Shared, error: &Error) {
        if matches!(error.kind(), ErrorKind::Fault(_)) {
            shared.state.end(error.kind().clone());
            self.notify(shared);
        }
    }

    /// Waits for an answer. `None`: it has not come yet.
    ///
    /// # Errors
    ///
    /// - The server's answer.
    /// - [`ErrorKind::TimedOut`]: the answer may still come.
    /// - The error that the connection ended with.
    pub(super) fn wait(&self, ticket: u64, patience: Patience) -> Result<Option<Reply>> {
        self.generation.check()?;
        self.wait_from(self.lock(), ticket, patience)
    }

    /// Waits for an answer until then, or as long as the server lives. After [`ErrorKind::TimedOut`] nobody takes the answer.
    pub(super) fn wait_for(&self, ticket: u64, until: Option<Instant>) -> Result<Reply> {
        self.generation.check()?;
        self.wait_until(self.lock(), ticket, until)
    }

    #[inline]
    fn wait_until(
        &self,
        shared: MutexGuard<'_, Shared>,
        ticket: u64,
        until: Option<Instant>,
    ) -> Result<Reply> {
        let patience = until.map_or(Patience::Forever, Patience::Until);
        let waited = self.wait_from(shared, ticket, patience);
        if until.is_some() && waited.as_ref().is_err_and(Error::is_timeout) {
            self.abandon(ticket);
        }
        waited?.ok_or_else(unexpected)
    }

    #[inline]
    fn wait_from<'a>(
        &'a self,
        mut shared: MutexGuard<'a, Shared>,
        ticket: u64,
        patience: Patience,
    ) -> Result<Option<Reply>> {
        let start = match patience {
            Patience::Until(_) => Some(Instant::now()),
            _ => None,
        };
        loop {
            if let Some(outcome) = shared.state.take(ticket) {
                return outcome.map(Some);
            }
            if let Some(receiver) = shared.receiver.take() {
                drop(shared);
                let (mut after, failed) = self.receive(receiver, ticket, patience);
                if let Some(outcome) = after.state.take(ticket) {
                    return outcome.map(Some);
                }
                match failed {
                    Some(TryRecvError::Failed(error)) => return Err(error),
                    _ => return Ok(None),
                }
            }
            let Some(slept) = self.sleep(shared, patience) else {
                return match (patience, start) {
                    (Patience::Until(_), Some(start)) => {
                        let late = Error::from(ErrorKind::TimedOut { after: start.elapsed() });
                        Err(late.waiting_for("the service has not answered"))
                    }
                    _ => Ok(None),
                };
            };
            shared = slept;
        }
    }

    /// Sleeps until another thread notifies. `None`: there is no more time.
    #[cold]
    fn sleep<'a>(
        &self,
        mut shared: MutexGuard<'a, Shared>,
        patience: Patience,
    ) -> Option<MutexGuard<'a, Shared>> {
        let left = match patience {
            Patience::Forever => None,
            Patience::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                (!left.is_zero()).then_some(Some(left))?
            }
            Patience::None => return None,
        };
        shared.sleepers += 1;
        let mut shared = match left {
            None => self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner),
            Some(left) => {
                let slept = self.changed.wait_timeout(shared, left);
                slept.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        shared.sleepers -= 1;
        Some(shared)
    }

    /// Receives answers of all threads, until that of `ticket` is there. Returns the reason if it is not.
    #[inline]
    fn receive(
        &self,
        mut receiver: Box<Receiver>,
        ticket: u64,
        patience: Patience,
    ) -> (MutexGuard<'_, Shared>, Option<TryRecvError>) {
        let (mut shared, failed) = loop {
            let received = match patience {
                Patience::Forever => receiver.peek().map_err(TryRecvError::Failed),
                Patience::Until(deadline) => {
                    receiver.peek_deadline(deadline).map_err(TryRecvError::Failed)
                }
                Patience::None => receiver.try_peek(),
            };
            let answer = match received {
                Ok(Some(received)) if received.kind() == MessageKind::Message => {
                    match decode(received.bytes()) {
                        Ok(answer) => received.release().map(|()| answer),
                        // Bytes that were taken back are no fault of the answer.
                        Err(error) => received.check().and(Err(error)),
                    }
                }
                Ok(Some(_)) => Ok(Err(Fault::Field { field: "commit.kind", value: 1 })),
                Ok(None) => Err(ErrorKind::PeerClosed.into()),
                Err(TryRecvError::Failed(error)) if !is_temporary(error.kind()) => Err(error),
                Err(other) => break (self.lock(), Some(other)),
            };
            let mut shared = self.lock();
            let entered = match answer {
                Ok(answer) => {
                    answer.and_then(|(ticket, answer)| shared.state.answer(ticket, answer))
                }
                Err(error) => {
                    shared.state.end(error.kind().clone());
                    break (shared, None);
                }
            };
            if let Err(fault) = entered {
                let error = receiver.fail(fault);
                shared.state.end(error.kind().clone());
                break (shared, None);
            }
            if shared.state.is_answered(ticket) {
                break (shared, None);
            }
            self.notify(&shared);
        };
        shared.receiver = Some(receiver);
        self.notify(&shared);
        (shared, failed)
    }

    /// Nobody will take the outcome of this request.
    pub(super) fn abandon(&self, ticket: u64) {
        if self.is_here() {
            let mut shared = self.lock();
            shared.state.abandon(ticket);
            if shared.state.has_unused() && shared.state.ended().is_none() {
                self.unload_unused(&mut shared);
            }
        }
    }

    /// Returns the descriptor that becomes readable when an answer may have come.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        if self.is_here() {
            self.socket.use_descriptor();
        }
        self.socket.as_fd()
    }
}

/// Sends a message until then, or for the sender's timeout.
fn send(sender: &mut Sender, message: &[u8], until: Option<Instant>) -> Result<()> {
    match until {
        Some(until) => sender.send_deadline(message, until.min(sender.default_deadline())),
        None => sender.send(message),
    }
}

/// Returns the answer in a message, or the fault in it.
///
/// # Errors
///
/// [`ErrorKind::OutOfMemory`]: the allocator has no memory for a copy of the message.
fn decode(bytes: Bytes<'_>) -> Result<Result<(u64, Answer), Fault>> {
    Ok(match message::is_executed(bytes) {
        Some(ticket) => Ok((ticket, Answer::Executed { failures: Vec::new() })),
        None => Answer::decode(&bytes.try_to_vec()?),
    })
}

/// Returns whether a later receive may succeed after this error.
fn is_temporary(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::TimedOut { .. } | ErrorKind::Forked)
}

/// Returns the error of a reply that does not belong to the request. The state has matched the two before.
pub(super) fn unexpected() -> Error {
    Fault::Field { field: "commit.act", value: 0 }.into()
}

/// Returns the outcome of an execution of one session.
pub(super) fn executed(reply: Reply) -> Result<()> {
    match reply {
        Reply::Executed { .. } => Ok(()),
        _ => Err(unexpected()),
    }
}
