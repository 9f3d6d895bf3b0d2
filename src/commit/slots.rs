//! A table whose ids are never used twice.
//!
//! ```text
//!   id:  │ number, unique within a server or client │ slot  │
//!          48 bits                                    16 bits
//! ```

use crate::error::CommitFault;

/// Bits of an id that hold its slot.
const SLOT_BITS: u32 = 16;

/// Values under ids.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Option<(u64, T)>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Reserves a slot, and returns its id, which is not 0. `number` is not 0 and was never passed before. `None`:
    /// 65536 slots are in use.
    pub(super) fn reserve(&mut self, number: u64) -> Option<u64> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < 1 << SLOT_BITS => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return None,
        };
        Some(number << SLOT_BITS | slot as u64)
    }

    /// Puts a value under a reserved id.
    pub(super) fn put(&mut self, id: u64, value: T) {
        self.slots[slot(id)] = Some((id, value));
    }

    /// Returns a reserved id unused.
    pub(super) fn give_back(&mut self, id: u64) {
        self.free.push(slot(id));
    }

    #[inline]
    pub(super) fn get(&self, id: u64) -> Result<&T, CommitFault> {
        match self.slots.get(slot(id)) {
            Some(Some((held, value))) if *held == id => Ok(value),
            _ => Err(CommitFault::UnknownId { id }),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        match self.slots.get_mut(slot(id)) {
            Some(Some((held, value))) if *held == id => Some(value),
            _ => None,
        }
    }

    /// Returns whether `which` picks any value.
    pub(super) fn has(&self, which: impl Fn(&T) -> bool) -> bool {
        self.slots.iter().flatten().any(|(_, value)| which(value))
    }

    pub(super) fn remove(&mut self, id: u64) -> Result<T, CommitFault> {
        self.get(id)?;
        self.free.push(slot(id));
        let taken = self.slots[slot(id)].take();
        taken.map(|(_, value)| value).ok_or(CommitFault::UnknownId { id })
    }

    /// Removes all values that `which` picks.
    pub(super) fn remove_all(&mut self, which: impl Fn(&T) -> bool) -> Vec<T> {
        let ids = self.slots.iter().flatten().filter(|(_, value)| which(value));
        let ids: Vec<u64> = ids.map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id).ok()).collect()
    }
}

fn slot(id: u64) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests;
