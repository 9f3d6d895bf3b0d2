//! What the threads of a client share: what goes, what comes, and who waits for it.
//!
//! Whoever waits receives, for all: one thread at a time takes the receiving half, and notes the answers in the
//! [book](crate::commit::book); the others sleep until theirs is noted, or until it is their turn. An execution takes the
//! lock twice: to ask, send and take the receiving half; and to note the answer and put the half back.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::commit::book::{Book, Place, Reply, What};
use crate::commit::message::{self, Answer, Passed, Request};
use crate::error::{CommitFault, Error, ErrorKind, Fault, Result};
use crate::shm::Bytes;
use crate::shm::fork::Generation;
use crate::transport::{LinkSocket, MessageKind, Receiver, Sender, TryRecvError, TrySendError};

/// A ticket that nobody has.
const NOBODY: u64 = 0;

#[derive(Debug)]
pub(super) struct Shared {
    desk: Mutex<Desk>,
    /// Something was noted, or a half was put back.
    noted: Condvar,
    socket: LinkSocket,
    generation: Generation,
}

/// What they have under one lock. The halves are where whoever takes them need not carry them.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) book: Book,
    /// `None`: somebody sends, and may have to wait for room.
    sender: Option<Box<Sender>>,
    /// `None`: somebody receives.
    receiver: Option<Box<Receiver>>,
    /// Threads that wait for what others do.
    sleepers: usize,
}

/// Something was asked for, and is to be sent.
pub(super) struct Asked<'a> {
    pub(super) desk: MutexGuard<'a, Desk>,
    pub(super) ticket: u64,
}

/// How long to wait for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as the service lives.
    Forever,
    Until(Instant),
    None,
}

impl Shared {
    pub(super) fn new(sender: Sender, receiver: Receiver, socket: LinkSocket) -> Result<Self> {
        let (sender, receiver) = (Some(Box::new(sender)), Some(Box::new(receiver)));
        let desk = Desk { book: Book::default(), sender, receiver, sleepers: 0 };
        let (desk, noted) = (Mutex::new(desk), Condvar::new());
        Ok(Self { desk, noted, socket, generation: Generation::current()? })
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        // Every step under the lock leaves the desk whole.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That this is the process that has connected, and that the service is there: gives the desk.
    pub(super) fn check(&self) -> Result<MutexGuard<'_, Desk>> {
        // First: a child may have inherited a lock that nobody will open.
        self.generation.check()?;
        let desk = self.desk();
        match &desk.book.over {
            Some(kind) => Err(kind.clone().into()),
            None => Ok(desk),
        }
    }

    pub(super) fn is_here(&self) -> bool {
        self.generation.is_current()
    }

    /// Asks, again if something that is still noted as busy may be free.
    #[inline]
    fn ask_with<T>(
        &self,
        mut ask: impl FnMut(&mut Book) -> Result<T>,
    ) -> Result<(MutexGuard<'_, Desk>, T)> {
        let mut desk = self.check()?;
        let asked = match ask(&mut desk.book) {
            Err(error) if *error.kind() == ErrorKind::Commit(CommitFault::Busy) => {
                // The answer that makes it free may have come, and nobody has looked.
                desk = self.poll(desk);
                ask(&mut desk.book)
            }
            asked => asked,
        };
        asked.map(|asked| (desk, asked))
    }

