//! Where the tensors of a long set lie.

use std::collections::HashMap;

/// Finds the entries of a set by name and by place. The entries lie in any order, so that a removed one makes none move but
/// the last, which takes its place.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The entry of each name.
    names: HashMap<Box<str>, usize>,
    /// The entries in the order of the set.
    order: Vec<usize>,
}

impl Table {
    /// Appends an entry, which comes last in both orders. An empty name is not noted.
    pub(super) fn push(&mut self, name: &str) {
        let entry = self.order.len();
        self.order.push(entry);
        self.note(name, entry);
    }

    fn note(&mut self, name: &str, entry: usize) {
        if !name.is_empty() {
            self.names.insert(name.into(), entry);
        }
    }

    /// Returns the entry of this name.
    pub(super) fn named(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Returns the entry at this place of the set.
    pub(super) fn at(&self, place: usize) -> Option<usize> {
        self.order.get(place).copied()
    }

    /// Returns the place of an entry in the set.
    pub(super) fn place(&self, entry: usize) -> Option<usize> {
        self.order.iter().position(|other| *other == entry)
    }

    /// Forgets the entry of this name, and that of the last one, whose name is `last`, becomes that.
    pub(super) fn swap_remove(&mut self, name: &str, last: &str) {
        let Some(entry) = self.names.remove(name) else { return };
        let moved = self.order.len() - 1;
        if let Some(place) = self.place(entry) {
            self.order.remove(place);
        }
        if moved == entry {
            return;
        }
        if let Some(place) = self.place(moved) {
            self.order[place] = entry;
        }
        if let Some(known) = self.names.get_mut(last) {
            *known = entry;
        }
    }

    /// Returns the entries in the order of the set.
    pub(super) fn into_order(self) -> Vec<usize> {
        self.order
    }

    /// Returns the bytes of memory that the table takes.
    pub(super) fn private_len(&self) -> usize {
        let names = self.names.keys().map(|name| name.len()).sum::<usize>();
        let slots = self.names.capacity() * size_of::<(Box<str>, usize)>();
        names + slots + self.order.capacity() * size_of::<usize>()
    }
}
