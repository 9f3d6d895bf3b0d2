//! The kinds of messages that a receive takes, and those that it must not pass over.

use crate::channel::message::{MessageKind, RequestId};
use crate::error::Result;

/// The message that a caller waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Awaited<'a> {
    Message,
    Request,
    Tensors,
    TensorRequest,
    Response(RequestId),
    TensorResponse(RequestId),
    /// The response to one of these requests, with tensors or without.
    AnyResponse(&'a [RequestId]),
}

impl Awaited<'_> {
    pub(super) fn takes(self, kind: MessageKind) -> bool {
        match self {
            Self::Message => kind == MessageKind::Message,
            Self::Request => matches!(kind, MessageKind::Request(_)),
            Self::Tensors => kind == MessageKind::Tensors,
            Self::TensorRequest => matches!(kind, MessageKind::TensorRequest(_)),
            Self::Response(id) => kind == MessageKind::Response(id),
            Self::TensorResponse(id) => kind == MessageKind::TensorResponse(id),
            Self::AnyResponse(ids) => kind.answers().is_some_and(|id| ids.contains(&id)),
        }
    }

    /// Returns whether the message answers the request that the caller waits for, but not as the caller takes it.
    pub(super) fn is_other_sort(self, kind: MessageKind) -> bool {
        match self {
            Self::Response(id) => kind == MessageKind::TensorResponse(id),
            Self::TensorResponse(id) => kind == MessageKind::Response(id),
            _ => false,
        }
    }

    /// Checks that the caller takes a message of this kind, or that the receiver may set it aside for a caller who will
    /// ask for it. A caller that only receives another kind may never ask: it would lose the message unseen.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherKind`](crate::ErrorKind::OtherKind): the caller receives the message by another method first.
    pub(super) fn check(self, kind: MessageKind) -> Result<()> {
        let waits_for_response =
            matches!(self, Self::Response(_) | Self::TensorResponse(_) | Self::AnyResponse(_));
        let is_for_later = kind.answers().is_some() || waits_for_response;
        if self.takes(kind) || is_for_later && !self.is_other_sort(kind) {
            return Ok(());
        }
        Err(kind.other_kind().into())
    }
}
