//! The kinds of messages, and requests with their ids.

use crate::channel::metadata::Metadata;
use crate::error::ErrorKind;

/// The id of a request on one connection.
///
/// A response ends the connection at the side that receives it, unless exactly one request with its id waits there.
///
/// # Examples
///
/// Responses may come in another order than their requests:
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let mut far = far.join().unwrap()?;
/// let (first, second) = (near.submit(b"1 + 1")?, near.submit(b"2 + 2")?);
/// let asked = [far.recv_request()?.unwrap(), far.recv_request()?.unwrap()];
/// assert_eq!(asked[1].id, second);
/// far.respond(second, b"4")?;
/// far.respond(first, b"2")?;
/// assert_eq!(near.wait(first)?, b"2");
/// assert_eq!(near.wait(second)?, b"4");
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub(crate) u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A request of the peer. [`Sender::respond`](crate::Sender::respond) answers it.
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let mut far = far.join().unwrap()?;
/// use slipring::message::Request;
///
/// let question = near.submit(b"hello")?;
/// let Request { id, mut body, .. } = far.recv_request()?.expect("a request");
/// body.make_ascii_uppercase();
/// far.respond(id, &body)?;
/// assert_eq!(near.wait(question)?, b"HELLO");
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The id that the response must carry.
    pub id: RequestId,
    /// The request's bytes.
    pub body: Vec<u8>,
    /// The values that the requesting side sent beside them.
    pub metadata: Metadata,
}

/// The kind of a received message.
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let mut far = far.join().unwrap()?;
/// use slipring::message::MessageKind;
///
/// near.send(b"hello")?;
/// near.submit(b"question")?;
/// let mut seen = Vec::new();
/// while seen.len() < 2 {
///     far.receiver().drain(16, |kind, bytes| seen.push((kind, bytes.len())))?;
/// }
/// assert_eq!(seen[0], (MessageKind::Message, 5));
/// assert!(matches!(seen[1], (MessageKind::Request(_), 8)));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageKind {
    /// A plain message.
    Message,
    /// A request. Its response carries this id.
    Request(RequestId),
    /// The response to the request with this id.
    Response(RequestId),
    /// Tensors; see [`Receiver::recv_tensors`](crate::Receiver::recv_tensors).
    Tensors,
    /// A request with tensors; see [`Receiver::recv_tensor_request`](crate::Receiver::recv_tensor_request). Its response
    /// carries this id.
    TensorRequest(RequestId),
    /// The response with tensors to the request with this id.
    TensorResponse(RequestId),
}

impl MessageKind {
    /// Returns whether a message of this kind has tensors.
    #[inline(always)]
    pub(crate) fn has_tensors(self) -> bool {
        matches!(self, Self::Tensors | Self::TensorRequest(_) | Self::TensorResponse(_))
    }

    /// Returns the request that a message of this kind answers.
    #[inline(always)]
    pub(crate) fn answers(self) -> Option<RequestId> {
        match self {
            Self::Response(id) | Self::TensorResponse(id) => Some(id),
            _ => None,
        }
    }

    /// Returns the error of a caller that receives messages of another kind.
    pub(crate) fn other_kind(self) -> ErrorKind {
        let (next, method) = match self {
            Self::Message => ("is a plain one", "`recv`"),
            Self::Request(_) => ("is a request", "`recv_request`"),
            Self::Response(_) => ("is a response without tensors", "`call` or `wait`"),
            Self::Tensors => ("has tensors", "`recv_tensor` or `recv_tensors`"),
            Self::TensorRequest(_) => ("is a request with tensors", "`recv_tensor_request`"),
            Self::TensorResponse(_) => {
                ("is a response with tensors", "`call_tensors` or `wait_tensors`")
            }
        };
        ErrorKind::OtherKind { next, method }
    }
}
