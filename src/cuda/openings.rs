//! The table of open handles. A process opens each handle once, however many links name it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::cuda::library::is_ours;
use crate::error::{CudaFault, Result};

/// A handle of the driver's.
type Handle = [u8; 64];

/// The longest wait for a handle that is being closed, which may wait for the GPU.
const PATIENCE: Duration = Duration::from_secs(1);

/// The handles of one kind on one GPU, and their open objects. A clone is the same table.
pub(super) struct Table<V> {
    shared: Arc<OpeningsCore<V>>,
}

struct OpeningsCore<V> {
    entries: Mutex<HashMap<Handle, Entry<V>>>,
    closed: Condvar,
}

enum Entry<V> {
    Open(Weak<V>),
    /// Unused, and being closed by the driver: it is not opened before that is done.
    Closing,
}

impl<V> OpeningsCore<V> {
    fn entries(&self) -> MutexGuard<'_, HashMap<Handle, Entry<V>>> {
        // Every step leaves the table consistent.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Table<V> {
    /// Returns the object of the handle from the table, or the one that `open` returns.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Closing`], and those of `open`.
    pub(super) fn get(
        &self,
        handle: Handle,
        open: impl FnOnce() -> Result<V>,
    ) -> Result<Opening<V>> {
        // The lock lasts while the handle is opened: the driver opens nothing twice.
        let mut entries = self.shared.entries();
        let deadline = Instant::now() + PATIENCE;
        let value = loop {
            match entries.get(&handle) {
                Some(Entry::Open(value)) => break value.upgrade(),
                Some(Entry::Closing) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(CudaFault::Closing.into());
                    }
                    let waited = self.shared.closed.wait_timeout(entries, left);
                    entries = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => break None,
            }
        };
        let value = match value {
            Some(value) => value,
            None => {
                let value = Arc::new(open()?);
                entries.insert(handle, Entry::Open(Arc::downgrade(&value)));
                value
            }
        };
        Ok(Opening { handle, value: Some(value), shared: self.shared.clone() })
    }
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        let shared = OpeningsCore { entries: Mutex::default(), closed: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }
}

impl<V> Clone for Table<V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

/// A use of an open object. The last use closes it.
pub(super) struct Opening<V> {
    handle: Handle,
    /// `None` during the drop.
    value: Option<Arc<V>>,
    shared: Arc<OpeningsCore<V>>,
}

impl<V> Deref for Opening<V> {
    type Target = V;

    fn deref(&self) -> &V {
        self.value.as_ref().expect("there until it is dropped")
    }
}

impl<V> Drop for Opening<V> {
    fn drop(&mut self) {
        if !is_ours() {
            std::mem::forget(self.value.take());
            return;
        }
        let mut entries = self.shared.entries();
        let Some(last) = self.value.take().and_then(Arc::into_inner) else { return };
        entries.insert(self.handle, Entry::Closing);
        drop(entries);
        // Outside of the lock: closing may wait for the GPU, and so for a peer.
        drop(last);
        self.shared.entries().remove(&self.handle);
        self.shared.closed.notify_all();
    }
}

impl<V: fmt::Debug> fmt::Debug for Opening<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The handle opens another process's memory, so it is not shown.
        f.debug_tuple("Opening").field(&**self).finish()
    }
}

#[cfg(test)]
mod tests;
