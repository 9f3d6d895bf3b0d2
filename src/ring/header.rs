//! A record's header: one 64-bit word.
//!
//! ```text
//!   bit  0        8     11   16           24        32                          63
//!        │ kind   │flags│ 0  │ attachments │ version │ payload length in bytes   │
//! ```
//!
//! Only a parcel has attachments and a version.
//!
//! The word is zero where no record is published; `kind` is never zero in a record, so the low
//! half alone tells.

use crate::error::Fault;
use crate::ring::cursor::{BESIDE, SHORT};

/// What a record's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of the user.
    Message = 1,
    /// A request: its id (8 bytes), then the message.
    Request = 2,
    /// A response: the request's id (8 bytes), then the message.
    Response = 3,
    /// The writer has finished; no payload. Nothing follows.
    Close = 4,
    /// Runs the function that the reader registered under a token (4 bytes).
    Trigger = 5,
    /// Packets wait on the socket; no payload.
    Packets = 6,
    /// Memory that is enclosed, and its description.
    Parcel = 7,
}

/// The kinds of records that may have a payload, as bits.
const KINDS: u64 = 1 << Kind::Message as u64
    | 1 << Kind::Request as u64
    | 1 << Kind::Response as u64
    | 1 << Kind::Trigger as u64
    | 1 << Kind::Packets as u64;

/// More records follow directly behind this one, at the next multiple of 8.
const MORE: u64 = 1 << 8;
/// The message lies in a pool block; the record has its descriptor.
const POOLED: u64 = 1 << 9;
/// The payload follows the header directly, and the next record starts at the next multiple of 8.
const TIGHT: u64 = 1 << 10;

/// Payloads of these lengths in bytes make tight records: too long for one line with their header,
/// and short enough that whole lines around them would cost a stream much of its speed.
const TIGHT_LENGTHS: core::ops::RangeInclusive<u32> = SHORT as u32 + 1..=BESIDE as u32;
/// All bits that a header may have, whatever its kind.
const KNOWN: u64 = 0xFFFF_FFFF_0000_0000 | TIGHT | POOLED | MORE | 7;

/// Of a parcel: how many attachments it has, and the version of its description.
const ATTACHMENTS: u32 = 16;
const VERSION: u32 = 24;

/// A judged header. It stays one word: taken apart in memory it would be put together again by
/// loads that wait for several stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(u64);

impl Header {
    /// The header of a record that stands alone, with `len` payload bytes in the ring.
    #[inline(always)]
    pub(crate) fn new(kind: Kind, len: u32) -> Self {
        let tight = if TIGHT_LENGTHS.contains(&len) { TIGHT } else { 0 };
        Self(kind as u64 | tight | u64::from(len) << 32)
    }

    /// As [`new`](Self::new), of a record whose payload is the descriptor of a pool block.
    pub(crate) fn pooled(kind: Kind, len: u32) -> Self {
        Self(Self::new(kind, len).0 | POOLED)
    }

    /// The header of a message in the pool, of which nothing but a descriptor of 32 bytes is in the ring.
    pub(crate) const POOLED_MESSAGE: Self = Self(Kind::Message as u64 | POOLED | 32 << 32);

    /// The version of the descriptions of this library's parcels.
    pub(crate) const PARCEL_VERSION: u8 = 1;

    /// The header of a parcel.
    #[inline(always)]
    pub(crate) fn parcel(attachments: u8, len: u32) -> Self {
        let version = u64::from(Self::PARCEL_VERSION) << VERSION;
        Self(Self::new(Kind::Parcel, len).0 | u64::from(attachments) << ATTACHMENTS | version)
    }

    /// The header of a record that was reserved with this one and got a shorter payload. It keeps its
    /// rounding, so it needs no more room than was reserved.
    pub(crate) fn shortened(self, len: u32) -> Self {
        Self(self.0 & 0xFFFF_FFFF | u64::from(len) << 32)
    }

    /// The same header, followed by more records of its batch.
    #[inline(always)]
    pub(crate) fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    #[inline(always)]
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// Judges a word that a peer wrote, and that is not zero.
    ///
    /// # Errors
    ///
    /// [`Fault::RecordHeader`]: no such kind, or a bit that must be zero is not.
    #[inline(always)]
    pub(crate) fn from_word(word: u64) -> Result<Self, Fault> {
        let is_known = word & !KNOWN == 0 && KINDS >> (word & 7) & 1 != 0;
        if is_known { Ok(Self(word)) } else { Self::from_rare(word) }
    }

    /// The header in a word that a peer wrote, if it is one of a plain message whose payload lies in the
    /// ring: what [`from_word`](Self::from_word) gives for it, sooner.
    #[inline(always)]
    pub(crate) fn plain_from_word(word: u64) -> Option<Self> {
        let low = word & 0xFFFF_FFFF & !(TIGHT | MORE);
        (low == Kind::Message as u64).then_some(Self(word))
    }

