//! The links that the loop polls, and which of them are ready.

use crate::channel::Watch;

/// The loop arms a link after this many polls in vain. With one polled link they take some 200 µs. They must take longer
/// than two periods of `EVENTS_EVERY`: otherwise two loops that find each other's messages among their events arm the link
/// before each answer, and a round trip takes 50 µs (`ping_pong --modes quiet`).
pub(super) const IN_VAIN: u64 = 32768;

/// The loop arms links once in this many turns, so that many links share one barrier.
const TURNS: u64 = 1024;

/// A link that the loop polls.
struct Polled {
    watch: Watch,
    /// The link's place in the link table.
    place: usize,
    /// The turn in which the link was last ready.
    ready_at: u64,
}

/// The links that the loop polls, in turn.
#[derive(Default)]
pub(super) struct ReadySet {
    links: Vec<Polled>,
    /// By place in the link table: one more than the index in `links`; 0 if the loop does not poll the link.
    indices: Vec<usize>,
    turn: u64,
}

impl ReadySet {
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Begins a turn. Returns whether the loop arms idle links in it.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self) -> bool {
        self.turn += 1;
        self.turn.is_multiple_of(TURNS)
    }

    /// Returns the index of the first ready link from index `from` on.
    #[inline(always)]
    pub(super) fn next_ready(&self, from: usize) -> Option<usize> {
        let links = self.links.get(from..)?;
        links.iter().position(|polled| polled.watch.is_ready()).map(|found| from + found)
    }

    /// Notes that the link at `index` is ready in this turn. Returns its place, and its watch for the caller to move.
    #[inline(always)]
    pub(super) fn touch(&mut self, index: usize) -> (usize, &mut Watch) {
        let polled = &mut self.links[index];
        polled.ready_at = self.turn;
        (polled.place, &mut polled.watch)
    }

    /// Polls the link at `place` from now on, at `watch`.
    pub(super) fn insert(&mut self, watch: Watch, place: usize) {
        if self.indices.len() <= place {
            self.indices.resize(place + 1, 0);
        }
        let polled = Polled { watch, place, ready_at: self.turn };
        match self.indices[place] {
            0 => {
                self.links.push(polled);
                self.indices[place] = self.links.len();
            }
            index => self.links[index - 1] = polled,
        }
    }

    pub(super) fn remove(&mut self, place: usize) {
        let index = self.indices.get_mut(place).map(std::mem::take);
        let Some(index) = index.filter(|index| *index > 0) else { return };
        self.links.swap_remove(index - 1);
        if let Some(moved) = self.links.get(index - 1) {
            self.indices[moved.place] = index;
        }
    }

    /// Returns the places of all links.
    pub(super) fn places(&self) -> Vec<usize> {
        self.links.iter().map(|polled| polled.place).collect()
    }

    /// Returns the places of the links that the loop has polled in vain for long enough.
    pub(super) fn idle_places(&self) -> Vec<usize> {
        let idle = self.links.iter().filter(|polled| self.turn - polled.ready_at >= IN_VAIN);
        idle.map(|polled| polled.place).collect()
    }
}
