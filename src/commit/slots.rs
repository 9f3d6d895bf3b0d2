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
mod tests {
    use super::*;

    #[test]
    fn an_id_is_never_used_twice_and_means_nothing_when_it_is_gone() {
        let mut slots = Slots::default();
        let mut numbers = 1..;
        let mut insert = |slots: &mut Slots<char>, value| {
            let id = slots.reserve(numbers.next().unwrap()).unwrap();
            slots.put(id, value);
            id
        };
        let (a, b) = (insert(&mut slots, 'a'), insert(&mut slots, 'b'));
        assert_eq!((slots.get(a), slots.get(b)), (Ok(&'a'), Ok(&'b')));
        assert_eq!(slots.remove(a), Ok('a'));
        let c = insert(&mut slots, 'c');
        assert_eq!(c & 0xffff, a & 0xffff, "the slot is used for another id");
        for id in [a, 0, c + (1 << 16), c - (1 << 16), c | 0xffff, u64::MAX] {
            assert_eq!(slots.get(id), Err(CommitFault::UnknownId { id }));
            assert_eq!(slots.remove(id), Err(CommitFault::UnknownId { id }));
        }
        assert_eq!(slots.remove_all(|value| *value == 'b'), ['b']);
        assert_eq!(slots.get(c), Ok(&'c'));
    }

    #[test]
    fn slots_are_limited() {
        let mut slots = Slots::<()>::default();
        let ids: Vec<u64> = (1..=1 << 16).map(|number| slots.reserve(number).unwrap()).collect();
        assert_eq!(slots.reserve(1 << 20), None);
        slots.give_back(ids[7]);
        assert!(slots.reserve(1 << 20).is_some());
    }
}
