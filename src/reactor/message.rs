//! A received message.

use crate::channel::MessageKind;
use crate::shm::Bytes;

/// A received message, in the peer's memory. See [`Link::on_message`](crate::Link::on_message).
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    kind: MessageKind,
    bytes: Bytes<'a>,
}

impl<'a> Message<'a> {
    pub(super) fn new(kind: MessageKind, bytes: Bytes<'a>) -> Self {
        Self { kind, bytes }
    }

    /// Returns whether this is a plain message, or a request to [respond](crate::Link::respond) to.
    pub fn kind(&self) -> MessageKind {
        self.kind
    }

    /// Returns the message's bytes, to copy out or to read in place.
    pub fn bytes(&self) -> Bytes<'a> {
        self.bytes
    }

    /// Returns the message's length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns a copy of the message.
    ///
    /// # Panics
    ///
    /// If the allocator has no memory for it: in a callback the panic ends the link and nothing else.
    /// [`Bytes::try_to_vec`] of [`bytes`](Self::bytes) returns an error.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }
}
