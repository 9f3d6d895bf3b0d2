//! A peer's mapped memory as a whole, for callers that register it with a device.

use crate::shm::PeerMapping;

/// Memory of a peer that this process has mapped read-only. It stays mapped as long as this value.
#[derive(Debug)]
pub struct PeerMemory(PeerMapping);

impl PeerMemory {
    pub(crate) fn of(mapping: &PeerMapping) -> Self {
        Self(mapping.clone())
    }

    /// Returns the address of the first byte, that of a page.
    pub fn start(&self) -> *const u8 {
        self.0.bytes(0, 0).as_ptr()
    }

    /// Returns the length in bytes.
    pub fn byte_len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing else keeps the memory mapped: no link and no tensor. A link may map the same memory again at any
    /// time, at another address after this value is dropped.
    pub fn is_unused(&self) -> bool {
        self.0.is_sole()
    }
}
