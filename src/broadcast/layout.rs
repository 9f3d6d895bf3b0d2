//! The topic: the segment of a publisher that all of its subscribers map.
//!
//! ```text
//!   0x040  newest    the number of the newest message; 0 before the first one
//!   0x080  bell      rung for all subscribers that are parked
//!   0x200  (zero)
//!   page   slots     a slot for each of the last messages: message `n` lies in slot `n mod slots`
//! ```
//!
//! ```text
//!   slot:  0       8        16                       slot_len
//!          │ state │ header │ payload                │
//! ```
//!
//! 1. Every word has 64 bits in native order. The publisher alone writes it.
//! 2. Messages count from 1. The state of a slot is `2 · n` if it holds message `n`, `2 · n + 1` if it held message `n` and
//!    the memory of that message is taken back or the next message comes there, and 0 if it held none.
//! 3. One slot is that of the next message, so the slots keep one message less than there are slots.

use crate::broadcast::record::LONGEST;
use crate::handshake::packet::Topic;
use crate::shm::page_size;

/// The number of the newest message.
pub(super) const NEWEST: usize = 0x040;

/// Counts wake-ups of subscribers.
pub(super) const BELL: usize = 0x080;

/// Bytes from the start of a slot to its header, and to its payload.
pub(super) const HEADER: u64 = 8;
pub(super) const PAYLOAD: u64 = 16;

/// The places of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    /// The number of slots, less one.
    mask: u64,
    /// The base-2 logarithm of a slot's length in bytes.
    shift: u32,
    room: usize,
    /// The start of the first slot, in bytes from the start of the topic.
    data: usize,
}

impl Geometry {
    /// Returns the geometry of a topic. Both lengths are powers of two, which the packet's check ensures.
    pub(super) fn of(topic: &Topic) -> Self {
        Self::new(topic.slots, topic.slot_len)
    }

    pub(super) fn new(slots: u32, slot_len: u32) -> Self {
        debug_assert!(slots.is_power_of_two() && slot_len.is_power_of_two() && slot_len >= 64);
        let room = (u64::from(slot_len) - PAYLOAD).min(LONGEST) as usize;
        let (mask, shift) = (u64::from(slots) - 1, slot_len.trailing_zeros());
        Self { mask, shift, room, data: page_size() }
    }

    /// Returns the number of slots.
    #[inline(always)]
    pub(super) fn slots(&self) -> u64 {
        self.mask + 1
    }

    /// Returns how many messages the slots keep: one slot is that of the next message.
    pub(super) fn capacity(&self) -> u64 {
        self.mask
    }

    /// Returns the bytes of the longest payload.
    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Returns the start of the slot of a message, in bytes from the first slot.
    #[inline(always)]
    pub(super) fn position(&self, message: u64) -> u64 {
        (message & self.mask) << self.shift
    }

    /// Returns the bytes of all slots: a power of two.
    pub(super) fn data_len(&self) -> u64 {
        self.slots() << self.shift
    }

    /// Returns the start of the first slot, in bytes from the start of the topic.
    #[inline(always)]
    pub(super) fn data(&self) -> usize {
        self.data
    }

    /// Returns the bytes of the topic: whole pages.
    pub(super) fn topic_len(&self) -> usize {
        self.data() + (self.data_len() as usize).next_multiple_of(page_size())
    }
}
