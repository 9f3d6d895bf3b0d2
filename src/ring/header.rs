//! A record's header: one 64-bit word.
//!
//! ```text
//!   bit  0        8     11   16           24        32                          63
//!        │ kind   │flags│ 0  │ attachments │ version │ payload length in bytes   │
//! ```
//!
//! Only a record of tensors has attachments and a version.
//!
//! The word is zero where no record is published. `kind` is never zero in a record, so the low half alone
//! tells whether there is one.

use crate::error::Fault;
use crate::ring::cursor::{BESIDE, SHORT};

/// The kind of a record's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of the user.
    Message = 1,
    /// A request: its id (8 bytes), then the message.
    Request = 2,
    /// A response: the request's id (8 bytes), then the message.
    Response = 3,
    /// The writer has finished. There is no payload, and no record follows.
    Close = 4,
    /// Runs the function that the reader has registered under a token (4 bytes).
    Trigger = 5,
    /// Packets wait on the socket. There is no payload.
    Packets = 6,
    /// The description of tensors, whose memory is attached.
    Tensors = 7,
    /// A request with tensors: its id (8 bytes), then as [`Tensors`](Self::Tensors).
    TensorRequest = 8,
    /// A response with tensors: the request's id (8 bytes), then as [`Tensors`](Self::Tensors).
    TensorResponse = 9,
    /// The next record lies in the writer's second ring. There is no payload.
    Moved = 10,
}

/// The kinds of records that may have a payload, but for those with tensors, as bits.
const KINDS: u64 = 1 << Kind::Message as u64
    | 1 << Kind::Request as u64
    | 1 << Kind::Response as u64
    | 1 << Kind::Trigger as u64
    | 1 << Kind::Packets as u64;

/// More records of the batch follow directly, at the next multiple of 8.
const MORE: u64 = 1 << 8;
/// The message lies in a block of the pool, and the record holds its descriptor. Of tensors: the description lies in the last
/// attachment.
const POOLED: u64 = 1 << 9;
/// The payload follows the header directly, and the next record starts at the next multiple of 8.
const TIGHT: u64 = 1 << 10;

/// The lengths in bytes of tight payloads: too long for one line with their header, and so short that whole
/// lines would slow a stream down noticeably.
const TIGHT_LENGTHS: core::ops::RangeInclusive<u32> = SHORT as u32 + 1..=BESIDE as u32;
/// The payload has metadata in front of the message.
const META: u64 = 1 << 11;
/// All bits that a header may have, whatever its kind.
const KNOWN: u64 = 0xFFFF_FFFF_0000_0000 | TIGHT | POOLED | MORE | 7;

/// The number of attachments of a message of tensors, and the version of its description.
const ATTACHMENTS: u32 = 16;
const VERSION: u32 = 24;

/// A checked header. It stays one word: if it were taken apart in memory, loads that put it together would
/// wait for several stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(u64);

impl Header {
    /// Returns the header of a record that stands alone, with `len` payload bytes in the ring.
    #[inline(always)]
    pub(crate) fn new(kind: Kind, len: u32) -> Self {
        let tight = if TIGHT_LENGTHS.contains(&len) { TIGHT } else { 0 };
        Self(kind as u64 | tight | u64::from(len) << 32)
    }

    /// Returns the header of a record whose payload is the descriptor of a pool block.
    #[inline(always)]
    pub(crate) fn pooled(kind: Kind, len: u32) -> Self {
        Self(Self::new(kind, len).0 | POOLED)
    }

    /// Returns the header of a message in the pool. The ring holds a descriptor of 32 bytes and nothing else
    /// of it.
    pub(crate) const POOLED_MESSAGE: Self = Self(Kind::Message as u64 | POOLED | 32 << 32);

    /// The header of a message without bytes.
    pub(crate) const EMPTY: Self = Self(Kind::Message as u64);

    /// The header of the record that the writer's second ring follows.
    pub(crate) const MOVED: Self = Self(Kind::Moved as u64);

    /// The version of the descriptions that this library writes.
    pub(crate) const TENSORS_VERSION: u8 = 1;

    /// Returns the header of a record of tensors.
    #[inline(always)]
    pub(crate) fn tensors(kind: Kind, attachments: u8, len: u32) -> Self {
        let version = u64::from(Self::TENSORS_VERSION) << VERSION;
        Self(Self::new(kind, len).0 | u64::from(attachments) << ATTACHMENTS | version)
    }

    /// Returns the same header, of a record of tensors whose description lies in its last attachment.
    #[inline(always)]
    pub(crate) fn with_long_description(self) -> Self {
        Self(self.0 | POOLED)
    }

    /// Returns the header of a record that was reserved with this one and got a shorter payload. It keeps the
    /// rounding, so it needs no more room than was reserved.
    pub(crate) fn shortened(self, len: u32) -> Self {
        Self(self.0 & 0xFFFF_FFFF | u64::from(len) << 32)
    }

    /// Returns the same header, of a record with metadata.
    #[inline(always)]
    pub(crate) fn with_metadata(self) -> Self {
        Self(self.0 | META)
    }

    /// Returns the same header, followed by more records of its batch.
    #[inline(always)]
    pub(crate) fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    #[inline(always)]
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// Returns the header in a word that [`to_word`](Self::to_word) has returned.
    pub(crate) fn of(word: u64) -> Self {
        Self(word)
    }

