//! Executions under way.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::commit::client::link::{ClientLink, Patience, executed, unexpected};
use crate::commit::client::state::Reply;
use crate::error::{ErrorKind, Result};

/// The outcome of each session's execution, with the session's index.
pub type Outcomes = Vec<(u32, Result<()>)>;

/// An execution under way. Dropping this does not cancel it.
///
/// # In an event loop
///
/// The descriptor is the connection's: all executions of a client have the same. Ask for the descriptor first, then call
/// [`try_wait`](Self::try_wait). While that returns `None`, the descriptor becomes readable when an answer has come: call
/// `try_wait` of every execution under way each time. The descriptor stays silent about answers that another thread
/// receives while it waits for one of the same client. So no other thread should wait for answers of a client whose
/// descriptor is used.
#[derive(Debug)]
pub struct Execution {
    ticket: Ticket,
}

impl Execution {
    pub(super) fn new(link: Arc<ClientLink>, ticket: u64) -> Self {
        Self { ticket: Ticket { link, ticket, taken: false } }
    }

    /// Waits for the end of the execution, as long as the server lives. The outputs can be read then.
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
    /// As for [`wait`](Self::wait), and [`ErrorKind::TimedOut`]: the execution goes on, and the caller can wait once
    /// more.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.ticket.wait_timeout(timeout).and_then(executed)
    }

    /// Returns the outcome, or `None` while the execution is under way. After `Some` the outcome is taken.
    pub fn try_wait(&mut self) -> Option<Result<()>> {
        Some(self.ticket.try_wait()?.and_then(executed))
    }
}

impl AsFd for Execution {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ticket.link.fd()
    }
}

/// Executions of all committed sessions of a model, under way. Dropping this does not cancel them.
#[derive(Debug)]
pub struct Executions {
    ticket: Ticket,
    sessions: Vec<u32>,
}

impl Executions {
    pub(super) fn new(link: Arc<ClientLink>, ticket: u64, sessions: Vec<u32>) -> Self {
        Self { ticket: Ticket { link, ticket, taken: false }, sessions }
    }

    /// Waits for the end of all executions. Returns the outcome of each session, ascending.
    ///
    /// # Errors
    ///
    /// The error that the connection ended with.
    pub fn wait(mut self) -> Result<Outcomes> {
        let reply = self.ticket.wait()?;
        self.outcomes(reply)
    }

    /// As [`wait`](Self::wait), for this long at most.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait), and [`ErrorKind::TimedOut`]: the executions go on, and the caller can wait once more.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Outcomes> {
        let reply = self.ticket.wait_timeout(timeout)?;
        self.outcomes(reply)
    }

    /// Returns the outcomes, or `None` while an execution is under way.
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
        self.ticket.link.fd()
    }
}

/// A request whose outcome nobody has taken.
#[derive(Debug)]
struct Ticket {
    link: Arc<ClientLink>,
    ticket: u64,
    /// The user has the outcome.
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
        let waited = self.link.wait(self.ticket, patience).transpose()?;
        let is_late = |kind: &ErrorKind| matches!(kind, ErrorKind::TimedOut { .. });
        self.taken = !waited.as_ref().is_err_and(|error| is_late(error.kind()));
        Some(waited)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.taken {
            self.link.abandon(self.ticket);
        }
    }
}
