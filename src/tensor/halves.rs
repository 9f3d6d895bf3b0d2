//! Calls over the two halves of a connection, for a caller that keeps them apart: C. An id is a number there.
//!
//! [`Connection`](crate::Connection) has the same operations, and spans.

use std::time::Instant;

use crate::channel::{Metadata, Receiver, RequestId, Sender, TENSOR_REQUEST, TENSOR_RESPONSE};
use crate::error::{Error, ErrorKind, Result, TryRecvError, TrySendError};
use crate::patience::{RecvPatience, SendPatience};
use crate::tensor::exchange::{into_send_error, open_set};
use crate::tensor::set::TensorSet;

fn patience(deadline: Option<Instant>) -> RecvPatience {
    deadline.map_or(RecvPatience::None, RecvPatience::Until)
}

/// Sends a request. Returns its id.
///
/// # Errors
///
/// As [`Connection::submit`](crate::Connection::submit).
pub fn submit(
    (sender, receiver): (&mut Sender, &mut Receiver),
    body: &[u8],
    deadline: Instant,
) -> Result<u64> {
    let id = receiver.start_call()?;
    let sent = sender.send_request(id, (body, &Metadata::new()), deadline);
    if sent.is_err() {
        receiver.cancel_call(id);
    }
    sent.map(|()| id.0)
}

/// Sends a request with tensors. Returns its id.
///
/// # Errors
///
/// As [`Connection::submit_tensors`](crate::Connection::submit_tensors).
pub fn submit_tensors(
    (sender, receiver): (&mut Sender, &mut Receiver),
    tensors: &TensorSet,
    deadline: Instant,
) -> Result<u64> {
    let id = receiver.start_call()?;
    let until = SendPatience::Until(deadline);
    let sent = sender.put_tensors(TENSOR_REQUEST.of(id), tensors, until).map_err(into_send_error);
    if sent.is_err() {
        receiver.cancel_call(id);
    }
    sent.map(|()| id.0)
}

/// Waits for a response. Without a deadline it does not wait.
///
/// # Errors
///
/// As [`Connection::try_wait`](crate::Connection::try_wait).
pub fn wait(
    receiver: &mut Receiver,
    id: u64,
    deadline: Option<Instant>,
) -> Result<Vec<u8>, TryRecvError> {
    let response = receiver.response_with(RequestId(id), patience(deadline))?;
    let (body, _) = response.ok_or_else(|| Error::from(ErrorKind::PeerClosed))?;
    Ok(body)
}

/// Waits for a response with tensors. Without a deadline it does not wait.
///
/// # Errors
///
/// As [`Connection::try_wait_tensors`](crate::Connection::try_wait_tensors).
pub fn wait_tensors(
    receiver: &mut Receiver,
    id: u64,
    deadline: Option<Instant>,
) -> Result<TensorSet, TryRecvError> {
    receiver.open_response(RequestId(id), patience(deadline), open_set)
}

/// Forgets a request: its response is dropped when it comes.
pub fn abandon(receiver: &mut Receiver, id: u64) {
    receiver.abandon(RequestId(id));
}

/// Returns the number of an id.
pub fn number(id: RequestId) -> u64 {
    id.0
}

/// Returns the id with a number.
pub fn id(number: u64) -> RequestId {
    RequestId(number)
}

/// Answers a request.
///
/// # Errors
///
/// As [`Sender::try_respond`].
pub fn respond(
    sender: &mut Sender,
    id: u64,
    body: &[u8],
    patience: SendPatience,
) -> Result<(), TrySendError> {
    sender.put_response(RequestId(id), body, patience)
}

/// Answers a request with tensors.
///
/// # Errors
///
/// As [`Sender::try_respond_tensors`].
pub fn respond_tensors(
    sender: &mut Sender,
    id: u64,
    tensors: &TensorSet,
    patience: SendPatience,
) -> Result<(), TrySendError> {
    sender.put_tensors(TENSOR_RESPONSE.of(RequestId(id)), tensors, patience)
}