    /// Checks a word that a peer wrote and that is not zero.
    ///
    /// # Errors
    ///
    /// [`Fault::RecordHeader`]: the kind is unknown, or a bit is set that must be zero.
    #[inline(always)]
    pub(crate) fn from_word(word: u64) -> Result<Self, Fault> {
        let is_known = word & !KNOWN == 0 && KINDS >> (word & 7) & 1 != 0;
        if is_known { Ok(Self(word)) } else { Self::from_rare(word) }
    }

    /// Returns the header in a word that a peer wrote, if it is a plain message whose payload lies in the
    /// ring. The result is that of [`from_word`](Self::from_word), in less time.
    #[inline(always)]
    pub(crate) fn plain_from_word(word: u64) -> Option<Self> {
        let low = word & 0xFFFF_FFFF & !(TIGHT | MORE);
        (low == Kind::Message as u64).then_some(Self(word))
    }

    /// Returns the header in a word that a peer wrote, if it is a message of one tensor without metadata that stands alone, whose
    /// payload follows the header directly. The result is that of [`from_word`](Self::from_word).
    #[inline(always)]
    pub(crate) fn single_from_word(word: u64) -> Option<Self> {
        let single = Self::tensors(Kind::Tensors, 1, 0).0;
        // A longer payload that is not tight starts in the next line.
        let is_beside = word >> 32 <= SHORT || word & TIGHT != 0;
        (word & 0xFFFF_FFFF & !TIGHT == single && is_beside).then_some(Self(word))
    }

    /// Returns whether this is a plain message in its header's line that ends its batch or has none.
    #[inline(always)]
    pub(crate) fn is_line(self) -> bool {
        // The low half stands above the length, so one comparison checks both.
        let len = self.0.rotate_left(32).wrapping_sub((Kind::Message as u64) << 32);
        len <= SHORT
    }

    fn from_rare(word: u64) -> Result<Self, Fault> {
        const TENSORS: u64 = KNOWN | META | 0xF | 0xFF << ATTACHMENTS | 0xFF << VERSION;
        let is_legal = match word & 0xFF {
            // With metadata: the others are not rare.
            1..=3 => word & !(KNOWN | META) == 0,
            4 => word == Kind::Close as u64,
            10 => word == Kind::Moved as u64,
            7..=9 => word & !TENSORS == 0,
            _ => false,
        };
        if is_legal { Ok(Self(word)) } else { Err(Fault::RecordHeader { header: word }) }
    }

    /// Returns the kind of the payload.
    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        match self.0 & 0xF {
            1 => Kind::Message,
            2 => Kind::Request,
            3 => Kind::Response,
            5 => Kind::Trigger,
            6 => Kind::Packets,
            7 => Kind::Tensors,
            8 => Kind::TensorRequest,
            9 => Kind::TensorResponse,
            10 => Kind::Moved,
            _ => Kind::Close,
        }
    }

    /// Returns whether this is a plain message without metadata whose payload lies in the ring, as nearly every record.
    #[inline(always)]
    pub(crate) fn is_plain(self) -> bool {
        self.0 & (META | POOLED | 0xFF) == Kind::Message as u64
    }

    /// Returns whether the payload has metadata.
    #[inline(always)]
    pub(crate) fn has_metadata(self) -> bool {
        self.0 & META != 0
    }

    /// Returns whether this is a record of tensors.
    #[inline(always)]
    pub(crate) fn has_tensors(self) -> bool {
        (Kind::Tensors as u64..=Kind::TensorResponse as u64).contains(&(self.0 & 0xF))
    }

    /// Returns whether this is a message of tensors without metadata.
    #[inline(always)]
    pub(crate) fn is_plain_tensors(self) -> bool {
        self.0 & (META | 0xFF) == Kind::Tensors as u64
    }

    /// Returns whether this is a message of tensors without metadata that has one attachment.
    #[inline(always)]
    pub(crate) fn is_single(self) -> bool {
        let single = Kind::Tensors as u64 | 1 << ATTACHMENTS;
        self.0 & (META | 0xFF | 0xFF << ATTACHMENTS) == single
    }

    /// Returns whether more records of its batch follow directly.
    #[inline(always)]
    pub(crate) fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Returns whether the record takes no more bytes than it needs.
    #[inline(always)]
    pub(crate) fn is_tight(self) -> bool {
        self.0 & TIGHT != 0
    }

    /// Returns whether the payload is the descriptor of a pool block.
    #[inline(always)]
    pub(crate) fn is_pooled(self) -> bool {
        self.0 & POOLED != 0
    }

    /// Returns the number of attachments of a message of tensors.
    #[inline(always)]
    pub(crate) fn attachments(self) -> usize {
        (self.0 >> ATTACHMENTS & 0xFF) as usize
    }

    /// Returns the version of the description of tensors.
    #[inline(always)]
    pub(crate) fn version(self) -> u8 {
        (self.0 >> VERSION) as u8
    }

    /// Returns the payload bytes in the ring.
    #[inline(always)]
    pub(crate) fn len(self) -> u64 {
        self.0 >> 32
    }
}

#[cfg(test)]
mod tests;
