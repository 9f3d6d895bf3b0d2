//! The kinds of messages, and requests with their ids.

/// The id of a request on one connection.
///
/// A response ends the connection at the side that receives it, unless exactly one request with its id waits there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub(crate) u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A request of the peer. [`Sender::respond`](crate::Sender::respond) answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The id that the response must carry.
    pub id: RequestId,
    /// The request's bytes.
    pub body: Vec<u8>,
}

/// The kind of a received message.
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
}
