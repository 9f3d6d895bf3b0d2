//! The client's side of a connection: what goes, what comes, and who waits for it.
//!
//! Whoever waits receives, for all: one thread at a time takes answers from the connection and notes them in the
//! [book](crate::commit::book); the others sleep until theirs is noted, or until it is their turn.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::commit::book::{Book, Reply, What};
use crate::commit::message::{self, Answer, Passed, Request};
use crate::commit::model::Model;
use crate::error::{CommitFault, Error, ErrorKind, Fault, Result};
use crate::shm::fork::Generation;
use crate::transport::{
    Address, Connection, Context, LinkSocket, MessageKind, Receiver, Sender, TryRecvError,
};

/// A ticket that nobody has.
const NOBODY: u64 = 0;

/// Sessions that a model may have, unless [`Client::max_sessions`] says otherwise.
const SESSIONS: u32 = 16;

/// A connection to a [`Server`](crate::commit::Server). Clones are handles of the same one, for any thread.
///
/// It ends when the last handle, of it, of its models and of their sessions, is dropped.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    max_sessions: u32,
}

#[derive(Debug)]
pub(super) struct Shared {
    sender: Mutex<Sender>,
    receiver: Mutex<Receiver>,
    socket: LinkSocket,
    book: Mutex<Book>,
    /// Something was noted, or nobody receives.
    noted: Condvar,
    generation: Generation,
}

/// How long to wait for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as the service lives.
    Forever,
    Until(Instant),
    None,
}

impl Client {
    /// Connects to a service. The document's `EnnInitialize`.
    ///
    /// # Errors
    ///
    /// Those of [`Context::connect`].
    pub fn connect<A>(context: &Context, address: A) -> Result<Self>
    where
        A: TryInto<Address>,
        Error: From<A::Error>,
    {
        Self::new(context.connect(address)?)
    }

    /// Over a connection of any kind. Nothing may have been exchanged over it before.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in a forked child.
    pub fn new(connection: Connection) -> Result<Self> {
        let socket = connection.socket();
        let (sender, receiver) = connection.split();
        let shared = Shared {
            sender: Mutex::new(sender),
            receiver: Mutex::new(receiver),
            socket,
            book: Mutex::default(),
            noted: Condvar::new(),
            generation: Generation::current()?,
        };
        Ok(Self { shared: Arc::new(shared), max_sessions: SESSIONS })
    }

    /// With so many sessions of each model at most, of those that are loaded by this handle; 16 by default.
    pub fn max_sessions(mut self, max: u32) -> Self {
        self.max_sessions = max.clamp(1, message::MOST_IDS as u32);
        self
    }

