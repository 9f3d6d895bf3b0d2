//! What stands between a record's header and the user's bytes.

use crate::ring::{Header, Kind};
use crate::transport::pooled;

/// What a record says before the user's bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Envelope {
    pub(super) kind: Kind,
    /// The id of a request or response.
    pub(super) id: Option<u64>,
}

/// Nothing.
pub(super) const PLAIN: Envelope = Envelope { kind: Kind::Message, id: None };

impl Envelope {
    pub(super) fn len(&self) -> usize {
        if self.id.is_some() { 8 } else { 0 }
    }

    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        self.id.is_none()
    }

    /// The header of a record that carries a descriptor.
    pub(super) fn pooled(&self) -> Header {
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
