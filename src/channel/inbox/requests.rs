//! Requests, as the receiver takes them.

use std::time::Instant;

use crate::channel::backlog::KeptMessage;
use crate::channel::inbox::awaited::Awaited;
use crate::channel::inbox::receiver::{Receiver, into_error};
use crate::channel::message::{MessageKind, Request};
use crate::channel::metadata::Metadata;
use crate::channel::pipeline::REQUESTS;
use crate::error::{Result, TryRecvError};
use crate::patience::RecvPatience;

impl Receiver {
    /// Receives the next request. `None`: the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    #[inline]
    pub fn recv_request(&mut self) -> Result<Option<Request>> {
        self.request(RecvPatience::Forever).map_err(into_error)
    }

    /// As [`recv_request`](Self::recv_request), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), and as [`recv`](Self::recv).
    pub fn recv_request_deadline(&mut self, deadline: Instant) -> Result<Option<Request>> {
        self.request(RecvPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`recv_request`](Self::recv_request), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    pub fn try_recv_request(&mut self) -> Result<Option<Request>, TryRecvError> {
        self.request(RecvPatience::None)
    }

    #[inline]
    fn request(&mut self, patience: RecvPatience) -> Result<Option<Request>, TryRecvError> {
        if let Some((MessageKind::Request(id), body)) =
            self.body_at_once(Awaited::Request, patience)?
        {
            return Ok(Some(Request { id, body, metadata: Metadata::new() }));
        }
        self.kept_request(patience)
    }

    #[cold]
    fn kept_request(&mut self, patience: RecvPatience) -> Result<Option<Request>, TryRecvError> {
        let kept = self.kept(Awaited::Request, patience, REQUESTS)?;
        Ok(kept.and_then(|KeptMessage { kind, body, metadata, .. }| match kind {
            MessageKind::Request(id) => Some(Request { id, body, metadata }),
            _ => None,
        }))
    }
}
