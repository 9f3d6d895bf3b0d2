//! One way: the leader fills and sends, the follower sums; at the end of a batch the follower answers
//! through a line of shared memory, the same for every system.

use std::sync::atomic::Ordering;

use super::link::{Count, End};
use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::memory::{Mapping, PAGE};
use crate::payload;

/// A word each way that tells the other side how far this one is.
pub struct Answer {
    mine: Mapping,
    theirs: Mapping,
    told: u64,
    heard: u64,
}

impl Answer {
    pub fn open(setup: &Setup) -> Outcome<Answer> {
        let (mine, theirs) = setup.segments(PAGE, false)?;
        Ok(Answer { mine, theirs, told: 0, heard: 0 })
    }

    /// Says that a batch is done, with a word about it.
    pub fn tell(&mut self, word: u64) {
        // Relaxed: published by the number below.
        self.mine.word(8).store(word, Ordering::Relaxed);
        self.told += 1;
        // Pairs with the fence in `hear`: the word is visible with its number.
        self.mine.word(0).store(self.told, Ordering::Release);
    }

    /// Polls until the other side has said so.
    pub fn hear(&mut self) -> u64 {
        self.heard += 1;
        let number = self.heard;
        self.theirs.watch(0).until(|told| told >= number);
        self.theirs.watch(8).load()
    }
}

pub struct Stream<E> {
    end: E,
    count: Count,
    private: Vec<u8>,
    answer: Answer,
}

impl<E: End + 'static> Stream<E> {
    pub fn over(end: E, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let answer = Answer::open(setup)?;
        let private = vec![0; setup.bytes];
        Ok(Box::new(Stream { end, count: Count::new(setup), private, answer }))
    }
}

impl<E: End> Exchange for Stream<E> {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.end.fill(&mut self.private, self.count.next_out())?;
        }
        self.answer.hear();
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let (mut got, mut expected, mut last) = (0u64, 0u64, 0);
        let mut left = count;
        while left > 0 {
            let (some, sum) = self.end.sum_run(&mut self.private, left)?;
            got = got.wrapping_add(sum);
            for _ in 0..some {
                let (number, seed) = self.count.next_in();
                expected = expected.wrapping_add(payload::expected(self.private.len(), seed));
                last = number;
            }
            left -= some;
        }
        payload::check(got, expected, last)?;
        self.answer.tell(last);
        Ok(())
    }
}
