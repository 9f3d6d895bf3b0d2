//! What stands between a record's header and the user's bytes.

use crate::channel::loan_descriptor::{self as pooled};
use crate::ring::{Header, Kind};

/// What a record says before the user's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// The id of a request or response.
    pub(crate) id: Option<u64>,
}

/// Nothing.
pub(crate) const PLAIN: Envelope = Envelope { kind: Kind::Message, id: None };

impl Envelope {
    pub(crate) fn len(&self) -> usize {
        if self.id.is_some() { 8 } else { 0 }
    }

    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.id.is_none()
    }

    /// The header of a record that carries a descriptor.
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