    /// Loads a model from bytes, which travel in one message. The document's `EnnOpenModel`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::Refused`](crate::CommitFault::Refused): the service does not want it.
    /// - [`CommitFault::Description`](crate::CommitFault::Description): the service describes it in a way that cannot be.
    /// - [`CommitFault::Quota`](crate::CommitFault::Quota)
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`], and those of [`Sender::send`].
    pub fn load(&self, bytes: &[u8]) -> Result<Model> {
        let ticket = self.shared.ask(|_| Ok(What::Load))?;
        let mut message = Request::Load.encode(ticket);
        message.extend_from_slice(bytes);
        self.shared.send(ticket, &message)?;
        self.loaded(ticket)
    }

    /// Loads a model from `len` bytes at `offset` of a memfd, or of another file on tmpfs; sealed against shrinking,
    /// unless the service takes other ones.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load), and [`CommitFault::Memory`](crate::CommitFault::Memory).
    pub fn load_descriptor(&self, fd: impl AsFd, offset: u64, len: u64) -> Result<Model> {
        let ticket = self.shared.ask(|_| Ok(What::Load))?;
        self.shared.send_with(ticket, &[fd.as_fd()], |passed| Request::LoadDescriptor {
            passed: passed.first,
            offset,
            len,
        })?;
        self.loaded(ticket)
    }

    fn loaded(&self, ticket: u64) -> Result<Model> {
        match self.shared.wait(ticket, Patience::Forever)? {
            Some(Reply::Loaded { key, model, layout }) => {
                Ok(Model::new(self.shared.clone(), (key, model), layout, self.max_sessions))
            }
            _ => Err(unexpected()),
        }
    }
}

/// Nothing else is noted for what was asked.
pub(super) fn unexpected() -> Error {
    Fault::Field { field: "commit.act", value: 0 }.into()
}

/// Readable when an answer may have come: see [`Execution`](crate::commit::Execution).
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }
}

impl Shared {
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        // Every step under the lock leaves the book whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That this is the process that has connected, and that the service is there.
    pub(super) fn check(&self) -> Result<()> {
        // First: a child may have inherited a lock that nobody will open.
        self.generation.check()?;
        match &self.book().over {
            Some(kind) => Err(kind.clone().into()),
            None => Ok(()),
        }
    }

    pub(super) fn is_here(&self) -> bool {
        self.generation.is_current()
    }

    /// Notes what is asked for: gives the ticket.
    #[inline]
    pub(super) fn ask(&self, mut what: impl FnMut(&mut Book) -> Result<What>) -> Result<u64> {
        self.generation.check()?;
        let mut book = self.book();
        if let Some(kind) = &book.over {
            return Err(kind.clone().into());
        }
        let asked = match what(&mut book) {
            Err(error) if *error.kind() == ErrorKind::Commit(CommitFault::Busy) => {
                // The answer that makes it free may have come, and nobody has looked.
                drop(book);
                self.poll();
                book = self.book();
                what(&mut book)
            }
            asked => asked,
        };
        book.ask(asked?)
    }

    /// Notes what has come.
    pub(super) fn poll(&self) {
        let mut book = self.book();
        if !book.reading && book.over.is_none() {
            book.reading = true;
            drop(book);
            let (mut book, _) = self.receive(NOBODY, Patience::None);
            self.end_reading(&mut book);
        }
    }

    fn end_reading(&self, book: &mut Book) {
        book.reading = false;
        if book.sleepers > 0 {
            self.noted.notify_all();
        }
    }

    /// Sends what was asked for. If that cannot be, it was never asked.
    #[inline]
    pub(super) fn send(&self, ticket: u64, message: &[u8]) -> Result<()> {
        let sent = self.sender().send(message);
        sent.map_err(|error| self.unsent(ticket, error))
    }

    /// As [`send`](Self::send), after descriptors that the message names.
    pub(super) fn send_with(
        &self,
        ticket: u64,
        fds: &[BorrowedFd<'_>],
        request: impl FnOnce(Passed) -> Request,
    ) -> Result<()> {
        let sent = {
            let mut sender = self.sender();
            let deadline = sender.default_deadline();
            let passed = sender.pass(fds, deadline);
            let sent = passed.and_then(|first| {
                let passed = Passed { first, count: fds.len() as u32 };
                sender.send(&request(passed).encode(ticket))
            });
            if sent.is_err() {
                // What did travel is of no use to anybody.
                let before = sender.passed();
                let _ = sender.send(&Request::Discard { before }.encode(0));
            }
            sent
        };
        sent.map_err(|error| self.unsent(ticket, error))
    }

    #[cold]
    fn unsent(&self, ticket: u64, error: Error) -> Error {
        let mut book = self.book();
        book.unask(ticket);
        if is_end(error.kind()) {
            book.over.get_or_insert(error.kind().clone());
        }
        error
    }

    /// Waits for the answer. `None`: it has not come yet.
    ///
    /// # Errors
    ///
    /// - What the service answers.
    /// - [`ErrorKind::TimedOut`]: the answer may still come.
    /// - The end of the connection.
    #[inline]
    pub(super) fn wait(&self, ticket: u64, patience: Patience) -> Result<Option<Reply>> {
        self.generation.check()?;
        let start = match patience {
            Patience::Until(_) => Some(Instant::now()),
            _ => None,
        };
        let mut book = self.book();
        loop {
            if let Some(outcome) = book.take(ticket) {
                return outcome.map(Some);
            }
            if !book.reading {
                book.reading = true;
                drop(book);
                let (mut after, failed) = self.receive(ticket, patience);
                self.end_reading(&mut after);
                if let Some(outcome) = after.take(ticket) {
                    return outcome.map(Some);
                }
                match failed {
                    Some(TryRecvError::Failed(error)) => return Err(error),
                    _ => return Ok(None),
                }
            }
            let Some(slept) = self.sleep(book, patience) else {
                return match (patience, start) {
                    (Patience::Until(_), Some(start)) => {
                        Err(ErrorKind::TimedOut { after: start.elapsed() }.into())
                    }
                    _ => Ok(None),
                };
            };
            book = slept;
        }
    }

    /// Sleeps until something is noted. `None`: there is no more time.
    #[cold]
    fn sleep<'a>(
        &self,
        mut book: MutexGuard<'a, Book>,
        patience: Patience,
    ) -> Option<MutexGuard<'a, Book>> {
        book.sleepers += 1;
        let mut book = match patience {
            Patience::Forever => self.noted.wait(book).unwrap_or_else(PoisonError::into_inner),
            Patience::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    book.sleepers -= 1;
                    return None;
                }
                let slept = self.noted.wait_timeout(book, left);
                slept.unwrap_or_else(PoisonError::into_inner).0
            }
            Patience::None => {
                book.sleepers -= 1;
                return None;
            }
        };
        book.sleepers -= 1;
        Some(book)
    }

    /// Receives for everybody until one answer is there. Gives the book, and why nothing came.
    #[inline]
    fn receive(
        &self,
        ticket: u64,
        patience: Patience,
    ) -> (MutexGuard<'_, Book>, Option<TryRecvError>) {
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let received = match patience {
                Patience::Forever => receiver.peek().map_err(TryRecvError::Failed),
                Patience::Until(deadline) => {
                    receiver.peek_deadline(deadline).map_err(TryRecvError::Failed)
                }
                Patience::None => receiver.try_peek(),
            };
            let answer = match received {
                Ok(Some(received)) if received.kind() == MessageKind::Message => {
                    let answer = decode(received.bytes());
                    received.release().map(|()| answer)
                }
                Ok(Some(_)) => Ok(Err(Fault::Field { field: "commit.kind", value: 1 })),
                Ok(None) => Err(ErrorKind::PeerClosed.into()),
                Err(TryRecvError::Failed(error)) if is_end(error.kind()) => Err(error),
                Err(other) => return (self.book(), Some(other)),
            };
            let mut book = self.book();
            let noted = match answer {
                Ok(answer) => answer.and_then(|(ticket, answer)| book.answer(ticket, answer)),
                Err(error) => {
                    book.over.get_or_insert(error.kind().clone());
                    return (book, None);
                }
            };
            if let Err(fault) = noted {
                let error = receiver.fail(fault);
                book.over.get_or_insert(error.kind().clone());
                return (book, None);
            }
            if book.is_answered(ticket) {
                return (book, None);
            }
            if book.sleepers > 0 {
                self.noted.notify_all();
            }
        }
    }

    /// Nobody waits for the answer any more.
    pub(super) fn abandon(&self, ticket: u64) {
        if self.is_here() {
            self.book().abandon(ticket);
        }
    }

    /// The descriptor to sleep on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        if self.is_here() {
            self.sender().use_descriptor();
        }
        self.socket.as_fd()
    }
}

#[inline]
fn decode(bytes: crate::shm::Bytes<'_>) -> Result<(u64, Answer), Fault> {
    let mut one = [0; message::HEAD];
    if bytes.len() == one.len() {
        bytes.copy_to(&mut one);
        if let Some(ticket) = message::is_executed(&one) {
            return Ok((ticket, Answer::Executed { failures: Vec::new() }));
        }
    }
    Answer::decode(&bytes.to_vec())
}

/// Whether nothing comes after this.
fn is_end(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::PeerClosed | ErrorKind::PeerDied | ErrorKind::Fault(_))
}

/// What an execution of one session came to.
pub(super) fn executed(reply: Reply) -> Result<()> {
    match reply {
        Reply::Executed { .. } => Ok(()),
        _ => Err(unexpected()),
    }
}
