//! Memory that only a driver reaches.

use core::fmt;

use crate::error::Result;

/// Memory that only a driver reaches: what a region of a GPU is read and written by.
pub trait Reach: fmt::Debug + Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `to.len()` bytes from `offset` on, which lie inside.
    ///
    /// # Errors
    ///
    /// The driver's.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()>;

    /// Copies `from` to `offset`, where there is room.
    ///
    /// # Errors
    ///
    /// The driver's.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()>;
}
