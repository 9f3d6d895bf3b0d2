//! Limits of a registry, and the shares in use.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::error::RegionFault;

/// The limits of a registry. A region counts until its memory is unmapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct RegionLimits {
    regions: usize,
    bytes: u64,
}

impl RegionLimits {
    /// Returns limits on regions of any kind, and on the bytes of those in host memory.
    pub(super) fn new(regions: usize, bytes: u64) -> Self {
        Self { regions, bytes }
    }
}

/// The shares of all regions of a registry.
#[derive(Debug, Default)]
pub(super) struct Totals {
    regions: AtomicUsize,
    bytes: AtomicU64,
}

impl Totals {
    /// Takes a share for one region of `bytes`. Callers take turns. A share may be returned at any time.
    pub(super) fn take(
        self: &Arc<Self>,
        limits: RegionLimits,
        bytes: u64,
    ) -> Result<Share, RegionFault> {
        // Relaxed: these are counts, and no other data depends on them.
        let count = self.regions.load(Ordering::Relaxed);
        if count >= limits.regions {
            return Err(RegionFault::TooManyRegions { count, limit: limits.regions });
        }
        let used = self.bytes.load(Ordering::Relaxed);
        if used > limits.bytes || bytes > limits.bytes - used {
            return Err(RegionFault::TooManyBytes { used, needed: bytes, limit: limits.bytes });
        }
        self.regions.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Share { totals: self.clone(), bytes })
    }
}

/// The share of one region, returned on drop.
#[derive(Debug)]
pub(super) struct Share {
    totals: Arc<Totals>,
    bytes: u64,
}

impl Share {
    /// A share that counts against no limit.
    pub(super) fn none() -> Self {
        let totals = Arc::new(Totals { regions: AtomicUsize::new(1), bytes: AtomicU64::new(0) });
        Self { totals, bytes: 0 }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.totals.regions.fetch_sub(1, Ordering::Relaxed);
        self.totals.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
