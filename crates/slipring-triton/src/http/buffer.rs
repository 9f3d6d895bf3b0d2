//! The buffer of a response. It grows to a limit, charges its bytes, and reports a lack of memory.

use std::io;

use bytes::Bytes;

use crate::budget::Charge;
use crate::refusal::Refusal;

/// The bytes of a short response, which are not charged.
const SHORT: usize = 1 << 10;

/// The longest response, and the charge for its bytes.
#[derive(Debug, Clone)]
pub(super) struct BufferLimit {
    pub(super) charge: Charge,
    pub(super) most: u64,
}

impl BufferLimit {
    /// Checks a length against the limit.
    pub(super) fn check(&self, len: u64) -> Result<(), Refusal> {
        if len > self.most { Err(Refusal::response_too_long(self.most)) } else { Ok(()) }
    }
}

/// A growing buffer. The source of its write errors is the refusal.
#[derive(Debug)]
pub(super) struct BoundedBuffer {
    bytes: Vec<u8>,
    limit: BufferLimit,
}

impl BoundedBuffer {
    pub(super) fn new(limit: BufferLimit) -> Self {
        Self { bytes: Vec::with_capacity(SHORT), limit }
    }

    pub(super) fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    #[cold]
    fn grow(&mut self, need: usize) -> Result<(), Refusal> {
        let (len, capacity) = (self.bytes.len(), self.bytes.capacity());
        let more = need.max(capacity);
        self.limit.charge.add((len + more - capacity) as u64)?;
        self.bytes.try_reserve_exact(more).map_err(|_| Refusal::no_memory(len + more))
    }
}

impl io::Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = self.bytes.len() + bytes.len();
        self.limit.check(len as u64).map_err(io::Error::other)?;
        if len > self.bytes.capacity() {
            self.grow(bytes.len()).map_err(io::Error::other)?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the refusal inside of a write error.
pub(super) fn refusal(error: io::Error) -> Refusal {
    error.downcast().unwrap_or_else(|_| Refusal::internal("failed to write the response"))
}
