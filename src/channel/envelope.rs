//! The envelope of a record: its kind, and the id that stands between the header and the user's bytes.

use crate::channel::loan_descriptor as pooled;
use crate::ring::{Header, Kind};

/// The kind of a record, and the id in front of the user's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// The id of a request or response: 8 bytes, little-endian. A message has none.
    pub(crate) id: Option<u64>,
}

/// The envelope of a message, which takes no bytes.
pub(crate) const PLAIN: Envelope = Envelope { kind: Kind::Message, id: None };

impl Envelope {
    /// Returns the bytes that the envelope takes in front of the user's bytes.
    pub(crate) fn len(&self) -> usize {
        if self.id.is_some() { 8 } else { 0 }
    }

    /// Returns whether the envelope takes no bytes.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.id.is_none()
    }

    /// Returns the header of a record that carries a descriptor instead of the message.
    pub(crate) fn pooled(&self) -> Header {
        Header::pooled(self.kind, (self.len() + pooled::LEN) as u32)
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
