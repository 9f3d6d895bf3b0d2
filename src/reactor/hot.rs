//! The links that are looked at in every turn.

use crate::channel::Watch;

/// After so many looks in vain a link is armed: they have taken about as long as the wake-up, some
/// 5 µs, that arming it earlier would have cost. So whatever a link does, watching and waking it
/// takes at most twice what the better of the two alone would.
const IN_VAIN: u64 = 8192;

/// Links are armed once in so many turns, so that many share one barrier.
const TURNS: u64 = 1024;

/// One link that is looked at.
pub(super) struct Hot {
    pub(super) watch: Watch,
    pub(super) place: usize,
    /// The turn in which it last brought something.
    pub(super) seen: u64,
}

/// The links that are looked at, in turn.
#[derive(Default)]
pub(super) struct HotSet {
    links: Vec<Hot>,
    /// Place of a link → one more than where it stands in `links`, 0 where it does not.
    at: Vec<usize>,
    turn: u64,
}

impl HotSet {
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// A turn begins. True: it is one after which links are armed.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self) -> bool {
        self.turn += 1;
        self.turn.is_multiple_of(TURNS)
    }

    /// A link that has something, by where [`next_ready`](Self::next_ready) found it.
    #[inline(always)]
    pub(super) fn see(&mut self, at: usize) -> &mut Hot {
        let hot = &mut self.links[at];
        hot.seen = self.turn;
        hot
    }

    /// The next one from `at` on whose link has something.
    #[inline(always)]
    pub(super) fn next_ready(&self, at: usize) -> Option<usize> {
        let links = self.links.get(at..)?;
        links.iter().position(|hot| hot.watch.is_ready()).map(|found| at + found)
    }

    /// Looks at a link from now on, where its next record will show.
    pub(super) fn insert(&mut self, watch: Watch, place: usize) {
        if self.at.len() <= place {
            self.at.resize(place + 1, 0);
        }
        let hot = Hot { watch, place, seen: self.turn };
        match self.at[place] {
            0 => {
                self.links.push(hot);
                self.at[place] = self.links.len();
            }
            at => self.links[at - 1] = hot,
        }
    }

    pub(super) fn remove(&mut self, place: usize) {
        let Some(at) = self.at.get_mut(place).map(std::mem::take).filter(|at| *at > 0) else {
            return;
        };
        self.links.swap_remove(at - 1);
        if let Some(moved) = self.links.get(at - 1) {
            self.at[moved.place] = at;
        }
    }

    /// The places of all links.
    pub(super) fn places(&self) -> Vec<usize> {
        self.links.iter().map(|hot| hot.place).collect()
    }

    /// The places of the links that are to be armed.
    pub(super) fn cooling(&self) -> Vec<usize> {
        let cooling = self.links.iter().filter(|hot| self.turn - hot.seen >= IN_VAIN);
        cooling.map(|hot| hot.place).collect()
    }
}
