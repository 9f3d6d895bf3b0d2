//! Counts the bytes of all requests and responses in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::refusal::Refusal;

/// The number of bytes in flight, and its limit.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    most: u64,
}

impl Budget {
    pub(crate) fn new(most: u64) -> Self {
        Self { used: AtomicU64::new(0), most }
    }

    /// Returns a charge of 0 bytes.
    pub(crate) fn charge(self: &Arc<Self>) -> Charge {
        Charge(Arc::new(ChargeState { budget: self.clone(), bytes: AtomicU64::new(0) }))
    }
}

/// The bytes that one request has charged. Clones share one count. The last clone releases it on drop.
#[derive(Debug, Clone)]
pub(crate) struct Charge(Arc<ChargeState>);

#[derive(Debug)]
struct ChargeState {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

// All operations are relaxed: the counts order no other memory.
impl Charge {
    /// Charges more bytes.
    ///
    /// # Errors
    ///
    /// The bytes in flight would exceed the limit. Nothing is charged.
    pub(crate) fn add(&self, bytes: u64) -> Result<(), Refusal> {
        let budget = &self.0.budget;
        let within = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= budget.most);
        let charged = budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within);
        charged.map_err(|_| Refusal::too_many_bytes())?;
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Releases bytes that were charged.
    pub(crate) fn release(&self, bytes: u64) {
        self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.0.budget.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns a charge of 0 bytes against the same limit.
    pub(crate) fn another(&self) -> Self {
        self.0.budget.charge()
    }

    /// Moves the bytes to a charge of their own.
    pub(crate) fn split(&self) -> Self {
        let moved = self.another();
        moved.0.bytes.store(self.0.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        moved
    }

    /// Sets the charge to `bytes`, without a check of the limit.
    pub(crate) fn set(&self, bytes: u64) {
        let before = self.0.bytes.swap(bytes, Ordering::Relaxed);
        self.0.budget.used.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// Bytes of a response. They stay charged until their last holder drops them.
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
    /// Returns the same bytes, which hold a clone of the charge.
    pub(crate) fn attach(&self, bytes: Bytes) -> Bytes {
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
        assert!(second.add(60).is_err() && second.add(u64::MAX).is_err());
        second.add(40).expect("what is refused counts nothing");
        drop(second);
        let held = first.clone();
        drop(first);
        assert!(budget.charge().add(41).is_err());
        held.set(10);
        budget.charge().add(90).unwrap();
        let moved = held.split();
        drop(held);
        assert!(budget.charge().add(91).is_err(), "the moved bytes still count");
        drop(moved);
        budget.charge().add(100).unwrap();
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
