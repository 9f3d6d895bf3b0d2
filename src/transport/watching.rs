//! How long to watch for the peer before going to sleep, as has paid lately.

use std::time::{Duration, Instant};

use crate::transport::options::Spin;

/// How often whoever watches lets other threads have the CPU. To nobody that takes less than a
/// microsecond.
const YIELD_EVERY: Duration = Duration::from_micros(20);

/// Whoever is back later than this keeps others from the CPU by watching.
const CONTENDED: Duration = Duration::from_micros(200);

/// So long it then does not watch: a sleeper that is woken comes before those that compute.
const REST: Duration = Duration::from_millis(50);

/// The shortest time that an adaptive watch takes.
const SHORTEST: Duration = Duration::from_micros(2);

/// What part of its longest time an adaptive watch lasts as a rule.
const USUAL_PART: u32 = 5;

/// The most credit that short waits give.
const MOST_CREDIT: u32 = 64;

/// With so much credit a long wait is an exception.
const GOOD_CREDIT: u32 = 16;

/// How many short waits make up for each usual length of a long one.
const PRICE: u32 = 5;

/// How long to watch before going to sleep, as [`Spin`] says and as it has paid lately.
#[derive(Debug, Clone)]
pub(crate) struct Watching {
    spin: Spin,
    /// How long a watch lasts as a rule.
    budget: Duration,
    /// How much more often waits are short than long: one more with each short one, less by [`PRICE`]
    /// with each usual length of a long one.
    credit: u32,
    /// The last long wait was over before the longest watch would have been.
    pays: bool,
    /// What is watched for has begun to come: an adaptive watch is of the usual length, whatever has
    /// paid, and says nothing about what pays.
    pub(super) is_coming: bool,
    /// When others get the CPU next.
    next_yield: Instant,
    /// Others need the CPU; asked anew from then on.
    contended_until: Instant,
}

impl Watching {
    pub(crate) fn new(spin: Spin) -> Self {
        let budget = match spin {
            Spin::Adaptive { max } => max / USUAL_PART,
            Spin::For(time) => time,
            Spin::Never => Duration::ZERO,
            Spin::Forever => Duration::MAX,
        };
        let now = Instant::now();
        Self {
            spin,
            budget,
            credit: PRICE,
            pays: false,
            is_coming: false,
            next_yield: now,
            contended_until: now,
        }
    }

    /// Whether there is no watching at all.
    #[inline(always)]
    pub(crate) fn is_never(&self) -> bool {
        self.spin == Spin::Never
    }

    /// Whether watching goes by what has paid.
    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.spin, Spin::Adaptive { .. })
    }

    /// Whether somebody who watches since `since` goes on. From time to time others get the CPU in
    /// between; where some need it, the answer is no for a while.
    #[inline]
    pub(crate) fn goes_on(&mut self, since: Instant, now: Instant) -> bool {
        now - since < self.length()
            && (now < self.next_yield || !self.is_adaptive() || !self.is_contended(now))
    }

    /// How long to watch now.
    fn length(&self) -> Duration {
        match self.spin {
            Spin::Adaptive { max } if self.is_coming => max / USUAL_PART,
            // Whoever sleeps through an exception is late itself, and its peer then sleeps, too.
            Spin::Adaptive { max } if self.pays && self.credit >= GOOD_CREDIT => max,
            _ => self.budget,
        }
    }

    fn is_contended(&mut self, now: Instant) -> bool {
        if now < self.contended_until {
            return true;
        }
        rustix::thread::sched_yield();
        self.yielded(now, Instant::now())
    }

    /// Others could have the CPU from `now` until `back`. Whether some needed it.
    fn yielded(&mut self, now: Instant, back: Instant) -> bool {
        if back - now < CONTENDED {
            self.next_yield = back + YIELD_EVERY;
            return false;
        }
        self.contended_until = back + REST;
        true
    }

    /// After a wait, watched or slept through: would a watch of the usual length have caught what
    /// ended it, or one of the longest? [`Duration::MAX`] where nothing came. Waits that are over before
    /// anybody reads the clock are not told of.
    pub(crate) fn ended(&mut self, waited: Duration) {
        let Spin::Adaptive { max } = self.spin else { return };
        if self.is_coming {
            return;
        }
        let usual = max / USUAL_PART;
        if waited <= usual {
            self.credit = MOST_CREDIT.min(self.credit + 1);
            self.budget = usual;
            return;
        }
        self.pays = waited <= max;
        let parts = (2..USUAL_PART).find(|&parts| waited <= parts * usual).unwrap_or(USUAL_PART);
        self.credit = self.credit.saturating_sub(PRICE * parts);
        if self.credit == 0 {
            self.budget = (self.budget / 2).max(SHORTEST.min(usual));
        }
    }
}

