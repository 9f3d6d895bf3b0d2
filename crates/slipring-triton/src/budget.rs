//! Bytes of all requests under way, and of their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::refusal::Refusal;

/// How many bytes of requests there are, and how many may be.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicU64,
    most: u64,
}

impl Budget {
    pub(super) fn new(most: u64) -> Self {
        Self { used: AtomicU64::new(0), most }
    }

    /// A charge of nothing yet.
    pub(super) fn charge(self: &Arc<Self>) -> Charge {
        Charge(Arc::new(ChargeState { budget: self.clone(), bytes: AtomicU64::new(0) }))
    }
}

/// What one request has used. Clones are the same charge; it is given back once there is none any more.
#[derive(Debug, Clone)]
pub(super) struct Charge(Arc<ChargeState>);

#[derive(Debug)]
struct ChargeState {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

// Relaxed throughout: counts, by which nothing else is read.
impl Charge {
    /// Takes more.
    pub(super) fn add(&self, bytes: u64) -> Result<(), Refusal> {
        let budget = &self.0.budget;
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = budget.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > budget.most {
            return Err(Refusal::too_many_bytes());
        }
        Ok(())
    }

    /// Gives back as many, which were used.
    pub(super) fn release(&self, bytes: u64) {
        self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.0.budget.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Gives back all but so many, which are there.
    pub(super) fn set(&self, bytes: u64) {
        let before = self.0.bytes.swap(bytes, Ordering::Relaxed);
        self.0.budget.used.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// Bytes of an answer, which are under way until the last who holds them is done with them.
struct ChargedBytes {
    bytes: Bytes,
    _share: Charge,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Charge {
    /// These bytes, which hold the charge.
    pub(super) fn attach(&self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ChargedBytes { bytes, _share: self.clone() })
    }
}

impl Drop for ChargeState {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_with_the_last_who_holds_it() {
        let budget = Arc::new(Budget::new(100));
        let (first, second) = (budget.charge(), budget.charge());
        first.add(60).unwrap();
        assert!(second.add(60).is_err());
        drop(second);
        let held = first.clone();
        drop(first);
        assert!(budget.charge().add(41).is_err());
        held.set(10);
        budget.charge().add(90).unwrap();
        drop(held);
        budget.charge().add(100).unwrap();
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
