//! Memory that only a driver can read and write.

use core::fmt;

use crate::error::Result;

/// Memory that only a driver can read and write: the access to a region on a GPU.
pub trait Reach: fmt::Debug + Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns whether the memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `to.len()` bytes from `offset` on. The range lies inside of the memory.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()>;

    /// Copies `from` to `offset`. The range lies inside of the memory.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()>;
}
