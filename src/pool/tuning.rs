//! How much of a class to walk through, by how long writing takes.
//!
//! Lines that another core has just read are slow to write, so blocks are used in turn; but the more of them there
//! are, the farther away they lie when their turn comes. Where the best lies between the two depends on the machine
//! and on where its threads run: `docs/performance.md` has figures. So a class begins with a small footprint, and
//! goes over to one of those that the options name if its blocks are written faster there: now and then a few are
//! written in another one, and timed, and once more in the one before, as the machine may have become slower or
//! faster meanwhile.

use std::time::{Duration, Instant};

use crate::pool::distance::Distance;

/// Messages of so many bytes are timed: shorter ones take little longer than reading the clock.
pub(super) const LONG: u64 = 4 << 10;

/// What part the small footprint is of that for near peers. Source: `ping_pong`, `inplace` at 64 KiB, on Sapphire
/// Rapids: 2 to 8 blocks take 26 to 28 µs, 16 take 29, 32 take 33.
const PART: u64 = 8;

/// How many times that for near peers the middle one is, while they are far. Source: `stream` of 1 MiB in
/// `bench-rivals`, there: a message takes 103 to 119 µs with 1 or 2 blocks, 91 to 103 with 4, 94 to 152 with 8.
const TIMES: u64 = 2;

/// Blocks that are timed before a trial, and in it: with 16 an interrupted one in five does not move the median.
const SAMPLES: usize = 16;

/// Blocks beside those that are walked through until the caches hold these, and no others.
const SETTLE: u64 = 4;

/// Blocks between two trials: at first, so that a short exchange gains from one; and after many in vain.
const PAUSE: (u64, u64) = (2 * SAMPLES as u64, 1 << 16);

/// And after a trial no fewer than so many times its blocks, which may take twice as long as others.
const SHARE: u64 = 16;

/// What the options say, and how far the peers of a pool are, all together.
#[derive(Debug)]
pub(super) struct Footprints {
    /// Bytes of a class to walk through.
    near: u64,
    far: u64,
    distance: Distance,
    is_far: bool,
}

impl Footprints {
    pub(super) fn new(near: u64, far: u64) -> Self {
        Self { near, far: far.max(near), distance: Distance::default(), is_far: false }
    }

    /// Takes in how long a peer's line took to come.
    pub(super) fn note_distance(&mut self, took: Duration) {
        if let Some(is_far) = self.distance.note(took) {
            self.is_far = is_far;
        }
    }

