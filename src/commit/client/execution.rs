//! Executions under way.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::commit::client::link::{ClientLink, Patience, executed, unexpected};
use crate::commit::client::outcomes::Outcomes;
use crate::commit::client::state::Reply;
use crate::error::{CommitFault, ErrorKind, Result};

/// An execution under way: of one session, or of all committed sessions of a model. Dropping this does not cancel it, and
/// the session is busy until its end.
///
/// `T` is what a successful execution returns: nothing, or the outcome of each session.
///
/// # In an event loop
///
/// The descriptor is the connection's: all executions of a client have the same. Ask for the descriptor first, then call
/// [`try_wait`](Self::try_wait). While that returns `None`, the descriptor becomes readable when an answer has come: call
/// `try_wait` of every execution under way each time. The descriptor stays silent about answers that another thread
/// receives while it waits for one of the same client. So no other thread should wait for answers of a client whose
/// descriptor is used.
#[derive(Debug)]
#[must_use = "an execution is under way until one waits for its end"]
pub struct Execution<T = ()> {
    ticket: Ticket,
    /// The indexes of the sessions, if all of a model are executed.
    sessions: Vec<u32>,
    outcome: fn(&[u32], Reply) -> Result<T>,
}

impl Execution {
    pub(super) fn of_one(link: Arc<ClientLink>, ticket: u64) -> Self {
        let outcome = |_: &[u32], reply: Reply| executed(reply);
        Self { ticket: Ticket { link, ticket, taken: false }, sessions: Vec::new(), outcome }
    }
}

impl Execution<Outcomes> {
    pub(super) fn of_all(link: Arc<ClientLink>, ticket: u64, sessions: Vec<u32>) -> Self {
        Self { ticket: Ticket { link, ticket, taken: false }, sessions, outcome: outcomes }
    }
}

impl<T> Execution<T> {
    /// Waits for the end of the execution, as long as the server lives. The outputs can be read then.
    ///
    /// # Errors
    ///
    /// Of one session, as for [`Session::execute`](crate::commit::Session::execute). Of all sessions, the error that the
    /// connection ended with.
    pub fn wait(mut self) -> Result<T> {
        let reply = self.ticket.wait(Patience::Forever)?;
        (self.outcome)(&self.sessions, reply)
    }

    /// As [`wait`](Self::wait), until `deadline`.
    ///
    /// # Errors
    ///
    /// - As for [`wait`](Self::wait), and [`ErrorKind::TimedOut`]: the execution goes on, and the caller can wait once
    ///   more.
    /// - [`CommitFault::OutcomeTaken`]: the outcome was returned before.
    pub fn wait_deadline(&mut self, deadline: Instant) -> Result<T> {
        let reply = self.ticket.wait(Patience::Until(deadline))?;
        (self.outcome)(&self.sessions, reply)
    }

    /// Returns the outcome, or `None` while the execution is under way. The outcome is returned once: later calls return
    /// [`CommitFault::OutcomeTaken`].
    pub fn try_wait(&mut self) -> Option<Result<T>> {
        let reply = self.ticket.try_wait()?;
        Some(reply.and_then(|reply| (self.outcome)(&self.sessions, reply)))
    }
}

impl<T> AsFd for Execution<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ticket.link.fd()
    }
}

/// Returns the outcome of each of these sessions.
fn outcomes(sessions: &[u32], reply: Reply) -> Result<Outcomes> {
    let Reply::Executed { failures } = reply else { return Err(unexpected()) };
    let mut failures = failures.into_iter().peekable();
    let mut outcome = |at: u32| match failures.next_if(|(failed, _)| *failed == at) {
        Some((_, fault)) => Err(fault.into()),
        None => Ok(()),
    };
    Ok(Outcomes::new((0..).zip(sessions).map(|(at, session)| (*session, outcome(at)))))
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
    fn wait(&mut self, patience: Patience) -> Result<Reply> {
        self.wait_with(patience).unwrap_or_else(|| Err(unexpected()))
    }

    fn try_wait(&mut self) -> Option<Result<Reply>> {
        self.wait_with(Patience::None)
    }

    fn wait_with(&mut self, patience: Patience) -> Option<Result<Reply>> {
        if self.taken {
            return Some(Err(CommitFault::OutcomeTaken.into()));
        }
        let waited = self.link.wait(self.ticket, patience).transpose()?;
        let stays =
            |kind: &ErrorKind| matches!(kind, ErrorKind::TimedOut { .. } | ErrorKind::Forked);
        self.taken = !waited.as_ref().is_err_and(|error| stays(error.kind()));
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
