//! The control section of a link's segment: the offset of each word, in bytes.
//!
//! ```text
//!   0x040  receiver state  whether this side's receiver sleeps, or is gone
//!   0x048  sender state    whether this side's sender sleeps
//!   0x080  data bell       rung for the peer's receiver, after a record was published
//!   0x088  room bell       rung for the peer's sender, after room or a loan was given back
//!   0x0c0  released        whether this side has ended and holds no loan of the peer's
//!   0x0c8  revoked        whether this side has taken blocks back that the peer may still read
//!   0x0d0  evicted        why this publisher has evicted the peer, and 0 if it has not
//!   0x100  (zero)
//!   0x200  position        how far this side has read the peer's ring
//!   0x300  filled          how much is there of the long message that this side writes
//!  0x1000  returns         a word for each loan slot: the generation returned last
//! ```
//!
//! 1. Every word has 64 bits in native order. The segment's creator alone writes it.
//! 2. Words that different threads write on the hot path lie in different lines.

/// The reader's position in the peer's ring, in bytes. The receiver writes it, up to an eighth of the ring late while
/// records wait. No other word lies within 128 bytes, so that a sender that times the load has not fetched the line
/// with a neighbour.
pub(crate) const POSITION: usize = 0x200;
/// The receiver's state word. The receiver writes it, and the peer's sender loads it.
pub(crate) const RECEIVER_STATE: usize = 0x040;
/// The sender's state word. The sender writes it, and the peer's receiver loads it.
pub(crate) const SENDER_STATE: usize = 0x048;
/// Counts wake-ups of the peer's receiver. This side's sender adds to it.
pub(crate) const DATA_BELL: usize = 0x080;
/// Counts wake-ups of the peer's sender. This side's receiver, and each thread that returns a loan, adds to it.
pub(crate) const ROOM_BELL: usize = 0x088;
/// Not zero: this side has ended in order and holds no loan of the peer's. The thread that drops the session writes it
/// once.
pub(crate) const RELEASED: usize = 0x0c0;
/// Not zero: this side has taken back blocks that the peer had not returned. The peer checks it after each copy of a loan.
/// The thread that closes the peer's account with the pool writes it once.
pub(crate) const REVOKED: usize = 0x0c8;
/// Why this side, a publisher, has evicted the peer: 1 the peer stalled, 2 the owner asked for it. The publisher writes it
/// once, before it ends the socket.
pub(crate) const EVICTED: usize = 0x0d0;
/// Bytes that are written of the long message that comes next. The sender writes it; the reader copies along.
pub(crate) const FILLED: usize = 0x300;
/// The generation last returned, a word for each loan slot. Threads that return loans write it.
pub(crate) const RETURNS: usize = 0x1000;

/// The longest ring, in bytes. Part of the wire format.
pub(crate) const LONGEST_RING: u64 = 1 << 30;

/// Returns the bytes of a control section with `slots` loan slots: whole pages.
pub(crate) fn len(slots: u32) -> u64 {
    let page = crate::shm::page_size() as u64;
    (RETURNS as u64 + 8 * u64::from(slots)).next_multiple_of(page)
}

/// The sections of a segment, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extents {
    pub(crate) control: usize,
    pub(crate) ring: u64,
    /// The ring to which the side may move, or 0. It has a segment of its own.
    pub(crate) second_ring: u64,
    pub(crate) loan_slots: u32,
}

impl Extents {
    pub(crate) fn segment_len(&self) -> usize {
        self.control + self.ring as usize
    }
}
