//! A received message.

use crate::channel::{MessageKind, Metadata};
use crate::error::Result;
use crate::link::link::Link;
use crate::shm::Bytes;

/// A received message, in the peer's memory. See [`Link::on_message`](crate::Link::on_message).
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    kind: MessageKind,
    bytes: Bytes<'a>,
    metadata: &'a Metadata,
    /// The link whose peer may take the memory back.
    lender: Option<&'a Link>,
}

impl<'a> Message<'a> {
    #[inline(always)]
    pub(super) fn new(
        kind: MessageKind,
        (bytes, metadata): (Bytes<'a>, &'a Metadata),
        lender: Option<&'a Link>,
    ) -> Self {
        Self { kind, bytes, metadata, lender }
    }

    /// Returns a plain message without metadata, in memory that the peer does not take back.
    #[inline(always)]
    pub(super) fn plain(bytes: Bytes<'a>) -> Self {
        const NONE: &Metadata = &Metadata::new();
        Self { kind: MessageKind::Message, bytes, metadata: NONE, lender: None }
    }

    /// Checks that the peer has not taken the message's memory back. Then what the callback has read of it before is what
    /// the peer has sent. The memory of a message that is not longer than the peer's
    /// [`Options::inline_max`](crate::Options::inline_max) stays.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked): the bytes may have been those of any other message of
    /// the peer's process. The link ends with this error after the callback.
    #[inline]
    pub fn check(&self) -> Result<()> {
        self.lender.map_or(Ok(()), Link::check_loans)
    }

    /// Returns whether this is a plain message, or a request to [respond](crate::Link::respond) to.
    pub fn kind(&self) -> MessageKind {
        self.kind
    }

    /// Returns the message's bytes, to copy out or to read in place.
    pub fn bytes(&self) -> Bytes<'a> {
        self.bytes
    }

    /// Returns the named values that came with the message.
    pub fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// Returns the message's length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns a copy of the message, made in the callback's time: other links of the loop wait for it. A message of a GiB
    /// takes some 0.5 s. [`read_with`](crate::Link::read_with) hands over a copy that the loop makes in slices.
    ///
    /// # Panics
    ///
    /// If the allocator has no memory for it: in a callback the panic ends the link and nothing else.
    /// [`Bytes::try_to_vec`] of [`bytes`](Self::bytes) returns an error.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }
}
