//! The links that are looked at in every turn.

use crate::transport::Watch;

/// How many links are looked at in turn at most; beyond it the ones silent for longest are armed, half
/// of them at a time, so that many share one barrier.
const MOST: usize = 128;

/// After so many ticks of silence a link is armed.
const SILENT: u64 = 10_000;

/// One link that is looked at.
pub(super) struct Hot {
    pub(super) watch: Watch,
    pub(super) slot: usize,
    /// The tick in which it last brought something.
    pub(super) seen: u64,
}

/// The links that are looked at, in turn.
#[derive(Default)]
pub(super) struct HotSet {
    links: Vec<Hot>,
}

impl HotSet {
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn get(&mut self, at: usize) -> &mut Hot {
        &mut self.links[at]
    }

    /// The next place from `at` on whose link has something.
    #[inline(always)]
    pub(super) fn next_ready(&self, at: usize) -> Option<usize> {
        let links = self.links.get(at..)?;
        links.iter().position(|hot| hot.watch.is_ready()).map(|found| at + found)
    }

    pub(super) fn insert(&mut self, watch: Watch, slot: usize, tick: u64) {
        self.links.push(Hot { watch, slot, seen: tick });
    }

    pub(super) fn remove(&mut self, slot: usize) {
        if let Some(at) = self.links.iter().position(|hot| hot.slot == slot) {
            self.links.swap_remove(at);
        }
    }

    /// The slots of all links.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> {
        self.links.iter().map(|hot| hot.slot)
    }

    /// The slots of the links that are to be armed: the ones that are silent, and where there are too
    /// many the half that is silent for longest.
    pub(super) fn cooling(&self, tick: u64) -> Vec<usize> {
        let silent = |hot: &Hot| hot.seen + SILENT <= tick;
        let mut cooling: Vec<&Hot> = self.links.iter().collect();
        let most = if self.links.len() > MOST { self.links.len() - MOST / 2 } else { 0 };
        cooling.sort_by_key(|hot| hot.seen);
        let silent = cooling.partition_point(|hot| silent(hot));
        cooling.truncate(most.max(silent));
        cooling.into_iter().map(|hot| hot.slot).collect()
    }

    /// Whether [`cooling`](Self::cooling) must be asked now.
    pub(super) fn is_crowded(&self) -> bool {
        self.links.len() > MOST
    }
}
