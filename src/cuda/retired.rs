//! Dropped pools of which peers still have memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::device::Device;
use crate::cuda::per_gpu::PerGpu;
use crate::cuda::store::Store;

static RETIRED: PerGpu<Retired> = PerGpu::new();

/// The dropped pools of one GPU. They stay until everything is back: memory that a process has open is not freed.
#[derive(Clone, Default)]
pub(super) struct Retired {
    stores: Arc<Mutex<Vec<Arc<Store>>>>,
}

impl Retired {
    /// Returns those of a GPU. In the lending process.
    pub(super) fn of(device: &Device) -> Self {
        RETIRED.of(device)
    }

    pub(super) fn add(&self, store: Arc<Store>) {
        self.stores().push(store);
    }

    /// Frees the pools of which everything is back. Returns the number of the others. In the lending process.
    pub(super) fn sweep(&self) -> usize {
        let mut stores = self.stores();
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

    fn stores(&self) -> MutexGuard<'_, Vec<Arc<Store>>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
