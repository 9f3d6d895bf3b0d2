//! The control section of a link's segment: where each word stands.
//!
//! ```text
//!   0x040  receiver state  whether this side's receiver sleeps, or is gone
//!   0x048  sender state    whether this side's sender sleeps
//!   0x080  data bell       rung for the peer's receiver, after a record was published
//!   0x088  room bell       rung for the peer's sender, after room or a loan was given back
//!   0x0c0  released        whether this side holds nothing of the peer's, and never will
//!   0x100  (zero)
//!   0x200  position        how far this side has read the peer's ring
//!   0x300  filled          how much is there of the long message that this side writes
//!  0x1000  returns         a word for each loan slot: the generation returned last
//! ```
//!
//! Every word is 64 bits, native order, written by the segment's creator alone. What different
//! threads write on the hot path stands in different lines.

/// The reader's position in the peer's ring, in bytes. Written by the receiver; seen late by up to
/// an eighth of the ring while records wait. No other word is within 128 bytes of it: whoever times how long it
/// takes to come has not had it fetched with a neighbour.
pub(crate) const POSITION: usize = 0x200;
/// The receiver's parking word.
pub(crate) const RECEIVER_STATE: usize = 0x040;
/// The sender's parking word.
pub(crate) const SENDER_STATE: usize = 0x048;
/// Rung by our sender.
pub(crate) const DATA_BELL: usize = 0x080;
/// Rung by our receiver, and by whoever returns a loan.
pub(crate) const ROOM_BELL: usize = 0x088;
/// Not zero: this side is gone in order and holds nothing that the peer has lent, taken or not. Written once, by
/// whoever lets go of the link last.
pub(crate) const RELEASED: usize = 0x0c0;
/// Bytes that are there of the long message that comes next; see `ahead.rs`. Written by the sender.
pub(crate) const FILLED: usize = 0x300;
/// Generations of returned loans.
pub(crate) const RETURNS: usize = 0x1000;

/// Bytes of a control section with `slots` loan slots: whole pages of up to 64 KiB.
pub(crate) fn len(slots: u32) -> u64 {
    let page = crate::shm::page_size() as u64;
    (RETURNS as u64 + 8 * u64::from(slots)).next_multiple_of(page)
}

/// The sections of a segment, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extents {
    pub(crate) control: usize,
    pub(crate) ring: u64,
    pub(crate) loan_slots: u32,
}

impl Extents {
    pub(crate) fn segment_len(&self) -> usize {
        self.control + self.ring as usize
    }
}
