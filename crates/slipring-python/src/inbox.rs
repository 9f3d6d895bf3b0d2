//! The receiving half of a connection: the next message, of bytes or of tensors.

use std::time::Instant;

use pyo3::prelude::*;
use slipring::error::TryRecvError;
use slipring::message::MessageKind;
use slipring::{ErrorKind, Receiver, TensorSet};

use crate::buffer::LONG;
use crate::error::raise;
use crate::message::Message;

/// The receiving half, and what it has taken and not returned.
pub struct Inbox {
    receiver: Receiver,
    /// A set of tensors that a caller did not want. It is the next message.
    left: Option<TensorSet>,
}

/// How many tensors a receive wants in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    One,
    Any,
}

/// What a receive found. `None`: the peer has closed.
pub type Found<T> = Option<T>;

/// The answer of a receive that does not wait.
pub enum Next {
    Here(Found<Message>),
    /// A message is here whose copy takes long enough to let other threads run.
    Long,
    Nothing,
}

impl Inbox {
    /// Returns the receiving half, and the set that it has left.
    pub fn new(receiver: Receiver, left: Option<TensorSet>) -> Self {
        Self { receiver, left }
    }

    /// Returns both.
    pub fn into_parts(self) -> (Receiver, Option<TensorSet>) {
        (self.receiver, self.left)
    }

    /// Returns the receiving half, for messages without tensors.
    ///
    /// # Errors
    ///
    /// `OtherKind`: the next message is a set of tensors that a caller did not want.
    pub fn receiver(&mut self) -> Result<&mut Receiver, slipring::Error> {
        if self.left.is_some() { Err(has_tensors()) } else { Ok(&mut self.receiver) }
    }

    /// Returns the next message if it is here and not long.
    #[inline]
    pub fn try_message(&mut self) -> PyResult<Next> {
        match self.receiver().map_err(raise)?.try_peek() {
            Err(TryRecvError::Empty) => Ok(Next::Nothing),
            Ok(Some(received)) if received.kind() == MessageKind::Message => {
                if received.len() >= LONG {
                    return Ok(Next::Long);
                }
                let body = received.bytes().try_to_vec().map_err(raise)?;
                let metadata = received.metadata().clone();
                received.release().map_err(raise)?;
                Ok(Next::Here(Some(Message::new((body, metadata)))))
            }
            // It may be a response that nobody waits for.
            Ok(Some(_)) => self.try_long(),
            Ok(None) => Ok(Next::Here(None)),
            Err(TryRecvError::Failed(error)) => Err(raise(error)),
        }
    }

    /// Returns the next message, however long it is, if it is here.
    #[cold]
    pub fn try_long(&mut self) -> PyResult<Next> {
        match self.receiver.try_recv_with() {
            Ok(found) => Ok(Next::Here(found.map(Message::new))),
            Err(TryRecvError::Empty) => Ok(Next::Nothing),
            Err(TryRecvError::Failed(error)) => Err(raise(error)),
        }
    }

    /// Returns the next tensors if they are here. `None`: the caller waits.
    pub fn try_tensors(&mut self, count: Count) -> PyResult<Option<Found<TensorSet>>> {
        let next = match self.left.take() {
            Some(set) => Some(Some(set)),
            None => nothing_yet(self.receiver.try_recv_tensors())?,
        };
        next.map(|found| self.wanted(found, count)).transpose().map_err(raise)
    }

    /// Waits for the next tensors until a time.
    pub fn wait_tensors(
        &mut self,
        count: Count,
        until: Instant,
    ) -> Result<Found<TensorSet>, slipring::Error> {
        let found = match self.left.take() {
            Some(set) => Some(set),
            None => self.receiver.recv_tensors_deadline(until)?,
        };
        self.wanted(found, count)
    }

    /// Returns a set that the caller wants. Another one stays the next message.
    fn wanted(
        &mut self,
        found: Found<TensorSet>,
        count: Count,
    ) -> Result<Found<TensorSet>, slipring::Error> {
        match found {
            Some(set) if count == Count::One && set.len() != 1 => {
                self.left = Some(set);
                let next = "has more tensors than one, or none";
                Err(ErrorKind::OtherKind { next, method: "`recv_tensors`" }.into())
            }
            found => Ok(found),
        }
    }
}

/// Returns `None` if nothing has arrived.
fn nothing_yet<T>(answer: Result<Found<T>, TryRecvError>) -> PyResult<Option<Found<T>>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Failed(error)) => Err(raise(error)),
    }
}

/// Returns the error of a receive of bytes where the next message is a set of tensors.
pub fn has_tensors() -> slipring::Error {
    let (next, method) = ("has tensors", "`recv_tensor` or `recv_tensors`");
    ErrorKind::OtherKind { next, method }.into()
}
