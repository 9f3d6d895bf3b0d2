//! How far a sender gets ahead of its receiver through the pool.
//!
//! A sender that is ahead takes fresh blocks, which lie outside of the caches, as many as it has slots. So one
//! that may wait does so, for a while, once its receiver holds twice the footprint that the pool walks through.
//! A receiver that keeps what it has got is not waited for twice: what it held when waiting was in vain counts
//! as kept, until it holds less, and it may get twice as far ahead before the next wait.

use std::time::Duration;

/// How long to wait for a loan of so many bytes a nanosecond: a receiver that reads them and does little else is
/// faster.
const BYTES_A_NANO: u64 = 5;

/// The shortest and the longest wait.
const WAIT: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(10));

/// What a sender knows of how much its receiver holds.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Messages of at most `len` bytes that may be lent before the next look.
    unlooked: usize,
    len: usize,
    /// Loans that the receiver keeps, as far as is known.
    kept: usize,
    /// Waits that were in vain since one was not.
    vain: u32,
}

impl Pace {
    /// How long a loan of `len` bytes is waited for.
    pub(super) fn wait(len: usize) -> Duration {
        let (least, most) = WAIT;
        Duration::from_nanos(len as u64 / BYTES_A_NANO).clamp(least, most)
    }

    /// Whether to look how much the receiver holds before a message of `len` bytes is lent.
    #[inline]
    pub(super) fn is_due(&mut self, len: usize) -> bool {
        let is_due = self.unlooked == 0 || len > self.len;
        if !is_due {
            self.unlooked -= 1;
        }
        is_due
    }

    /// Takes in that the receiver holds `held` loans. `Some`: it is to be waited for, until it has returned the
    /// oldest but so many. `most` is how many loans of `len` bytes it may hold unless it keeps them.
    pub(super) fn judge(&mut self, len: usize, held: usize, most: usize) -> Option<usize> {
        if held < self.kept {
            (self.kept, self.vain) = (held, 0);
        }
        self.len = len;
        let most = most.saturating_mul(1usize.checked_shl(self.vain).unwrap_or(usize::MAX));
        let room = most.saturating_sub(held - self.kept);
        self.unlooked = room.saturating_sub(1);
        (room == 0).then_some(self.kept)
    }

    /// It held `held` loans when it was waited for, which was in vain or not.
    pub(super) fn waited(&mut self, held: usize, in_vain: bool) {
        if in_vain {
            self.kept = held;
            self.vain += 1;
        } else {
            self.vain = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1 << 20;

    /// Lends one message to a receiver that holds `held`, whose returns come in time or do not. Gives how many
    /// waits that took.
    fn lend(pace: &mut Pace, held: usize, returns: bool) -> usize {
        if !pace.is_due(LEN) || pace.judge(LEN, held, 4).is_none() {
            return 0;
        }
        pace.waited(held, !returns);
        1
    }

    #[test]
    fn who_keeps_up_is_never_waited_for() {
        let mut pace = Pace::default();
        assert_eq!((0..100).map(|i| lend(&mut pace, i % 4, false)).sum::<usize>(), 0);
    }

    #[test]
    fn who_returns_is_waited_for_at_twice_the_footprint() {
        let mut pace = Pace::default();
        let waits: Vec<usize> =
            [0, 1, 2, 3, 4, 4, 4, 3, 4].map(|held| lend(&mut pace, held, true)).into();
        assert_eq!(waits, [0, 0, 0, 0, 1, 1, 1, 0, 1]);
    }

    #[test]
    fn who_keeps_is_waited_for_ever_more_seldom() {
        let mut pace = Pace::default();
        let waits = (0..1000).filter(|held| lend(&mut pace, *held, false) == 1);
        assert_eq!(waits.collect::<Vec<_>>(), [4, 12, 28, 60, 124, 252, 508]);
        // A thousand are kept, and the next ones come back.
        pace.waited(1000, true);
        let most = 4 << 8;
        assert_eq!(pace.judge(LEN, 1000 + most - 1, 4), None);
        assert_eq!(pace.judge(LEN, 1000 + most, 4), Some(1000));
        pace.waited(1000 + most, false);
        assert_eq!(pace.judge(LEN, 1003, 4), None);
        assert_eq!(pace.judge(LEN, 1004, 4), Some(1000));
        // They were not kept for ever.
        pace.waited(1004, true);
        assert_eq!(pace.judge(LEN, 3, 4), None);
        assert_eq!(pace.judge(LEN, 7, 4), Some(3));
    }

    #[test]
    fn waits_in_vain_without_end_are_counted_without_end() {
        let mut pace = Pace::default();
        (0..1000).for_each(|_| pace.waited(4, true));
        assert_eq!(pace.judge(LEN, usize::MAX, 4), None);
    }

    #[test]
    fn a_longer_message_is_looked_at_again() {
        let mut pace = Pace::default();
        assert!(pace.is_due(4096));
        assert_eq!(pace.judge(4096, 100, 1024), None);
        assert!(!pace.is_due(4096));
        assert!(pace.is_due(LEN));
        assert_eq!(pace.judge(LEN, 100, 4), Some(0));
    }

    #[test]
    fn a_wait_grows_with_the_message_within_bounds() {
        assert_eq!(Pace::wait(8), WAIT.0);
        assert_eq!(Pace::wait(1_000_000), Duration::from_micros(200));
        assert_eq!(Pace::wait(usize::MAX), WAIT.1);
    }
}