/// A wait of somebody who looks again and again, and may be away in between.
#[derive(Debug, Clone)]
pub(crate) struct Lookout {
    watching: Watching,
    /// When it began.
    since: Option<Instant>,
    /// When there was nothing for the last time, or the sleep after that ended.
    looked: Instant,
}

impl Lookout {
    pub(crate) fn new(watching: Watching) -> Self {
        Self { watching, since: None, looked: Instant::now() }
    }

    /// Whether there is no watching at all.
    #[inline(always)]
    pub(crate) fn is_never(&self) -> bool {
        self.watching.is_never()
    }

    /// Whether watching goes by what has paid.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.watching.is_adaptive()
    }

    /// Nothing is there. Whether to watch on.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        let since = self.since(now);
        self.watching.goes_on(since, now)
    }

    /// Nothing is there. Since when.
    pub(crate) fn since(&mut self, now: Instant) -> Instant {
        self.looked = now;
        *self.since.get_or_insert(now)
    }

    /// A sleep is over.
    pub(crate) fn woke(&mut self, now: Instant) {
        self.looked = now;
    }

    /// Something is there.
    #[inline]
    pub(crate) fn is_over(&mut self) {
        if let Some(since) = self.since.take() {
            self.watching.ended(self.looked - since);
        }
    }

    /// Nobody has looked for a while.
    pub(crate) fn forget(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_micros(400);
    const MAX: Duration = Duration::from_micros(2000);

    fn adaptive() -> Watching {
        Watching::new(Spin::Adaptive { max: MAX })
    }

    /// The part of the time that was watched, and the part of the waits that ended in a sleep.
    fn watched(waits: &[u64]) -> (f64, f64) {
        let mut watching = adaptive();
        let (mut watched, mut slept) = (Duration::ZERO, 0);
        let rounds = 1000;
        for _ in 0..rounds {
            for &micros in waits {
                let wait = Duration::from_micros(micros);
                watched += wait.min(watching.length());
                slept += u32::from(wait > watching.length());
                watching.ended(wait);
            }
        }
        let all = Duration::from_micros(waits.iter().sum()) * rounds;
        let count = waits.len() as f64 * f64::from(rounds);
        (watched.as_secs_f64() / all.as_secs_f64(), f64::from(slept) / count)
    }

    #[test]
    fn watching_goes_on_as_its_spin_says() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!Watching::new(Spin::Never).goes_on(now, now));
        for (spin, length) in [(Spin::Forever, 100 * second), (Spin::For(second), second)] {
            let mut watching = Watching::new(spin);
            watching.ended(3 * second);
            // Whoever says for how long is believed, whoever else needs the CPU.
            watching.contended_until = now + 1000 * second;
            assert!(watching.goes_on(now, now + length / 2));
            assert_eq!(watching.goes_on(now, now + length), spin == Spin::Forever);
        }
    }

    #[test]
    fn adaptive_watching_stops_for_a_while_where_others_need_the_cpu() {
        let now = Instant::now();
        let mut watching = Watching::new(Spin::Adaptive { max: Duration::from_secs(3600) });
        watching.next_yield = now;
        watching.contended_until = now + REST;
        assert!(!watching.goes_on(now, now));
        assert!(!watching.goes_on(now, now + REST / 2));
        // Until somebody needs it, the next yield is what is waited for.
        watching.next_yield = now + 2 * REST;
        assert!(watching.goes_on(now, now + REST));
    }

    #[test]
    fn a_late_yield_is_followed_by_a_rest_and_a_prompt_one_by_the_next() {
        let mut watching = adaptive();
        let now = Instant::now();
        let back = now + CONTENDED - Duration::from_nanos(1);
        assert!(!watching.yielded(now, back));
        assert_eq!(watching.next_yield, back + YIELD_EVERY);
        assert!(watching.goes_on(now, back));
        assert!(watching.yielded(now, now + CONTENDED));
        assert_eq!(watching.contended_until, now + CONTENDED + REST);
    }

    #[test]
    fn what_has_begun_to_come_is_watched_for_whatever_has_paid() {
        let mut watching = adaptive();
        (0..20).for_each(|_| watching.ended(2 * MAX));
        assert_eq!(watching.length(), SHORTEST);
        watching.is_coming = true;
        assert_eq!(watching.length(), USUAL);
        // Pieces say nothing about messages.
        (0..100).for_each(|_| watching.ended(USUAL));
        watching.is_coming = false;
        assert_eq!(watching.length(), SHORTEST);
        // Whoever says for how long, or never, is believed.
        for spin in [Spin::For(SHORTEST), Spin::Never] {
            let mut watching = Watching::new(spin);
            watching.is_coming = true;
            assert!(watching.length() <= SHORTEST);
        }
    }

    #[test]
    fn long_waits_halve_the_watch_and_a_short_one_restores_it() {
        let mut watching = adaptive();
        assert_eq!(watching.length(), USUAL);
        watching.ended(USUAL + SHORTEST);
        assert_eq!(watching.length(), USUAL / 2);
        (0..20).for_each(|_| watching.ended(Duration::MAX));
        assert_eq!(watching.length(), SHORTEST);
        watching.ended(USUAL);
        assert_eq!(watching.length(), USUAL);
        // Not as long as short ones have paid for them.
        (0..2 * PRICE).for_each(|_| watching.ended(USUAL));
        watching.ended(USUAL + SHORTEST);
        assert_eq!((watching.credit, watching.budget), (1, USUAL));
        for max in [Duration::ZERO, Duration::from_micros(5), Duration::MAX] {
            let mut watching = Watching::new(Spin::Adaptive { max });
            (0..100).for_each(|_| watching.ended(Duration::MAX));
            assert!(watching.length() <= max / USUAL_PART);
        }
    }

    #[test]
    fn an_exception_among_short_waits_is_watched_for_while_that_pays() {
        let mut watching = adaptive();
        let mut ended = |waits: u32, wait| {
            (0..waits).for_each(|_| watching.ended(wait));
            watching.length()
        };
        let short = USUAL;
        assert_eq!(ended(100, short), USUAL);
        assert_eq!(ended(1, MAX), MAX);
        // One that outlasts the longest watch says that the next one might do so, too.
        assert_eq!(ended(1, MAX + SHORTEST), USUAL);
        assert_eq!(ended(MOST_CREDIT, short), USUAL);
        assert_eq!(ended(1, 2 * USUAL), MAX);
        // What comes again and again is none: each usual length of it costs five short waits.
        assert_eq!(ended(2, 4 * USUAL), USUAL);
        assert_eq!(ended(1, short), USUAL);
        assert_eq!(ended(1, short), MAX);
    }

    #[test]
    fn whoever_was_away_has_not_waited() {
        let mut lookout = Lookout::new(adaptive());
        let now = Instant::now();
        lookout.watching.next_yield = now + 100 * MAX;
        assert!(lookout.goes_on(now) && lookout.goes_on(now + USUAL / 2));
        // The wait began then, whoever wakes up from its sleep for nothing.
        lookout.woke(now + USUAL);
        assert!(!lookout.goes_on(now + USUAL));
        lookout.is_over();
        assert_eq!((lookout.watching.credit, lookout.watching.length()), (PRICE + 1, USUAL));
        // Something there at once is no wait.
        lookout.is_over();
        assert_eq!(lookout.watching.credit, PRICE + 1);
        lookout.since(now);
        lookout.woke(now + 2 * USUAL);
        lookout.is_over();
        assert_eq!((lookout.watching.credit, lookout.watching.length()), (0, USUAL / 2));
        let mut lookout = Lookout::new(adaptive());
        lookout.since(now);
        lookout.since(now + 2 * USUAL);
        lookout.is_over();
        assert_eq!(lookout.watching.length(), USUAL / 2);
        lookout.since(now);
        lookout.forget();
        assert!(lookout.goes_on(now + 100 * USUAL));
    }

    #[test]
    fn a_watch_costs_no_more_than_it_is_worth() {
        let waits = |many: &[(usize, u64)]| -> Vec<u64> {
            many.iter().flat_map(|&(count, micros)| vec![micros; count]).collect()
        };
        // A peer that answers, and now and then is late, is watched for.
        let (_, slept) = watched(&waits(&[(20, 250), (1, 1200)]));
        assert!(slept < 0.001, "{slept}");
        // Once in a while for as long as no watch is: those ones it sleeps through, and few others.
        let (_, slept) = watched(&waits(&[(20, 250), (1, 1200), (20, 250), (1, 4000)]));
        assert!(slept < 3.0 / 42.0, "{slept}");
        // Ten messages in each picture of a camera: 400 of 16,000 µs. With bursts
        // each millisecond or two what is between them is no exception.
        for (burst, worth) in [
            ([(9, 50), (1, 16_000)], 0.06),
            ([(9, 50), (1, 1900)], 0.4),
            ([(5, 20), (1, 950)], 0.5),
            ([(9, 40), (1, 600)], 0.8),
        ] {
            let (watched_for, slept) = watched(&waits(&burst));
            assert!(watched_for < worth && slept < 0.17, "{burst:?}: {watched_for} {slept}");
        }
        // A message each millisecond, and one each 700 µs: slept through, all of them.
        for micros in [700, 1000] {
            let (watched_for, slept) = watched(&[micros]);
            assert!(watched_for < 0.01 && slept > 0.99, "{watched_for} {slept}");
        }
        // Half of them soon, half of them not.
        let (watched_for, _) = watched(&[300, 1500]);
        assert!(watched_for < 0.4, "{watched_for}");
    }
}