    fn of(&self, size: Size) -> u64 {
        let large = if self.is_far { self.far } else { self.near };
        match size {
            Size::Small => self.near / PART,
            Size::Middle => self.near.saturating_mul(TIMES).min(large),
            Size::Large => large,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Small,
    Middle,
    Large,
}

/// Which footprint is used.
#[derive(Debug, Clone, Copy)]
struct Choice {
    size: Size,
    /// The one that lost the last trial, or was cut off in it.
    worse: Size,
    /// Blocks from one trial to the next.
    pause: u64,
    /// Blocks until the next one.
    left: u64,
}

impl Choice {
    /// What to try next, of those that differ from what is used: not again what has just lost, if there is another.
    fn next(&self, differs: impl Fn(Size) -> bool) -> Option<Size> {
        let sizes = [Size::Small, Size::Middle, Size::Large].into_iter();
        sizes.filter(|size| differs(*size)).min_by_key(|size| *size == self.worse)
    }

    /// The next pause is twice as long.
    fn lengthen(&mut self) {
        self.pause = (self.pause * 2).min(PAUSE.1);
        self.left = self.pause;
    }

    /// After a trial, which was in vain or not.
    fn rest(&mut self, Trial { from, to, blocks, .. }: Trial, in_vain: bool) {
        if in_vain {
            (self.size, self.worse) = (from, to);
            self.lengthen();
        } else {
            (self.size, self.worse, self.pause) = (to, from, PAUSE.0);
        }
        self.left = self.pause.max(SHARE * blocks);
    }
}

/// Another footprint is tried.
#[derive(Debug, Clone, Copy)]
struct Trial {
    from: Size,
    to: Size,
    /// What a block took before, as in [`Rates`].
    before: u64,
    /// What it took in the other one. `None`: that is in use. `Some`: the one before is again.
    tried: Option<u64>,
    /// Blocks that it takes.
    blocks: u64,
    /// Blocks that are not timed yet: until the caches hold what is walked through.
    settling: u64,
    /// So many are not after it went back.
    settling_back: u64,
}

impl Trial {
    fn new((from, walk): (Size, u64), (to, walk_there): (Size, u64), before: u64) -> Self {
        let (settling, settling_back) = (walk_there + SETTLE, walk + SETTLE);
        let blocks = settling + SAMPLES as u64;
        Self { from, to, before, tried: None, blocks, settling, settling_back }
    }

    /// The footprint before is in use again.
    fn back(self, tried: u64) -> Self {
        let Self { settling_back: settling, .. } = self;
        let blocks = self.blocks + settling + SAMPLES as u64;
        Self { tried: Some(tried), blocks, settling, ..self }
    }
}

/// Whether a block that took `now` was written faster than one that took `before`: less than a tenth is what the
/// median strays by itself.
fn is_faster(now: u64, before: u64) -> bool {
    now > 0 && now.saturating_mul(10) < before.saturating_mul(9)
}

/// Bytes in a nanosecond that nobody writes, whatever the machine. What took less time was not written, and tells
/// nothing: it counts as no time at all.
const FASTEST: u64 = 200;

/// The last times, in nanoseconds for 1 MiB.
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

/// A block whose writing is timed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) since: Instant,
    /// What it is a sample of.
    round: u32,
}

impl Timing {
    pub(super) fn start(round: u32) -> Self {
        Self { since: Instant::now(), round }
    }
}

/// Which footprint the blocks of a class are walked through in.
#[derive(Debug)]
pub(super) struct Tuning {
    is_far: bool,
    /// Near and far.
    choices: [Choice; 2],
    trial: Option<Trial>,
    rates: Rates,
    /// Goes up when what was timed tells nothing any more.
    round: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        let (size, pause) = (Size::Small, PAUSE.0);
        let choice = Choice { size, worse: size, pause, left: pause };
        let (choices, rates) = ([choice; 2], Rates::default());
        Self { is_far: false, choices, trial: None, rates, round: 0 }
    }
}

impl Tuning {
    /// One that has come to the largest footprint, and stays there.
    #[cfg(test)]
    pub(super) fn at_large() -> Self {
        let mut tuning = Self::default();
        for choice in &mut tuning.choices {
            (choice.size, choice.left) = (Size::Large, u64::MAX);
        }
        tuning
    }

    /// Bytes to walk through now.
    #[inline]
    pub(super) fn footprint(&self, all: &Footprints) -> u64 {
        all.of(self.choices[usize::from(all.is_far)].size)
    }

    /// A block is handed out that a peer has read before, for [`LONG`] bytes or more. `Some`: it is to be timed, in
    /// this round. `walk` tells how many blocks are walked through in a footprint.
    pub(super) fn hand_out(&mut self, all: &Footprints, walk: impl Fn(u64) -> u64) -> Option<u32> {
        if all.is_far != self.is_far {
            self.abandon();
            self.is_far = all.is_far;
        }
        if let Some(trial) = &mut self.trial {
            trial.settling = trial.settling.saturating_sub(1);
            return (trial.settling == 0).then_some(self.round);
        }
        let choice = &mut self.choices[usize::from(self.is_far)];
        choice.left = choice.left.saturating_sub(1);
        if choice.left > 0 {
            return (choice.left <= 2 * SAMPLES as u64).then_some(self.round);
        }
        let Some(before) = self.rates.median() else { return Some(self.round) };
        let from = choice.size;
        let now = walk(all.of(from));
        match choice.next(|size| walk(all.of(size)) != now) {
            Some(to) if before > 0 => {
                choice.size = to;
                self.trial = Some(Trial::new((from, now), (to, walk(all.of(to))), before));
            }
            // Nobody writes them: of many blocks one is ready soonest.
            Some(_) => {
                choice.size = Size::Large;
                choice.lengthen();
            }
            None => choice.lengthen(),
        }
        self.begin_round();
        None
    }

    /// Takes in how long it took to write `len` bytes, and ends a trial that has shown enough.
    pub(super) fn note(&mut self, Timing { since, round }: Timing, len: u64) {
        self.note_time(round, since.elapsed(), len);
    }

