//! How much to walk through, by how long writing takes.
//!
//! Lines that another core has just read are slow to write, so blocks are used in turn; but the more of them there
//! are, the farther away they lie when their turn comes. Where the best lies between the two depends on the machine
//! and on where its threads run: `docs/performance.md` has figures. So there is a footprint for near peers and one
//! for far ones, and for both a small one, if long blocks are written faster there: now and then a few are written
//! in the other one, and timed.

use std::time::Duration;

use crate::pool::distance::Distance;

/// Blocks of so many bytes are timed. Shorter ones take too little time.
pub(super) const LONG: u64 = 8 << 10;

/// What part the small footprint is of that for near peers.
const PART: u64 = 8;

/// Blocks of one length that are timed before a trial, and in it.
const SAMPLES: usize = 16;

/// Blocks that settle in beside those that are walked through.
const SETTLE: u64 = 4;

/// Long blocks between two trials: at first, and after many in vain.
const PAUSE: (u64, u64) = (64, 1 << 16);

/// And no fewer than so many times the blocks of a trial.
const SHARE: u64 = 16;

/// Which footprint is used.
#[derive(Debug, Clone, Copy)]
struct Choice {
    is_small: bool,
    /// Long blocks from one trial to the next.
    pause: u64,
    /// Long blocks until the next one.
    left: u64,
}

/// The other footprint is in use.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// What a block took before, as in [`Rates`].
    before: u64,
    /// Blocks that were not timed yet: at first, and now.
    settling: (u64, u64),
}

/// The last times, in nanoseconds a KiB.
#[derive(Debug, Default)]
struct Rates {
    taken: [u64; SAMPLES],
    count: usize,
}

impl Rates {
    fn push(&mut self, rate: u64) {
        self.taken[self.count % SAMPLES] = rate;
        self.count += 1;
    }

    /// `None`: there are not enough yet.
    fn median(&self) -> Option<u64> {
        if self.count < SAMPLES {
            return None;
        }
        let mut sorted = self.taken;
        sorted.sort_unstable();
        Some(sorted[SAMPLES / 2])
    }
}

/// What is known of the peers of a pool, all together.
#[derive(Debug)]
pub(super) struct Tuning {
    /// What the options say, near and far, in bytes.
    footprints: [u64; 2],
    distance: Distance,
    is_far: bool,
    /// Near and far.
    choices: [Choice; 2],
    trial: Option<Trial>,
    /// The block length of `rates`, in bytes.
    block_len: u64,
    rates: Rates,
}

impl Tuning {
    pub(super) fn new(near: u64, far: u64) -> Self {
        let choice = Choice { is_small: false, pause: PAUSE.0, left: PAUSE.0 };
        Self {
            footprints: [near, far.max(near)],
            distance: Distance::default(),
            is_far: false,
            choices: [choice; 2],
            trial: None,
            block_len: 0,
            rates: Rates::default(),
        }
    }

    /// Bytes of a class to walk through in turn now.
    #[inline]
    pub(super) fn footprint(&self) -> u64 {
        self.of(self.choices[usize::from(self.is_far)].is_small)
    }

    fn of(&self, is_small: bool) -> u64 {
        let [near, _] = self.footprints;
        if is_small { near / PART } else { self.footprints[usize::from(self.is_far)] }
    }

    /// Takes in how long a peer's line took to come.
    pub(super) fn note_distance(&mut self, took: Duration) {
        if let Some(is_far) = self.distance.note(took) {
            self.abandon();
            self.is_far = is_far;
        }
    }

    /// A block is handed out that is [`LONG`]. True: it is to be timed. `walk` tells how many are walked through
    /// in a footprint.
    pub(super) fn hand_out(&mut self, block_len: u64, walk: impl Fn(u64) -> u64) -> bool {
        if block_len != self.block_len {
            self.abandon();
            self.block_len = block_len;
        }
        if let Some(trial) = &mut self.trial {
            trial.settling.1 = trial.settling.1.saturating_sub(1);
            return trial.settling.1 == 0;
        }
        let choice = &mut self.choices[usize::from(self.is_far)];
        choice.left = choice.left.saturating_sub(1);
        if choice.left == 0
            && let Some(before) = self.rates.median()
        {
            choice.left = choice.pause;
            let is_small = !choice.is_small;
            let [now, then] = [!is_small, is_small].map(|is_small| walk(self.of(is_small)));
            if now != then {
                self.choices[usize::from(self.is_far)].is_small = is_small;
                let settling = (then + SETTLE, then + SETTLE);
                self.trial = Some(Trial { before, settling });
            }
            self.rates = Rates::default();
            return false;
        }
        choice.left <= 2 * SAMPLES as u64
    }

