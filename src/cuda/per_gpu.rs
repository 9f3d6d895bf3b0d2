//! Tables of which a process has one for each GPU.

use std::sync::{Mutex, PoisonError};

use crate::cuda::device::Device;

/// One `T` for each GPU that this process has asked for. A clone of a `T` is the same table.
pub(super) struct PerGpu<T> {
    /// By the GPU's number. They are few, and stay.
    tables: Mutex<Vec<(u32, T)>>,
}

impl<T: Clone + Default> PerGpu<T> {
    pub(super) const fn new() -> Self {
        Self { tables: Mutex::new(Vec::new()) }
    }

    /// Returns the table of this GPU. In the process that loaded the driver: a forked child may find the lock taken
    /// forever.
    pub(super) fn of(&self, device: &Device) -> T {
        let ordinal = device.ordinal();
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, table)) = tables.iter().find(|(known, _)| *known == ordinal) {
            return table.clone();
        }
        let table = T::default();
        tables.push((ordinal, table.clone()));
        table
    }
}
