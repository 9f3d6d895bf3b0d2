//! Bytes of all requests under way, and of their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::refusal::Refusal;

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
        Share(Arc::new(Taken { budget: self.clone(), bytes: AtomicU64::new(0) }))
    }
}

/// What one request has taken. Clones are the same share; it is given back once there is none any more.
#[derive(Debug, Clone)]
pub(super) struct Share(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

// Relaxed throughout: counts, by which nothing else is read.
impl Share {
    /// Takes more.
    pub(super) fn take(&self, bytes: u64) -> Result<(), Refusal> {
        let budget = &self.0.budget;
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = budget.taken.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > budget.most {
            return Err(Refusal::too_many_bytes());
        }
        Ok(())
    }

    /// Gives back as many, which were taken.
    pub(super) fn give_back(&self, bytes: u64) {
        self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.0.budget.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Gives back all but so many, which are there.
    pub(super) fn keep(&self, bytes: u64) {
        let before = self.0.bytes.swap(bytes, Ordering::Relaxed);
        self.0.budget.taken.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// Bytes of an answer, which are under way until the last who holds them is done with them.
struct Held {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Share {
    /// These bytes, which hold the share.
    pub(super) fn held_by(&self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Held { bytes, _share: self.clone() })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_with_the_last_who_holds_it() {
        let budget = Arc::new(Budget::new(100));
        let (first, second) = (budget.share(), budget.share());
        first.take(60).unwrap();
        assert!(second.take(60).is_err());
        drop(second);
        let held = first.clone();
        drop(first);
        assert!(budget.share().take(41).is_err());
        held.keep(10);
        budget.share().take(90).unwrap();
        drop(held);
        budget.share().take(100).unwrap();
        assert_eq!(budget.taken.load(Ordering::Relaxed), 0);
    }
}
