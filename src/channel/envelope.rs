//! The envelope of a record: its kind, and what stands between the header and the user's bytes.
//!
//! ```text
//!   header │ id of a request or response (8 bytes) │ metadata (a multiple of 8 bytes) │ message, descriptor or attachments
//! ```

use crate::channel::loan_descriptor as pooled;
use crate::channel::message::RequestId;
use crate::channel::metadata::Metadata;
use crate::ring::{Header, Kind};

/// The kind of a record, and what stands in front of the user's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<'a> {
    pub(crate) kind: Kind,
    /// The id of a request or response: 8 bytes, little-endian. A message has none.
    pub(crate) id: Option<u64>,
    /// The section of the metadata. It is empty if there is none.
    pub(crate) metadata: &'a [u8],
    /// Of tensors: the description lies in the last attachment.
    pub(crate) is_long: bool,
}

/// The envelope of a message without metadata, which takes no bytes.
pub(crate) const PLAIN: Envelope<'static> = Envelope::new(Kind::Message);

/// The envelope of tensors without metadata, which takes no bytes.
pub(crate) const PLAIN_TENSORS: Envelope<'static> = Envelope::new(Kind::Tensors);

/// The envelope of a request with tensors.
pub(crate) const TENSOR_REQUEST: Envelope<'static> = Envelope::new(Kind::TensorRequest);

/// The envelope of a response with tensors.
pub(crate) const TENSOR_RESPONSE: Envelope<'static> = Envelope::new(Kind::TensorResponse);

impl Envelope<'static> {
    /// Returns the envelope of a record without an id and without metadata.
    pub(crate) const fn new(kind: Kind) -> Self {
        Self { kind, id: None, metadata: &[], is_long: false }
    }
}

impl<'a> Envelope<'a> {
    /// Returns the same envelope, of a request or response with this id.
    #[inline(always)]
    pub(crate) fn of(self, id: RequestId) -> Self {
        Self { id: Some(id.0), ..self }
    }

    /// Returns the same envelope, with metadata.
    #[inline]
    pub(crate) fn with<'b>(self, metadata: &'b Metadata) -> Envelope<'b>
    where
        'a: 'b,
    {
        Envelope { metadata: metadata.section(), ..self }
    }

    /// Returns the same envelope, of tensors whose description lies in the last attachment.
    pub(crate) fn with_long_description(self) -> Self {
        Self { is_long: true, ..self }
    }

    /// Returns the bytes that the envelope takes in front of the user's bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        (if self.id.is_some() { 8 } else { 0 }) + self.metadata.len()
    }

    /// Returns whether the envelope takes no bytes.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.id.is_none() && self.metadata.is_empty()
    }

    /// Marks a header of the record's kind, if the record has metadata.
    #[inline(always)]
    pub(crate) fn mark(&self, header: Header) -> Header {
        if self.metadata.is_empty() { header } else { header.with_metadata() }
    }

    /// Returns the header of a record with a message of `len` bytes.
    #[inline(always)]
    pub(crate) fn header(&self, len: usize) -> Header {
        self.mark(Header::new(self.kind, (self.len() + len) as u32))
    }

    /// Returns the header of a record that carries a descriptor instead of the message.
    #[inline(always)]
    pub(crate) fn pooled(&self) -> Header {
        self.mark(Header::pooled(self.kind, (self.len() + pooled::LEN) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_message_in_the_pool_has_the_header_that_receivers_compare_with() {
        assert_eq!(PLAIN.pooled(), Header::POOLED_MESSAGE);
    }
}
