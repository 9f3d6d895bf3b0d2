//! The requests in flight on one connection, and so the responses that may come. No I/O.
//!
//! ```text
//!   make ──► made ──answered──► answered ──finish──► (gone)
//!              └──abandon──► abandoned ──answered──► (gone)
//! ```
//!
//! 1. An id is used once. The first id is 1.
//! 2. At most 4096 requests are made or abandoned at a time.
//! 3. A response whose id is neither made nor abandoned is the peer's fault.

use std::collections::HashSet;

use crate::channel::message::RequestId;
use crate::error::{ErrorKind, Fault, Result};

/// The most requests that may wait for their responses at a time. A peer that never answers makes this side remember
/// no more than these ids.
pub(crate) const LIMIT: usize = 4096;

/// The requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// The last id that was used.
    last: u64,
    /// Requests whose response has not come and is wanted.
    made: HashSet<u64>,
    /// Requests whose response has not come and is not wanted.
    abandoned: HashSet<u64>,
    /// Requests whose response lies in the backlog.
    answered: HashSet<u64>,
}

impl Calls {
    /// Returns a fresh id.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CallsInFlight`]: 4096 requests wait for their responses.
    pub(crate) fn make(&mut self) -> Result<RequestId> {
        let calls = self.made.len() + self.abandoned.len();
        if calls >= LIMIT {
            return Err(ErrorKind::CallsInFlight { calls, limit: LIMIT }.into());
        }
        self.last += 1;
        self.made.insert(self.last);
        Ok(RequestId(self.last))
    }

    /// Forgets a request that was not sent.
    pub(crate) fn unmake(&mut self, id: RequestId) {
        self.made.remove(&id.0);
    }

    /// Marks a request whose response is not wanted.
    pub(crate) fn abandon(&mut self, id: RequestId) {
        if self.made.remove(&id.0) {
            self.abandoned.insert(id.0);
        }
    }

    /// Returns whether the caller may wait for the response.
    pub(crate) fn is_made(&self, id: RequestId) -> bool {
        self.made.contains(&id.0) || self.answered.contains(&id.0)
    }

    /// Records that the response has come. Returns `false` if it is not wanted.
    ///
    /// # Errors
    ///
    /// [`Fault::UnknownRequest`]: no request with this id waits for a response.
    pub(crate) fn answered(&mut self, id: RequestId) -> Result<bool, Fault> {
        if self.made.remove(&id.0) {
            self.answered.insert(id.0);
            Ok(true)
        } else if self.abandoned.remove(&id.0) {
            Ok(false)
        } else {
            Err(Fault::UnknownRequest { id: id.0 })
        }
    }

    /// Forgets a request whose response went to the caller.
    pub(crate) fn finish(&mut self, id: RequestId) {
        self.answered.remove(&id.0);
    }
}

#[cfg(test)]
mod tests;