    fn note_time(&mut self, round: u32, took: Duration, len: u64) {
        if round != self.round || len < LONG {
            return;
        }
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let rate = if took < len / FASTEST { 0 } else { took.saturating_mul(1 << 20) / len };
        self.rates.push(rate);
        let Some(trial) = self.trial else { return };
        let Some(now) = self.rates.median() else { return };
        let choice = &mut self.choices[usize::from(self.is_far)];
        self.trial = match trial.tried {
            None if is_faster(now, trial.before) => {
                choice.size = trial.from;
                Some(trial.back(now))
            }
            tried => {
                choice.rest(trial, !tried.is_some_and(|tried| is_faster(tried, now)));
                None
            }
        };
        self.begin_round();
    }

    /// The peers have moved: a trial that was cut off was in vain.
    fn abandon(&mut self) {
        if let Some(trial) = self.trial.take() {
            self.choices[usize::from(self.is_far)].rest(trial, true);
        }
        self.begin_round();
    }

    fn begin_round(&mut self) {
        self.rates = Rates::default();
        self.round = self.round.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::class;

    const LEN: u64 = 64 << 10;
    const NEAR: u64 = 2 << 20;
    const FAR: u64 = 32 << 20;

    fn walk(footprint: u64) -> u64 {
        class::walk(LEN, footprint)
    }

    /// Writes `count` blocks, in the time that `time` gives for a footprint. Gives the footprint of each.
    fn write(
        (tuning, all): (&mut Tuning, &Footprints),
        count: u64,
        time: impl Fn(u64) -> u64,
    ) -> Vec<u64> {
        let mut footprints = Vec::new();
        for number in 0..count {
            let timed = tuning.hand_out(all, walk);
            let footprint = tuning.footprint(all);
            footprints.push(footprint);
            if let Some(round) = timed {
                // Now and then somebody is interrupted.
                let late = if number % 5 == 0 { 1_000_000 } else { 0 };
                tuning.note_time(round, Duration::from_nanos(time(footprint) + late), LEN);
            }
        }
        footprints
    }

    /// How many are this one.
    fn count(footprints: &[u64], is_this: impl Fn(u64) -> bool) -> usize {
        footprints.iter().filter(|footprint| is_this(**footprint)).count()
    }

    fn is_small(footprint: u64) -> bool {
        footprint < NEAR
    }

    fn faster_if(small: bool) -> impl Fn(u64) -> u64 {
        move |footprint| if (footprint < NEAR) == small { 5_000 } else { 8_000 }
    }

    #[test]
    fn the_footprint_in_which_writing_is_faster_is_found_and_kept() {
        for (near, far) in [(true, true), (true, false), (false, true), (false, false)] {
            let (mut tuning, mut all) = (Tuning::default(), Footprints::new(NEAR, FAR));
            for (is_far, small) in [(false, near), (true, far), (false, near)] {
                all.is_far = is_far;
                write((&mut tuning, &all), 2_000, faster_if(small));
                let used = write((&mut tuning, &all), 10_000, faster_if(small));
                // The middle one is as fast as the large one: whichever was tried first is kept.
                let others = count(&used, |footprint| is_small(footprint) != small);
                assert!(others < 2_000, "{others}");
            }
        }
    }

    #[test]
    fn the_best_of_three_is_found_whichever_it_is_and_from_wherever() {
        let all = Footprints { is_far: true, ..Footprints::new(NEAR, FAR) };
        let sizes = [Size::Small, Size::Middle, Size::Large].map(|size| all.of(size));
        assert!(sizes[0] < sizes[1] && sizes[1] < sizes[2], "{sizes:?}");
        let mut tuning = Tuning::default();
        // Each after each other one.
        for best in [2, 1, 0, 2, 0, 1, 2].map(|size: usize| sizes[size]) {
            let time = |footprint| if footprint == best { 5_000 } else { 7_000 };
            // Both others may come before it, after the longest pauses.
            write((&mut tuning, &all), 3 * PAUSE.1, time);
            let used = write((&mut tuning, &all), 20_000, time);
            let others = count(&used, |footprint| footprint != best);
            assert!(others < 2_000, "{others} in others of {sizes:?}");
        }
    }

    #[test]
    fn while_peers_are_near_or_no_farther_there_are_two() {
        for (far, is_far) in [(FAR, false), (NEAR, true)] {
            let all = Footprints { is_far, ..Footprints::new(NEAR, far) };
            assert_eq!(all.of(Size::Middle), NEAR);
            let mut tuning = Tuning::default();
            let used = write((&mut tuning, &all), 10_000, |_| 5_000);
            let small = count(&used, is_small);
            assert!(small > 0 && small + count(&used, |footprint| footprint == NEAR) == 10_000);
        }
    }

    #[test]
    fn a_change_of_the_machine_is_found_out() {
        let (mut tuning, all) = (Tuning::default(), Footprints::new(NEAR, FAR));
        let used = write((&mut tuning, &all), 10_000, faster_if(true));
        assert!(count(&used, is_small) > 9_000);
        write((&mut tuning, &all), 20_000, faster_if(false));
        let used = write((&mut tuning, &all), 10_000, faster_if(false));
        assert!(count(&used, is_small) < 1_000);
    }

    #[test]
    fn what_nobody_writes_tells_nothing() {
        let (mut tuning, all) = (Tuning::default(), Footprints::new(NEAR, FAR));
        // Many blocks are at hand sooner than few.
        let too_short = |footprint| LEN / FASTEST / if footprint < NEAR { 2 } else { 3 };
        let used = write((&mut tuning, &all), 50_000, too_short);
        assert!(count(&used, is_small) <= PAUSE.0 as usize);
        // Nor where the last one was written, and those of the trial are not.
        let only_large = |footprint| if footprint < NEAR { 1 } else { 8_000 };
        let used = write((&mut tuning, &all), 50_000, only_large);
        assert!(count(&used, is_small) < 1_500);
    }

    #[test]
    fn nothing_is_tried_where_it_makes_no_difference() {
        let (mut tuning, all) = (Tuning::default(), Footprints::new(NEAR, FAR));
        let mut timed = 0;
        for _ in 0..10_000 {
            if let Some(round) = tuning.hand_out(&all, |_| 1) {
                tuning.note_time(round, Duration::from_nanos(5_000), LEN);
                timed += 1;
            }
            assert!(is_small(tuning.footprint(&all)));
        }
        assert!(timed < 1_000, "{timed}");
    }

    #[test]
    fn peers_that_move_again_and_again_cut_trials_off_and_get_few() {
        let (mut tuning, mut all) = (Tuning::default(), Footprints::new(NEAR, FAR));
        let (mut tried, mut cut_off) = (0, Vec::new());
        for _ in 0..200 {
            let used = write((&mut tuning, &all), 60, faster_if(false));
            tried += count(&used, |footprint| !is_small(footprint));
            cut_off.extend(tuning.trial.map(|trial| trial.to));
            all.is_far = !all.is_far;
        }
        assert!(tried > 0 && tried < 2_000, "{tried} of 12000");
        assert!(cut_off.contains(&Size::Middle) && cut_off.contains(&Size::Large), "{cut_off:?}");
        assert!(tuning.choices.iter().all(|choice| choice.size == Size::Small));
    }

    #[test]
    fn what_was_handed_out_before_a_trial_tells_nothing_of_it() {
        let (mut tuning, all) = (Tuning::default(), Footprints::new(NEAR, FAR));
        let mut before = 0;
        while tuning.trial.is_none() {
            before = tuning.round;
            if let Some(round) = tuning.hand_out(&all, walk) {
                tuning.note_time(round, Duration::from_nanos(5_000), LEN);
            }
        }
        (0..100).for_each(|_| tuning.note_time(before, Duration::from_nanos(1), LEN));
        assert!(tuning.trial.is_some());
        write((&mut tuning, &all), 100, faster_if(true));
        assert!(is_small(tuning.footprint(&all)));
    }

    #[test]
    fn a_machine_that_becomes_faster_during_a_trial_decides_nothing() {
        let (mut tuning, all) = (Tuning::default(), Footprints::new(NEAR, FAR));
        let (mut trials, mut was_tried) = (0, false);
        for _ in 0..20_000 {
            let is_tried = tuning.trial.is_some();
            trials += u32::from(is_tried && !was_tried);
            was_tried = is_tried;
            if let Some(round) = tuning.hand_out(&all, walk) {
                let time = if is_tried { 5_000 } else { 8_000 };
                tuning.note_time(round, Duration::from_nanos(time), LEN);
            }
            assert!(tuning.trial.is_some() || is_small(tuning.footprint(&all)));
        }
        assert!(trials > 3, "{trials}");
    }
}
