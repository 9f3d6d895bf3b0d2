//! Dropped pools of which peers still have memory.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::store::Store;

/// They stay until everything is back: memory that a process has open is not freed.
#[derive(Default)]
pub(super) struct Retired {
    stores: Mutex<Vec<Arc<Store>>>,
}

impl Retired {
    pub(super) fn add(&self, store: Arc<Store>) {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).push(store);
    }

    /// Frees the pools of which everything is back. Returns the number of the others. In the lending process.
    pub(super) fn sweep(&self) -> usize {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if stores.is_empty() {
            return 0;
        }
        let gone: Vec<_> = stores.extract_if(.., |store| store.is_over()).collect();
        let left = stores.len();
        drop(stores);
        // Freed outside of the lock.
        drop(gone);
        left
    }
}

impl fmt::Debug for Retired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "Retired({} pools)", stores.len())
    }
}
