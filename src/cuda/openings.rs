//! What is open by its handle: once in a process, however many links name it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cuda::event::Event;
use crate::cuda::memory::Memory;
use crate::error::Result;

/// A handle of the driver's.
type Handle = [u8; 64];

/// What is open on a GPU, and what of this process's own others may open.
#[derive(Debug, Default)]
pub(super) struct Openings {
    pub(super) memory: Table<Memory>,
    pub(super) events: Table<Event>,
}

/// Handle → what it opened.
pub(super) struct Table<V> {
    entries: Arc<Mutex<HashMap<Handle, Weak<V>>>>,
}

impl<V> Table<V> {
    /// What the handle names: what is there, or else what `open` gives.
    pub(super) fn get(
        &self,
        handle: Handle,
        open: impl FnOnce() -> Result<V>,
    ) -> Result<Opening<V>> {
        // Held while it is opened: the driver opens nothing twice.
        let mut entries = lock(&self.entries);
        let value = match entries.get(&handle).and_then(Weak::upgrade) {
            Some(value) => value,
            None => {
                let value = Arc::new(open()?);
                entries.insert(handle, Arc::downgrade(&value));
                value
            }
        };
        Ok(Opening { handle, value: Some(value), entries: self.entries.clone() })
    }
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { entries: Arc::default() }
    }
}

impl<V> fmt::Debug for Table<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({} entries)", lock(&self.entries).len())
    }
}

fn lock<V>(entries: &Mutex<HashMap<Handle, Weak<V>>>) -> MutexGuard<'_, HashMap<Handle, Weak<V>>> {
    // Every step leaves the table whole.
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A use of something that is open. The last one closes it.
pub(super) struct Opening<V> {
    handle: Handle,
    /// `None` while it is dropped.
    value: Option<Arc<V>>,
    entries: Arc<Mutex<HashMap<Handle, Weak<V>>>>,
}

impl<V> Deref for Opening<V> {
    type Target = V;

    fn deref(&self) -> &V {
        self.value.as_ref().expect("there until it is dropped")
    }
}

impl<V> Drop for Opening<V> {
    fn drop(&mut self) {
        // Closed under the lock: nobody finds it closed by half and opens it again.
        let mut entries = lock(&self.entries);
        let last = self.value.take().and_then(Arc::into_inner);
        if last.is_some() {
            entries.remove(&self.handle);
        }
        drop(last);
    }
}

impl<V: fmt::Debug> fmt::Debug for Opening<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The handle opens somebody's memory, so it is not shown.
        f.debug_tuple("Opening").field(&**self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CudaFault;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Something of which there may be one at a time.
    struct Single(Arc<AtomicUsize>);

    impl Single {
        fn open(open: &Arc<AtomicUsize>) -> Result<Self> {
            assert_eq!(open.fetch_add(1, Ordering::SeqCst), 0, "opened twice");
            Ok(Self(open.clone()))
        }
    }

    impl Drop for Single {
        fn drop(&mut self) {
            assert_eq!(self.0.fetch_sub(1, Ordering::SeqCst), 1, "closed twice");
        }
    }

    proptest! {
        #[test]
        fn a_handle_is_open_once_and_for_as_long_as_it_is_used(
            acts in proptest::collection::vec((0usize..3, any::<bool>()), 1..100),
        ) {
            let table = Table::default();
            let open: [Arc<AtomicUsize>; 3] = Default::default();
            let mut uses: [Vec<Opening<Single>>; 3] = Default::default();
            for (at, more) in acts {
                if more {
                    let handle = [at as u8; 64];
                    uses[at].push(table.get(handle, || Single::open(&open[at])).unwrap());
                } else {
                    uses[at].pop();
                }
                for (count, uses) in open.iter().zip(&uses) {
                    prop_assert_eq!(count.load(Ordering::SeqCst), usize::from(!uses.is_empty()));
                }
            }
            drop(uses);
            prop_assert!(lock(&table.entries).is_empty());
        }
    }

    #[test]
    fn threads_that_open_and_close_meet_one_at_most() {
        let (table, open) = (Table::default(), Arc::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        drop(table.get([7; 64], || Single::open(&open)).unwrap());
                    }
                });
            }
        });
        assert_eq!(open.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn what_could_not_be_opened_is_tried_again() {
        let (table, open) = (Table::default(), Arc::default());
        assert!(table.get([1; 64], || Err(CudaFault::NoDevice.into())).is_err());
        assert!(table.get([1; 64], || Single::open(&open)).is_ok());
    }
}
