//! The requests in flight on one connection, and so the responses that may come. No I/O.
//!
//! ```text
//!   make ──► made ──answered──► answered ──finish──► (gone)
//!              └──abandon──► abandoned ──answered──► (gone)
//!                                └──the 4097th──► forgotten
//! ```
//!
//! 1. An id is used once. The first id is 1.
//! 2. At most 4096 requests are made at a time, and the ids of the newest 4096 that were abandoned are remembered.
//! 3. A response to no request is the peer's fault. Responses to forgotten requests are told from it by their number and the
//!    newest of their ids.

use std::collections::{BTreeSet, VecDeque};

use crate::channel::message::RequestId;
use crate::channel::spans::{CallSpan, CallSpans};
use crate::error::{Error, ErrorKind, Fault, Result};

/// The most requests whose responses are wanted at a time, and the most ids of abandoned ones. A peer that never answers
/// makes this side remember no more than these.
pub(crate) const LIMIT: usize = 4096;

/// The requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// The last id that was used.
    last: u64,
    /// Requests whose response has not come and is wanted. Ids count up, so they are in order. Most are answered in this order.
    made: VecDeque<u64>,
    /// Requests whose response has not come and is not wanted.
    abandoned: BTreeSet<u64>,
    /// The number of abandoned requests whose ids are forgotten and whose responses have not come.
    forgotten: u64,
    /// The last id that was forgotten. Ids are abandoned in any order, but the oldest is forgotten first.
    last_forgotten: u64,
    /// Requests whose response lies in the backlog.
    answered: BTreeSet<u64>,
    /// The spans of requests whose response or error has not gone to the caller.
    spans: CallSpans,
}

impl Calls {
    /// Returns a fresh id.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CallsInFlight`]: the responses of 4096 requests are wanted.
    pub(crate) fn make(&mut self) -> Result<RequestId> {
        let calls = self.made.len();
        if calls >= LIMIT {
            return Err(ErrorKind::CallsInFlight { calls, limit: LIMIT }.into());
        }
        self.last += 1;
        self.made.push_back(self.last);
        Ok(RequestId(self.last))
    }

    /// Keeps the span of a request until the call ends.
    pub(crate) fn trace(&mut self, id: RequestId, span: CallSpan) {
        self.spans.insert(id, span);
    }

    /// Ends the span of a request to which no response comes any more.
    pub(crate) fn fail(&mut self, id: RequestId, error: &Error) {
        self.spans.end(id, Some(error));
    }

    /// Forgets a request that was not sent.
    pub(crate) fn unmake(&mut self, id: RequestId) {
        self.remove(id);
    }

    /// Marks a request whose response is not wanted. It is in flight no longer.
    pub(crate) fn abandon(&mut self, id: RequestId) {
        self.spans.abandon(id);
        if !self.remove(id) {
            return;
        }
        self.abandoned.insert(id.0);
        if self.abandoned.len() > LIMIT
            && let Some(oldest) = self.abandoned.pop_first()
        {
            self.forgotten += 1;
            self.last_forgotten = self.last_forgotten.max(oldest);
        }
    }

    /// Returns whether the caller may wait for the response.
    pub(crate) fn is_made(&self, id: RequestId) -> bool {
        self.made.binary_search(&id.0).is_ok() || self.answered.contains(&id.0)
    }

    /// Records that the response has come. Returns `false` if it is not wanted.
    ///
    /// # Errors
    ///
    /// [`Fault::UnknownRequest`]: no request with this id waits for a response.
    pub(crate) fn answered(&mut self, id: RequestId) -> Result<bool, Fault> {
        if self.remove(id) {
            self.answered.insert(id.0);
            Ok(true)
        } else if self.abandoned.remove(&id.0) {
            Ok(false)
        } else if self.forgotten > 0 && (1..=self.last_forgotten).contains(&id.0) {
            self.forgotten -= 1;
            Ok(false)
        } else {
            Err(Fault::UnknownRequest { id: id.0 })
        }
    }

    /// Records that the response has come and goes to the caller: [`answered`](Self::answered), and [`finish`](Self::finish).
    pub(crate) fn take(&mut self, id: RequestId) -> Result<bool, Fault> {
        if self.remove(id) {
            self.spans.end(id, None);
            return Ok(true);
        }
        self.answered(id)
    }

    /// Takes a request out of those whose response is wanted. Returns whether it was there.
    fn remove(&mut self, id: RequestId) -> bool {
        let at = self.made.binary_search(&id.0);
        at.is_ok_and(|at| self.made.remove(at).is_some())
    }

    /// Forgets a request whose response went to the caller, or why that could not be.
    pub(crate) fn finish(&mut self, id: RequestId, error: Option<&Error>) {
        self.answered.remove(&id.0);
        self.spans.end(id, error);
    }
}

#[cfg(test)]
mod tests;
