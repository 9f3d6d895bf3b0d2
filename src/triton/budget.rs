//! Bytes of all requests under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::triton::refusal::Refusal;

/// How many bytes of requests there are, and how many may be.
#[derive(Debug)]
pub(super) struct Budget {
    taken: AtomicU64,
    most: u64,
}

impl Budget {
    pub(super) fn new(most: u64) -> Self {
        Self { taken: AtomicU64::new(0), most }
    }

    /// A share of nothing yet.
    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), taken: 0 }
    }
}

/// What one request has taken; given back on drop.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    taken: u64,
}

impl Share {
    /// Takes more.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Refusal> {
        // Relaxed: a count, by which nothing else is read.
        let before = self.budget.taken.fetch_add(bytes, Ordering::Relaxed);
        self.taken += bytes;
        if before.saturating_add(bytes) > self.budget.most {
            return Err(Refusal::too_many_bytes());
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}