    /// Notes what is asked for.
    pub(super) fn ask(&self, mut what: impl FnMut(&mut Book) -> Result<What>) -> Result<Asked<'_>> {
        let (desk, ticket) = self.ask_with(|book| {
            let what = what(book)?;
            book.ask(what)
        })?;
        Ok(Asked { desk, ticket })
    }

    /// Sends an execution of one session.
    #[inline]
    pub(super) fn start(&self, place: Place) -> Result<Asked<'_>> {
        let (desk, (id, ticket)) = self.ask_with(|book| book.ask_one(place))?;
        let desk = self.send(desk, ticket, &message::execute_one(ticket, id))?;
        Ok(Asked { desk, ticket })
    }

    /// Executes one session, and waits for it.
    #[inline]
    pub(super) fn execute(&self, place: Place) -> Result<()> {
        let Asked { mut desk, ticket } = self.start(place)?;
        // It may have been answered while the message waited for room.
        if !desk.book.is_answered(ticket)
            && let Some(mut receiver) = desk.receiver.take()
        {
            drop(desk);
            // The usual answer needs no notes; any other is still the next one.
            let mut finished = false;
            if let Ok(Some(received)) = receiver.peek()
                && received.kind() == MessageKind::Message
                && message::is_executed(received.bytes()) == Some(ticket)
            {
                finished = received.release().is_ok();
            }
            desk = self.desk();
            desk.receiver = Some(receiver);
            if finished && desk.book.finish(ticket) {
                self.tell(&desk);
                return Ok(());
            }
        }
        executed(self.wait_long(desk, ticket)?)
    }

    /// Notes what has come.
    #[cold]
    pub(super) fn poll<'a>(&'a self, mut desk: MutexGuard<'a, Desk>) -> MutexGuard<'a, Desk> {
        if desk.book.over.is_none()
            && let Some(receiver) = desk.receiver.take()
        {
            drop(desk);
            desk = self.receive(receiver, NOBODY, Patience::None).0;
        }
        desk
    }

    /// Tells those who wait for what others do.
    #[inline]
    fn tell(&self, desk: &Desk) {
        if desk.sleepers > 0 {
            self.noted.notify_all();
        }
    }

    /// Sends what was asked for. If that cannot be, it was never asked.
    #[inline]
    pub(super) fn send<'a>(
        &'a self,
        mut desk: MutexGuard<'a, Desk>,
        ticket: u64,
        message: &[u8],
    ) -> Result<MutexGuard<'a, Desk>> {
        match desk.sender.as_mut().map(|sender| sender.try_send(message)) {
            Some(Ok(())) => Ok(desk),
            Some(Err(TrySendError::Failed(error))) => Err(self.unsent(desk, ticket, error)),
            Some(Err(TrySendError::Full { .. })) | None => {
                self.send_patiently(desk, ticket, |sender| sender.send(message))
            }
        }
    }

    #[cold]
    fn unsent(&self, mut desk: MutexGuard<'_, Desk>, ticket: u64, error: Error) -> Error {
        desk.book.unask(ticket);
        if is_end(error.kind()) {
            desk.book.over.get_or_insert(error.kind().clone());
            self.tell(&desk);
        }
        error
    }

    /// As [`send`](Self::send), without the lock.
    #[cold]
    pub(super) fn send_patiently<'a>(
        &'a self,
        mut desk: MutexGuard<'a, Desk>,
        ticket: u64,
        send: impl FnOnce(&mut Sender) -> Result<()>,
    ) -> Result<MutexGuard<'a, Desk>> {
        let mut sender = loop {
            match desk.sender.take() {
                Some(sender) => break sender,
                // Whoever has it waits for a while at most.
                None => {
                    desk.sleepers += 1;
                    desk = self.noted.wait(desk).unwrap_or_else(PoisonError::into_inner);
                    desk.sleepers -= 1;
                }
            }
        };
        drop(desk);
        let sent = send(&mut sender);
        let mut desk = self.desk();
        desk.sender = Some(sender);
        self.tell(&desk);
        match sent {
            Ok(()) => Ok(desk),
            Err(error) => Err(self.unsent(desk, ticket, error)),
        }
    }

    /// As [`send`](Self::send), after descriptors that the message names. Gives the ticket.
    pub(super) fn send_with(
        &self,
        asked: Asked<'_>,
        fds: &[BorrowedFd<'_>],
        request: impl FnOnce(Passed) -> Request,
    ) -> Result<u64> {
        let Asked { desk, ticket } = asked;
        let sent = self.send_patiently(desk, ticket, |sender| {
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
        });
        sent.map(|_| ticket)
    }

    /// Waits for the answer. `None`: it has not come yet.
    ///
    /// # Errors
    ///
    /// - What the service answers.
    /// - [`ErrorKind::TimedOut`]: the answer may still come.
    /// - The end of the connection.
    pub(super) fn wait(&self, ticket: u64, patience: Patience) -> Result<Option<Reply>> {
        self.generation.check()?;
        self.wait_from(self.desk(), ticket, patience)
    }

    /// As [`wait`](Self::wait), for as long as it takes, for an answer that may already be there.
    #[inline]
    pub(super) fn wait_long(&self, desk: MutexGuard<'_, Desk>, ticket: u64) -> Result<Reply> {
        self.wait_from(desk, ticket, Patience::Forever)?.ok_or_else(unexpected)
    }

    #[inline]
    fn wait_from<'a>(
        &'a self,
        mut desk: MutexGuard<'a, Desk>,
        ticket: u64,
        patience: Patience,
    ) -> Result<Option<Reply>> {
        let start = match patience {
            Patience::Until(_) => Some(Instant::now()),
            _ => None,
        };
        loop {
            if let Some(outcome) = desk.book.take(ticket) {
                return outcome.map(Some);
            }
            if let Some(receiver) = desk.receiver.take() {
                drop(desk);
                let (mut after, failed) = self.receive(receiver, ticket, patience);
                if let Some(outcome) = after.book.take(ticket) {
                    return outcome.map(Some);
                }
                match failed {
                    Some(TryRecvError::Failed(error)) => return Err(error),
                    _ => return Ok(None),
                }
            }
            let Some(slept) = self.sleep(desk, patience) else {
                return match (patience, start) {
                    (Patience::Until(_), Some(start)) => {
                        Err(ErrorKind::TimedOut { after: start.elapsed() }.into())
                    }
                    _ => Ok(None),
                };
            };
            desk = slept;
        }
    }

    /// Sleeps until something is noted. `None`: there is no more time.
    #[cold]
    fn sleep<'a>(
        &self,
        mut desk: MutexGuard<'a, Desk>,
        patience: Patience,
    ) -> Option<MutexGuard<'a, Desk>> {
        desk.sleepers += 1;
        let mut desk = match patience {
            Patience::Forever => self.noted.wait(desk).unwrap_or_else(PoisonError::into_inner),
            Patience::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    desk.sleepers -= 1;
                    return None;
                }
                let slept = self.noted.wait_timeout(desk, left);
                slept.unwrap_or_else(PoisonError::into_inner).0
            }
            Patience::None => {
                desk.sleepers -= 1;
                return None;
            }
        };
        desk.sleepers -= 1;
        Some(desk)
    }

    /// Receives for everybody until one answer is there. Gives the desk, and why nothing came.
    #[inline]
    fn receive(
        &self,
        mut receiver: Box<Receiver>,
        ticket: u64,
        patience: Patience,
    ) -> (MutexGuard<'_, Desk>, Option<TryRecvError>) {
        let (mut desk, failed) = loop {
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
                Err(TryRecvError::Failed(error)) if !goes_on(error.kind()) => Err(error),
                Err(other) => break (self.desk(), Some(other)),
            };
            let mut desk = self.desk();
            let noted = match answer {
                Ok(answer) => answer.and_then(|(ticket, answer)| desk.book.answer(ticket, answer)),
                Err(error) => {
                    desk.book.over.get_or_insert(error.kind().clone());
                    break (desk, None);
                }
            };
            if let Err(fault) = noted {
                let error = receiver.fail(fault);
                desk.book.over.get_or_insert(error.kind().clone());
                break (desk, None);
            }
            if desk.book.is_answered(ticket) {
                break (desk, None);
            }
            self.tell(&desk);
        };
        desk.receiver = Some(receiver);
        self.tell(&desk);
        (desk, failed)
    }

    /// Nobody waits for the answer any more.
    pub(super) fn abandon(&self, ticket: u64) {
        if self.is_here() {
            self.desk().book.abandon(ticket);
        }
    }

    /// The descriptor to sleep on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        if self.is_here() {
            self.socket.use_descriptor();
        }
        self.socket.as_fd()
    }
}

fn decode(bytes: Bytes<'_>) -> Result<(u64, Answer), Fault> {
    match message::is_executed(bytes) {
        Some(ticket) => Ok((ticket, Answer::Executed { failures: Vec::new() })),
        None => Answer::decode(&bytes.to_vec()),
    }
}

/// Whether a receive that ended with this may be followed by others.
fn goes_on(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::TimedOut { .. } | ErrorKind::Forked)
}

/// Whether nothing comes after this.
fn is_end(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::PeerClosed | ErrorKind::PeerDied | ErrorKind::Fault(_))
}

/// Nothing else is noted for what was asked.
pub(super) fn unexpected() -> Error {
    Fault::Field { field: "commit.act", value: 0 }.into()
}

/// What an execution of one session came to.
pub(super) fn executed(reply: Reply) -> Result<()> {
    match reply {
        Reply::Executed { .. } => Ok(()),
        _ => Err(unexpected()),
    }
}
