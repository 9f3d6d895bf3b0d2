//! A record's header: one 64-bit word.
//!
//! ```text
//!   bit  0        8        16                 32                                 63
//!        │ kind   │ flags  │ zero             │ payload length in bytes           │
//! ```
//!
//! The word is zero where no record is published; `kind` is never zero in a record, so the low
//! half alone tells.

use crate::error::Fault;

/// What a record's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of the user.
    Message,
    /// A request: its id (8 bytes), then the message.
    Request,
    /// A response: the request's id (8 bytes), then the message.
    Response,
    /// The writer has finished; no payload. Nothing follows.
    Close,
}

/// More records follow directly behind this one, at the next multiple of 8.
const MORE: u64 = 1 << 8;
/// The message lies in a pool block; the record has its descriptor.
const POOLED: u64 = 1 << 9;

/// A header, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) more: bool,
    pub(crate) pooled: bool,
    /// Payload bytes in the ring.
    pub(crate) len: u32,
}

impl Header {
    /// A header of a record that stands alone, its payload in the ring.
    pub(crate) fn new(kind: Kind, len: u32) -> Self {
        Self { kind, more: false, pooled: false, len }
    }

    #[inline(always)]
    pub(crate) fn to_word(self) -> u64 {
        let kind = match self.kind {
            Kind::Message => 1,
            Kind::Request => 2,
            Kind::Response => 3,
            Kind::Close => 4,
        };
        let more = if self.more { MORE } else { 0 };
        let pooled = if self.pooled { POOLED } else { 0 };
        kind | more | pooled | u64::from(self.len) << 32
    }

    /// Judges a word that a peer wrote, and that is not zero.
    ///
    /// # Errors
    ///
    /// [`Fault::RecordHeader`]: no such kind, or a bit that must be zero is not.
    #[inline(always)]
    pub(crate) fn from_word(word: u64) -> Result<Self, Fault> {
        let kind = match word & 0xFF {
            1 => Kind::Message,
            2 => Kind::Request,
            3 => Kind::Response,
            4 => Kind::Close,
            _ => return Err(Fault::RecordHeader { header: word }),
        };
        let flags = word & 0xFFFF_FF00;
        let header = Self {
            kind,
            more: flags & MORE != 0,
            pooled: flags & POOLED != 0,
            len: (word >> 32) as u32,
        };
        let closes_oddly = kind == Kind::Close && word != Header::new(Kind::Close, 0).to_word();
        if flags & !(MORE | POOLED) != 0 || closes_oddly {
            return Err(Fault::RecordHeader { header: word });
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_survives_its_word() {
        for kind in [Kind::Message, Kind::Request, Kind::Response] {
            for (more, pooled) in [(false, false), (true, false), (false, true), (true, true)] {
                for len in [0, 1, 48, u32::MAX] {
                    let header = Header { kind, more, pooled, len };
                    assert_ne!(header.to_word() as u32, 0, "the low half marks a record");
                    assert_eq!(Header::from_word(header.to_word()), Ok(header));
                }
            }
        }
    }

    #[test]
    fn a_lying_header_is_a_fault() {
        let close = Header::new(Kind::Close, 0).to_word();
        for bit in 10..32 {
            assert!(Header::from_word(1 | 1 << bit).is_err(), "bit {bit} must be zero");
        }
        for kind in (5..=255).chain([0]) {
            assert!(Header::from_word(kind | 8 << 32).is_err(), "kind {kind} is none");
        }
        for word in [close | MORE, close | POOLED, close | 1 << 32] {
            assert!(Header::from_word(word).is_err(), "a close has neither flags nor payload");
        }
    }
}
