//! The links of a loop, by place and by key.

use std::collections::HashMap;

use crate::reactor::link::Link;
use crate::reactor::served::Served;

/// Links, each in a place that it keeps.
#[derive(Default)]
pub(super) struct Links {
    links: Vec<Option<Served>>,
    free: Vec<usize>,
    /// Key → place.
    places: HashMap<u64, usize>,
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Enters a link. Gives its place.
    pub(super) fn insert(&mut self, served: Served) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        self.places.insert(served.link.key(), place);
        self.links[place] = Some(served);
        place
    }

    #[inline(always)]
    pub(super) fn get(&mut self, place: usize) -> Option<&mut Served> {
        self.links.get_mut(place)?.as_mut()
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<Served> {
        let served = self.links.get_mut(place)?.take()?;
        self.places.remove(&served.link.key());
        self.free.push(place);
        Some(served)
    }

    /// Where the link with this key is.
    pub(super) fn place(&self, key: u64) -> Option<usize> {
        self.places.get(&key).copied()
    }

    /// The link behind a handle, if it is not over.
    pub(super) fn find(&mut self, link: &Link) -> Option<&mut Served> {
        self.get(self.place(link.key())?)
    }

    /// One more than the last place.
    pub(super) fn places(&self) -> usize {
        self.links.len()
    }
}
