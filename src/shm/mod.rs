//! Bytes that two processes share.
//!
//! A [`Segment`] is memory of ours: a sealed memfd that we map read-write and everybody else only
//! read-only. A [`PeerSegment`] is such memory of a peer, checked before it is mapped.
//!
//! ```text
//!          creator                                   peer
//!   memfd ─ ftruncate ─ fallocate                  recvmsg
//!     └ mmap read-write                              └ seals, type, size, blocks, mode: checked
//!     └ seal SHRINK|GROW|FUTURE_WRITE|SEAL           └ mmap read-only
//!     └ sendmsg ───────────── fd ──────────────────▶ └ close(fd)
//! ```
//!
//! 1. The creator is the only process that can ever write a segment (law 1).
//! 2. A mapped segment cannot shrink or lose pages: touching it raises no signal.
//! 3. No reference (`&`, `&mut`) to bytes that a peer may write leaves this module. Words are read
//!    as relaxed atomics, bulk bytes through [`Bytes`], which copies.

mod bytes;
mod copy;
pub(crate) mod fork;
mod frozen;
#[cfg(all(test, slipring_loom))]
mod loom_words;
mod mapping;
mod order;
mod segment;

pub use bytes::{Bytes, BytesMut, Lines};
pub(crate) use frozen::{Draft, Frozen};
#[cfg(all(test, slipring_loom))]
pub(crate) use loom_words::LoomWords;
pub(crate) use mapping::{
    Area, ForeignMapping, Mapping, PeerMapping, node_of_caller, present_pages,
};
pub(crate) use order::Order;
pub use segment::create_common;
pub(crate) use segment::{Backing, PeerSegment, Segment, TMPFS_MAGIC};

/// The 64-bit words of a segment that this side writes.
///
/// Offsets are in bytes from the segment's start and multiples of 8.
pub(crate) trait OwnWords {
    /// Those of them that make a ring.
    type Ring: OwnRing + std::fmt::Debug;
    /// Those of the `len` bytes from `start` on; `len` is a power of two, and at least 8.
    fn ring(&self, start: usize, len: u64) -> Self::Ring;
    /// Stores a word; `order` is `Relaxed` or `Release`.
    fn store(&self, offset: usize, value: u64, order: crate::sync::Ordering);
    /// Adds to a word, from any thread of this process.
    fn add(&self, offset: usize, value: u64);
}

/// The 64-bit words of a segment that the peer writes.
pub(crate) trait PeerWords {
    /// Those of them that make a ring.
    type Ring: PeerRing + std::fmt::Debug;
    /// Those of the `len` bytes from `start` on; `len` is a power of two, and at least 8.
    fn ring(&self, start: usize, len: u64) -> Self::Ring;
    /// Loads a word, relaxed: whoever relies on what it says puts a fence after it.
    fn load(&self, offset: usize) -> u64;
}

/// Words that this side writes and that are counted on and on: the one at a position, a multiple of 8, comes again
/// when the ring is over.
pub(crate) trait OwnRing {
    /// As [`OwnWords::store`].
    fn store(&self, position: u64, value: u64, order: crate::sync::Ordering);
}

/// The same of words that the peer writes.
pub(crate) trait PeerRing {
    /// As [`PeerWords::load`].
    fn load(&self, position: u64) -> u64;
}

/// The smallest unit that the kernel maps, in bytes.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}