    /// Whether this is a plain message that shares its header's line, and ends its batch if it is of one.
    #[inline(always)]
    pub(crate) fn is_line(self) -> bool {
        // With the low half above the length, one comparison judges both.
        let len = self.0.rotate_left(32).wrapping_sub((Kind::Message as u64) << 32);
        len <= SHORT
    }

    /// Whether this is a tight plain message that is of no batch, or ends it.
    #[inline(always)]
    pub(crate) fn is_tight_message(self) -> bool {
        self.0 & 0xFFFF_FFFF == Kind::Message as u64 | TIGHT
    }

    fn from_rare(word: u64) -> Result<Self, Fault> {
        const PARCEL: u64 = KNOWN & !POOLED | 0xFF << ATTACHMENTS | 0xFF << VERSION;
        let is_parcel = word & 0xFF == Kind::Parcel as u64 && word & !PARCEL == 0;
        if is_parcel || word == Kind::Close as u64 {
            Ok(Self(word))
        } else {
            Err(Fault::RecordHeader { header: word })
        }
    }

    /// What the payload is.
    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        match self.0 & 7 {
            1 => Kind::Message,
            2 => Kind::Request,
            3 => Kind::Response,
            5 => Kind::Trigger,
            6 => Kind::Packets,
            7 => Kind::Parcel,
            _ => Kind::Close,
        }
    }

    /// Whether this is a plain message whose payload lies in the ring: nearly every record.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & (POOLED | 0xFF) == Kind::Message as u64
    }

    /// Whether more records of its batch follow directly.
    #[inline(always)]
    pub(crate) fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Whether the record takes no more bytes than it needs.
    #[inline(always)]
    pub(crate) fn is_tight(self) -> bool {
        self.0 & TIGHT != 0
    }

    /// Whether the payload is the descriptor of a pool block.
    #[inline(always)]
    pub(crate) fn is_pooled(self) -> bool {
        self.0 & POOLED != 0
    }

    /// How many attachments a parcel has.
    #[inline(always)]
    pub(crate) fn attachments(self) -> usize {
        (self.0 >> ATTACHMENTS & 0xFF) as usize
    }

    /// The version of a parcel's description.
    #[inline(always)]
    pub(crate) fn version(self) -> u8 {
        (self.0 >> VERSION) as u8
    }

    /// Payload bytes in the ring.
    #[inline(always)]
    pub(crate) fn len(self) -> u64 {
        self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_survives_its_word() {
        for kind in [Kind::Message, Kind::Request, Kind::Response, Kind::Trigger] {
            for len in [0, 1, 48, 57, 512, 513, u32::MAX] {
                let (plain, pooled) = (Header::new(kind, len), Header::pooled(kind, len));
                for header in [plain, pooled, plain.with_more(), pooled.with_more()] {
                    assert_ne!(header.to_word() as u32, 0, "the low half marks a record");
                    assert_eq!(Header::from_word(header.to_word()), Ok(header));
                    assert_eq!((header.kind(), header.len()), (kind, len.into()));
                }
                assert!(plain.with_more().more() && !plain.more());
                assert!(pooled.is_pooled() && !plain.is_pooled());
                for header in [plain, pooled, plain.with_more(), pooled.with_more()] {
                    let sooner = Header::plain_from_word(header.to_word());
                    assert_eq!(sooner.is_some(), header.is_plain());
                    let is_alone = header.is_plain() && !header.more();
                    assert_eq!(header.is_line(), is_alone && u64::from(len) <= SHORT);
                    assert_eq!(header.is_tight_message(), is_alone && header.is_tight());
                }
                assert_eq!(plain.with_more().is_plain(), kind == Kind::Message);
                assert!(!pooled.is_plain());
            }
        }
    }

    #[test]
    fn a_lying_header_is_a_fault() {
        let close = Header::new(Kind::Close, 0).to_word();
        assert_eq!(Header::from_word(close).map(Header::kind), Ok(Kind::Close));
        for bit in 11..32 {
            assert!(Header::from_word(1 | 1 << bit).is_err(), "bit {bit} must be zero");
            assert!(Header::plain_from_word(1 | 1 << bit).is_none(), "bit {bit}");
        }
        let parcel = Header::parcel(3, 100);
        assert_eq!(Header::from_word(parcel.to_word()), Ok(parcel));
        assert_eq!((parcel.kind(), parcel.attachments(), parcel.version()), (Kind::Parcel, 3, 1));
        assert!(Header::from_word(parcel.to_word() | POOLED).is_err());
        for bit in 11..16 {
            assert!(Header::from_word(parcel.to_word() | 1 << bit).is_err(), "bit {bit}");
        }
        for kind in (8..=255).chain([0]) {
            assert!(Header::from_word(kind | 8 << 32).is_err(), "kind {kind} is none");
            assert!(Header::plain_from_word(kind | 8 << 32).is_none(), "kind {kind}");
        }
        for word in [close | MORE, close | POOLED, close | TIGHT, close | 1 << 32] {
            assert!(Header::from_word(word).is_err(), "a close has neither flags nor payload");
        }
    }
}
