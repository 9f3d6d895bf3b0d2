//! Dropped pools and adopted tensors of which peers still have memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::closer;
use crate::cuda::device::Device;
use crate::cuda::per_gpu::PerGpu;
use crate::cuda::store::Store;
use crate::tensor::Settled;

static RETIRED: PerGpu<Retired> = PerGpu::new();

/// The dropped pools and the adopted tensors of one GPU. They stay until everything is back: memory that a process has open
/// is not freed.
#[derive(Clone, Default)]
pub(super) struct Retired {
    stores: Arc<Mutex<Waiting<Arc<Store>>>>,
}

impl Retired {
    /// Returns those of a GPU. In the lending process.
    pub(super) fn of(device: &Device) -> Self {
        RETIRED.of(device)
    }

    pub(super) fn add(&self, store: Arc<Store>) {
        self.stores().add(store);
    }

    /// Frees those of which everything is back, if an operation is to look after them, and tells the log of memory that no thread
    /// frees. In the lending process. The caller holds no lock.
    pub(super) fn look(&self) {
        if self.stores().is_due() {
            self.sweep();
        }
        closer::tell();
    }

    /// Frees those of which everything is back. Returns the number of the others. In the lending process.
    pub(super) fn sweep(&self) -> usize {
        let mut stores = self.stores();
        let mut settled = Settled::default();
        let gone = stores.sweep(|store| store.is_over(&mut settled));
        let left = stores.items.len();
        drop(stores);
        // Freed outside of the lock.
        drop(gone);
        left
    }

    fn stores(&self) -> MutexGuard<'_, Waiting<Arc<Store>>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Items that wait for their end. An operation looks at one of them on average, however many they are: every one is looked
/// at after as many operations as were waiting.
struct Waiting<T> {
    items: Vec<T>,
    /// Operations since the last look.
    since: usize,
    /// The number of items at the last look.
    left: usize,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { items: Vec::new(), since: 0, left: 0 }
    }
}

impl<T> Waiting<T> {
    fn add(&mut self, item: T) {
        self.items.push(item);
    }

    /// Counts an operation. Returns whether it is to look at all items.
    fn is_due(&mut self) -> bool {
        self.since += 1;
        !self.items.is_empty() && self.since >= self.left
    }

    /// Takes out the items that are over.
    fn sweep(&mut self, mut is_over: impl FnMut(&T) -> bool) -> Vec<T> {
        let gone = self.items.extract_if(.., |item| is_over(item)).collect();
        (self.since, self.left) = (0, self.items.len());
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_looks_at_as_few_items_however_many_wait() {
        for live in [1, 10, 1000, 20_000] {
            let (mut waiting, mut looks) = (Waiting::default(), 0);
            let mut operation = |waiting: &mut Waiting<usize>| {
                if waiting.is_due() {
                    waiting.sweep(|_| {
                        looks += 1;
                        false
                    });
                }
            };
            for item in 0..live {
                operation(&mut waiting);
                waiting.add(item);
            }
            for _ in 0..4 * live {
                operation(&mut waiting);
            }
            assert!(looks <= 7 * live, "{looks} looks at {live} items in {} operations", 5 * live);
        }
    }

    #[test]
    fn an_item_that_is_over_goes_within_as_many_operations_as_wait() {
        let mut waiting = Waiting::default();
        (0..100).for_each(|item| waiting.add(item));
        assert!(waiting.is_due(), "nobody has looked at them");
        assert_eq!(waiting.sweep(|_| false), []);
        let gone =
            (0..100).find_map(|_| waiting.is_due().then(|| waiting.sweep(|item| *item == 7)));
        assert_eq!(gone, Some(vec![7]));
    }
}
