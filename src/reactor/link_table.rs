//! The links of a loop, by place and by key.

use std::collections::HashMap;

use crate::reactor::active_link::ActiveLink;
use crate::reactor::link::Link;

/// The links of a loop. Each keeps its place for as long as the loop serves it.
#[derive(Default)]
pub(super) struct LinkTable {
    links: Vec<Option<ActiveLink>>,
    free: Vec<usize>,
    /// By key: the link's place.
    places: HashMap<u64, usize>,
}

impl LinkTable {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Inserts a link. Returns its place.
    pub(super) fn insert(&mut self, active: ActiveLink) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        self.places.insert(active.link().key(), place);
        self.links[place] = Some(active);
        place
    }

    #[inline(always)]
    pub(super) fn get(&mut self, place: usize) -> Option<&mut ActiveLink> {
        self.links.get_mut(place)?.as_mut()
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<ActiveLink> {
        let active = self.links.get_mut(place)?.take()?;
        self.places.remove(&active.link().key());
        self.free.push(place);
        Some(active)
    }

    /// Returns the place of the link with this key.
    pub(super) fn place(&self, key: u64) -> Option<usize> {
        self.places.get(&key).copied()
    }

    /// Returns the link behind a handle, unless it has ended.
    pub(super) fn find(&mut self, link: &Link) -> Option<&mut ActiveLink> {
        self.get(self.place(link.key())?)
    }

    /// Returns one more than the last place.
    pub(super) fn places(&self) -> usize {
        self.links.len()
    }
}
