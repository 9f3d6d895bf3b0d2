//! The options of a pool.

/// The options of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOptions {
    /// Bytes that the pool takes from the driver at a time, rounded up to 2 MiB. A longer tensor gets as many
    /// as it needs. Default: 64 MiB.
    pub chunk: u64,
    /// The most bytes that the pool takes. Default: no limit.
    pub quota: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { chunk: 64 << 20, quota: u64::MAX }
    }
}

impl PoolOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the bytes that the pool takes from the driver at a time.
    pub fn chunk(mut self, bytes: u64) -> Self {
        self.chunk = bytes;
        self
    }

    /// Sets the most bytes that the pool takes.
    pub fn quota(mut self, bytes: u64) -> Self {
        self.quota = bytes;
        self
    }
}