    /// Takes in how long it took to write `len` bytes of a block, and ends a trial that has shown enough.
    pub(super) fn note(&mut self, block_len: u64, len: u64, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if block_len != self.block_len || len < LONG {
            return;
        }
        self.rates.push(took.saturating_mul(1024) / len);
        let Some(Trial { before, settling }) = self.trial else { return };
        let Some(now) = self.rates.median() else { return };
        let choice = &mut self.choices[usize::from(self.is_far)];
        if now.saturating_mul(10) < before.saturating_mul(9) {
            choice.pause = PAUSE.0;
        } else {
            choice.is_small = !choice.is_small;
            choice.pause = (choice.pause * 2).min(PAUSE.1);
        }
        choice.left = choice.pause.max(SHARE * (settling.0 + SAMPLES as u64));
        self.trial = None;
        self.rates = Rates::default();
    }

    /// What was timed tells nothing any more.
    fn abandon(&mut self) {
        if self.trial.take().is_some() {
            let choice = &mut self.choices[usize::from(self.is_far)];
            choice.is_small = !choice.is_small;
        }
        self.rates = Rates::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::class;

    const KIB: u64 = 1 << 10;
    const NEAR: u64 = 2 << 20;
    const FAR: u64 = 32 << 20;

    /// Writes `count` blocks, in the time that `time` gives for a footprint. Gives how many of them in the small one.
    fn write(tuning: &mut Tuning, len: u64, count: u64, time: impl Fn(u64) -> u64) -> u64 {
        let mut in_small = 0;
        for number in 0..count {
            let is_timed = tuning.hand_out(len, |footprint| class::walk(len, footprint));
            let footprint = tuning.footprint();
            in_small += u64::from(footprint < NEAR);
            if is_timed {
                // Now and then somebody is interrupted.
                let late = if number % 5 == 0 { 1_000_000 } else { 0 };
                tuning.note(len, len, Duration::from_nanos(time(footprint) + late));
            }
        }
        in_small
    }

    #[test]
    fn the_footprint_in_which_writing_is_faster_is_found_and_kept() {
        for (near, far) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut tuning = Tuning::new(NEAR, FAR);
            for (is_far, small_is_better) in [(false, near), (true, far), (false, near)] {
                tuning.is_far = is_far;
                let time = |footprint| {
                    if (footprint < NEAR) == small_is_better { 5_000 } else { 8_000 }
                };
                write(&mut tuning, 64 * KIB, 2_000, time);
                let in_small = write(&mut tuning, 64 * KIB, 10_000, time);
                assert!(
                    if small_is_better { in_small > 8_000 } else { in_small < 2_000 },
                    "{in_small}"
                );
            }
        }
    }

    #[test]
    fn a_change_of_the_machine_is_found_out() {
        let mut tuning = Tuning::new(NEAR, FAR);
        let small_is_better = |footprint| if footprint < NEAR { 5_000 } else { 8_000 };
        assert!(write(&mut tuning, 64 * KIB, 10_000, small_is_better) > 9_000);
        let large_is_better = |footprint| if footprint < NEAR { 8_000 } else { 5_000 };
        write(&mut tuning, 64 * KIB, 20_000, large_is_better);
        assert!(write(&mut tuning, 64 * KIB, 10_000, large_is_better) < 1_000);
    }

    #[test]
    fn nothing_is_tried_where_it_makes_no_difference_or_lengths_change() {
        let mut tuning = Tuning::new(NEAR, FAR);
        assert_eq!(write(&mut tuning, 16 << 20, 10_000, |_| 5_000), 0);
        for round in 0..1_000 {
            assert_eq!(write(&mut tuning, (64 + round % 2 * 64) * KIB, 10, |_| 5_000), 0);
        }
    }

    #[test]
    fn a_trial_ends_when_the_peers_move() {
        let mut tuning = Tuning::new(NEAR, FAR);
        while tuning.trial.is_none() {
            write(&mut tuning, 64 * KIB, 1, |_| 5_000);
        }
        assert_eq!(tuning.footprint(), NEAR / PART);
        (0..100).for_each(|_| tuning.note_distance(Duration::from_nanos(900)));
        assert_eq!(tuning.footprint(), FAR);
        (0..100).for_each(|_| tuning.note_distance(Duration::from_nanos(40)));
        assert_eq!(tuning.footprint(), NEAR);
    }
}
