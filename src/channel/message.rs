//! Kinds of messages, and requests.

/// Names a request of one connection. A response under an id that was not asked for, or was answered
/// before, ends the connection at the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub(crate) u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A request that a peer made. Answer it with [`Sender::respond`](crate::Sender::respond).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What the response must carry.
    pub id: RequestId,
    /// The request's bytes.
    pub body: Vec<u8>,
}

/// What a received message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageKind {
    /// A plain message.
    Message,
    /// A request, to be answered under this id.
    Request(RequestId),
    /// The response to the request with this id.
    Response(RequestId),
    /// Tensors; see [`Receiver::recv_tensors`].
    Tensors,
}
