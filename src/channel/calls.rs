//! Requests in flight: which responses may come. No I/O.

use std::collections::HashSet;

use crate::channel::message::RequestId;
use crate::error::{ErrorKind, Fault, Result};

/// Requests that may wait for their response at once.
const LIMIT: usize = 4096;

/// The requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Ids are never used twice; the first is 1.
    last: u64,
    /// Made, and somebody will ask for the response.
    made: HashSet<u64>,
    /// Made, and nobody will.
    abandoned: HashSet<u64>,
    /// Answered, the response set aside.
    answered: HashSet<u64>,
}

impl Calls {
    /// A fresh id.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CallsInFlight`]: too many requests wait for their response.
    pub(crate) fn make(&mut self) -> Result<RequestId> {
        let calls = self.made.len() + self.abandoned.len();
        if calls >= LIMIT {
            return Err(ErrorKind::CallsInFlight { calls, limit: LIMIT }.into());
        }
        self.last += 1;
        self.made.insert(self.last);
        Ok(RequestId(self.last))
    }

    /// The request was never sent.
    pub(crate) fn unmake(&mut self, id: RequestId) {
        self.made.remove(&id.0);
    }

    /// Nobody will ask for the response any more.
    pub(crate) fn abandon(&mut self, id: RequestId) {
        if self.made.remove(&id.0) {
            self.abandoned.insert(id.0);
        }
    }

    /// Whether the response may be asked for.
    pub(crate) fn is_made(&self, id: RequestId) -> bool {
        self.made.contains(&id.0) || self.answered.contains(&id.0)
    }

    /// A response came. `false`: nobody wants it.
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

    /// The response was given to the user.
    pub(crate) fn finish(&mut self, id: RequestId) {
        self.answered.remove(&id.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_comes_once_and_only_to_a_request() {
        let mut calls = Calls::default();
        let (first, second) = (calls.make().unwrap(), calls.make().unwrap());
        assert_eq!(calls.answered(first), Ok(true));
        assert_eq!(calls.answered(first), Err(Fault::UnknownRequest { id: 1 }));
        calls.abandon(second);
        assert_eq!(calls.answered(second), Ok(false));
        for id in [0, 3, u64::MAX] {
            assert!(calls.answered(RequestId(id)).is_err());
        }
        calls.finish(first);
        assert!(!calls.is_made(first));
    }

    #[test]
    fn requests_in_flight_are_bounded() {
        let mut calls = Calls::default();
        let ids: Vec<_> = (0..LIMIT).map(|_| calls.make().unwrap()).collect();
        assert!(calls.make().is_err());
        calls.abandon(ids[0]);
        assert!(calls.make().is_err(), "an abandoned request still waits for its response");
        calls.answered(ids[0]).unwrap();
        assert!(calls.make().is_ok());
    }
}
