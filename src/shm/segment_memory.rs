//! The memory of a segment as a whole, for callers that register it with a device.

use crate::shm::{Area, KeptSpan, PeerMapping};

/// A segment that this process has mapped: one of a peer, read-only, or one of its own. It stays mapped as long as this value.
#[derive(Debug)]
pub struct SegmentMemory {
    span: KeptSpan,
    is_own: bool,
}

impl SegmentMemory {
    pub(crate) fn of_peer(mapping: &PeerMapping) -> Self {
        Self { span: mapping.keep(), is_own: false }
    }

    pub(crate) fn own(area: &Area) -> Self {
        Self { span: area.keep(), is_own: true }
    }

    /// Returns the address of the first byte, that of a page.
    pub fn start(&self) -> *const u8 {
        self.span.start()
    }

    /// Returns the length in bytes.
    pub fn byte_len(&self) -> usize {
        self.span.len()
    }

    /// Returns whether it is a segment of this process, mapped for writing.
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns whether nothing else keeps the memory mapped: no pool, no link and no tensor. A link may map the same memory again
    /// at any time, at another address after this value is dropped.
    pub fn is_unused(&self) -> bool {
        self.span.is_sole()
    }
}
