//! The number of answers that wait for room in their clients' rings.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A count of answers, which a shutdown waits for.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    count: Mutex<usize>,
    /// Notified when no answer waits.
    none: Condvar,
}

impl Unsent {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an answer that waits.
    pub(super) fn add(&self) {
        *self.lock() += 1;
    }

    /// An answer has left, or its link has ended.
    pub(super) fn remove(&self) {
        let mut count = self.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until no answer waits, for so long at most.
    pub(super) fn wait(&self, timeout: Duration) {
        drop(self.none.wait_timeout_while(self.lock(), timeout, |count| *count > 0));
    }
}
