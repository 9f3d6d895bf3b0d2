//! Executions that somebody may wait for.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::commit::book::Reply;
use crate::commit::desk::{Patience, Shared, executed, unexpected};
use crate::error::{ErrorKind, Result};

/// What came of each session: its index, and whether its execution went well.
pub type Outcomes = Vec<(u32, Result<()>)>;

/// An execution that was started. Dropping it does not cancel it.
///
/// # In an event loop
///
/// Its descriptor is the connection's: one for all executions of a client. Ask for it, then call
/// [`try_wait`](Self::try_wait); as long as that gives `None`, the descriptor becomes readable when an answer has come.
/// Do the same each time it is readable, for every execution that is waited for. It stays silent about answers that
/// another thread receives: one that waits for something of the same client, and is not woken by the descriptor. Whoever
/// sleeps on it should be the client's only one to wait.
#[derive(Debug)]
pub struct Execution {
    ticket: Ticket,
}

impl Execution {
    pub(super) fn new(shared: Arc<Shared>, ticket: u64) -> Self {
        Self { ticket: Ticket { shared, ticket, taken: false } }
    }

    /// Waits until it is done, as long as the service lives. What the service wrote can be read then.
    ///
    /// # Errors
    ///
    /// As for [`Session::execute`](crate::commit::Session::execute).
    pub fn wait(mut self) -> Result<()> {
        self.ticket.wait().and_then(executed)
    }

    /// As [`wait`](Self::wait), for this long at most.
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::TimedOut`]: it goes on, and can be waited for again.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.ticket.wait_timeout(timeout).and_then(executed)
    }

    /// As [`wait`](Self::wait), without waiting. `None`: it is not done. After `Some` it is not to be asked again.
    pub fn try_wait(&mut self) -> Option<Result<()>> {
        Some(self.ticket.try_wait()?.and_then(executed))
    }
}

impl AsFd for Execution {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ticket.shared.fd()
    }
}

/// Executions of all committed sessions of a model, started together.
#[derive(Debug)]
pub struct Executions {
    ticket: Ticket,
    sessions: Vec<u32>,
}

impl Executions {
    pub(super) fn new(shared: Arc<Shared>, ticket: u64, sessions: Vec<u32>) -> Self {
        Self { ticket: Ticket { shared, ticket, taken: false }, sessions }
    }

    /// Waits until all are done: what came of each session, ascending.
    ///
    /// # Errors
    ///
    /// The end of the connection.
    pub fn wait(mut self) -> Result<Outcomes> {
        let reply = self.ticket.wait()?;
        self.outcomes(reply)
    }

    /// As [`wait`](Self::wait), for this long at most.
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::TimedOut`]: they go on, and can be waited for again.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Outcomes> {
        let reply = self.ticket.wait_timeout(timeout)?;
        self.outcomes(reply)
    }

    /// As [`wait`](Self::wait), without waiting. `None`: not all are done.
    pub fn try_wait(&mut self) -> Option<Result<Outcomes>> {
        let reply = self.ticket.try_wait()?;
        Some(reply.and_then(|reply| self.outcomes(reply)))
    }

    fn outcomes(&self, reply: Reply) -> Result<Outcomes> {
        let Reply::Executed { failures } = reply else { return Err(unexpected()) };
        let mut failures = failures.into_iter().peekable();
        let mut outcome = |at: u32| match failures.next_if(|(failed, _)| *failed == at) {
            Some((_, fault)) => Err(fault.into()),
            None => Ok(()),
        };
        Ok((0..).zip(&self.sessions).map(|(at, session)| (*session, outcome(at))).collect())
    }
}

impl AsFd for Executions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ticket.shared.fd()
    }
}

/// An answer that is to come.
#[derive(Debug)]
struct Ticket {
    shared: Arc<Shared>,
    ticket: u64,
    /// It was given to the user.
    taken: bool,
}

impl Ticket {
    fn wait(&mut self) -> Result<Reply> {
        self.wait_with(Patience::Forever).unwrap_or_else(|| Err(unexpected()))
    }

    fn wait_timeout(&mut self, timeout: Duration) -> Result<Reply> {
        let patience = match Instant::now().checked_add(timeout) {
            Some(deadline) => Patience::Until(deadline),
            None => Patience::Forever,
        };
        self.wait_with(patience).unwrap_or_else(|| Err(unexpected()))
    }

    fn try_wait(&mut self) -> Option<Result<Reply>> {
        self.wait_with(Patience::None)
    }

    fn wait_with(&mut self, patience: Patience) -> Option<Result<Reply>> {
        let waited = self.shared.wait(self.ticket, patience).transpose()?;
        let late = |kind: &ErrorKind| matches!(kind, ErrorKind::TimedOut { .. });
        self.taken = !waited.as_ref().is_err_and(|error| late(error.kind()));
        Some(waited)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.taken {
            self.shared.abandon(self.ticket);
        }
    }
}
