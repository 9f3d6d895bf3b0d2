//! Memory that two processes share.
//!
//! A [`Segment`] is memory of this process: a sealed memfd that this process maps read-write and every other
//! one read-only. A [`PeerSegment`] is such memory of a peer, checked before it is mapped.
//!
//! ```text
//!          creator                                   peer
//!   memfd ─ ftruncate ─ fallocate                  recvmsg
//!     └ mmap read-write                              └ seals, type, size, blocks, mode: checked
//!     └ seal SHRINK|GROW|FUTURE_WRITE|SEAL           └ mmap read-only
//!     └ sendmsg ───────────── fd ──────────────────▶ └ close(fd)
//! ```
//!
//! 1. The creator is the only process that can write a segment (law 1).
//! 2. A mapped segment cannot shrink or lose pages: accessing it raises no signal.
//! 3. No reference (`&`, `&mut`) to bytes that a peer may write leaves this module. Words are read as relaxed
//!    atomics, bulk bytes through [`Bytes`], which copies.

mod bytes;
mod copy;
mod discard;
pub(crate) mod fork;
mod frozen;
#[cfg(all(test, slipring_loom))]
mod loom_words;
mod mapped_segments;
mod mapping;
mod order;
mod segment;
mod segment_memory;

pub use bytes::{Bytes, BytesMut, Lines};
pub(crate) use discard::{LARGE, discard};
pub(crate) use frozen::{Draft, Frozen};
#[cfg(all(test, slipring_loom))]
pub(crate) use loom_words::LoomWords;
pub(crate) use mapped_segments::MappedSegments;
use mapping::KeptSpan;
pub(crate) use mapping::{
    Area, ForeignMapping, MappedRing, Mapping, PeerMapping, node_of_caller, present_pages,
};
pub(crate) use order::Order;
pub use segment::create_common;
pub(crate) use segment::{
    Backing, PeerSegment, Segment, TMPFS_MAGIC, allocate, check_file_size, create_memfd,
    memfd_device, most_freed,
};
pub use segment_memory::SegmentMemory;

/// The 64-bit words of a segment that this side writes.
///
/// Offsets are in bytes from the segment's start and multiples of 8.
pub(crate) trait OwnWords {
    /// The words of a ring.
    type Ring: OwnRing + std::fmt::Debug;
    /// Returns the ring of the `len` bytes from `start` on. `len` is a power of two and at least 8.
    fn ring(&self, start: usize, len: u64) -> Self::Ring;
    /// Stores a word; `order` is `Relaxed` or `Release`.
    fn store(&self, offset: usize, value: u64, order: crate::sync::Ordering);
    /// Adds to a word. Any thread of this process may call it.
    fn add(&self, offset: usize, value: u64);
}

/// The 64-bit words of a segment that the peer writes.
pub(crate) trait PeerWords {
    /// The words of a ring.
    type Ring: PeerRing + std::fmt::Debug;
    /// Returns the ring of the `len` bytes from `start` on. `len` is a power of two and at least 8.
    fn ring(&self, start: usize, len: u64) -> Self::Ring;
    /// Loads a word, relaxed. A caller that relies on the value puts a fence after it.
    fn load(&self, offset: usize) -> u64;
}

/// Words of a ring that this side writes. A position is a multiple of 8 and grows without end. The ring maps
/// it to a word by its capacity.
pub(crate) trait OwnRing {
    /// As [`OwnWords::store`].
    fn store(&self, position: u64, value: u64, order: crate::sync::Ordering);
}

/// Words of a ring that the peer writes.
pub(crate) trait PeerRing {
    /// As [`PeerWords::load`].
    fn load(&self, position: u64) -> u64;
}

/// Returns the size of a page in bytes, the smallest unit that the kernel maps.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}
