//! The links that are looked at in every turn.

use crate::transport::Watch;

/// After so many looks in vain a link is armed: they have taken about as long as the wake-up, some
/// 5 µs, that arming it earlier would have cost. So whatever a link does, watching and waking it
/// takes at most twice what the better of the two alone would.
const IN_VAIN: u64 = 8192;

/// Links are armed once in so many turns, so that many share one barrier.
const TURNS: u64 = 1024;

/// How many links are looked at in turn at most; beyond it the half that is silent for longest is armed.
const MOST: usize = 2048;

/// A link that was the only one to bring something, in so many turns that brought anything one after the other,
/// is in a conversation.
const CONVERSATION: u32 = 8;

/// Within so many looks at links its next word is expected: some 40 µs. Source: `ping_pong --modes reactor-1000`,
/// where a turn over a thousand links takes some 5 µs.
const SOON: u64 = 8192;

/// One link that speaks alone.
#[derive(Default)]
struct Conversation {
    place: usize,
    /// In how many turns that brought anything, one after the other.
    turns: u32,
    /// The last of them.
    last: u64,
}

impl Conversation {
    /// Takes in a turn in which so many links have brought something, and one of them.
    #[inline(always)]
    fn note(&mut self, turn: u64, links: usize, place: usize) {
        let is_next = links == 1 && place == self.place;
        let turns = if is_next { self.turns.saturating_add(1) } else { 0 };
        *self = Self { place, turns, last: turn };
    }

    /// Whether it does in a turn over so many links.
    fn goes_on(&self, turn: u64, links: usize) -> bool {
        self.turns >= CONVERSATION && (turn - self.last).saturating_mul(links as u64) <= SOON
    }
}

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
    conversation: Conversation,
}

impl HotSet {
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// A turn begins. True: it is one after which links are armed.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self) -> bool {
        self.turn += 1;
        self.turn.is_multiple_of(TURNS) || self.links.len() > MOST
    }

    /// Takes in what a turn has brought: from how many links, and one of them.
    #[inline(always)]
    pub(super) fn end_turn(&mut self, links: usize, place: usize) {
        if links > 0 {
            self.conversation.note(self.turn, links, place);
        }
    }

    /// Whether one link alone has been speaking, whose next word is to come soon.
    pub(super) fn is_conversation(&self) -> bool {
        self.conversation.goes_on(self.turn, self.links.len())
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
        let mut after = IN_VAIN;
        if self.links.len() > MOST {
            let mut silent: Vec<u64> = self.links.iter().map(|hot| self.turn - hot.seen).collect();
            let half = silent.len() / 2;
            after = after.min(*silent.select_nth_unstable(half).1);
        }
        let cooling = self.links.iter().filter(|hot| self.turn - hot.seen >= after);
        cooling.map(|hot| hot.place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_link_that_speaks_alone_is_in_a_conversation() {
        let mut conversation = Conversation::default();
        let mut turn = 0;
        let mut speak = |links, place, pause| {
            turn += pause;
            conversation.note(turn, links, place);
            conversation.goes_on(turn + 8, 1024) && !conversation.goes_on(turn + 9, 1024)
        };
        // The first word is no answer.
        assert_eq!((0..=CONVERSATION).filter(|_| speak(1, 7, 3)).count(), 1);
        assert!(speak(1, 7, 1000), "after a pause it goes on");
        assert!(!speak(2, 7, 1), "another one speaks, too");
        assert_eq!((0..CONVERSATION).filter(|_| speak(1, 7, 1)).count(), 1);
        assert!(!speak(1, 8, 1), "another one speaks");
        assert!(!(0..100).any(|place| speak(1, place, 1)), "many speak in turn");
    }
}
