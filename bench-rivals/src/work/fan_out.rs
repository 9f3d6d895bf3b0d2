//! One message to 16 receivers. The leader fills it once and sends it to all; the follower, on one thread,
//! receives it 16 times, looks at words spread over it each time, and answers through a line.

use super::link::Count;
use super::stream::Answer;
use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::payload;

pub const RECEIVERS: usize = 16;

/// Sends one message to all receivers; it is to be filled by the function.
pub type Publish = Box<dyn FnMut(&mut dyn FnMut(&mut [u8])) -> Outcome<()>>;
/// Waits for the next message of this receiver and shows it.
pub type Look = Box<dyn FnMut(&mut dyn FnMut(&[u8]) -> Outcome<()>) -> Outcome<()>>;

pub enum Part {
    Sender(Publish),
    Receivers(Vec<Look>),
}

pub struct FanOut {
    part: Part,
    count: Count,
    answer: Answer,
}

impl FanOut {
    pub fn over(part: Part, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let answer = Answer::open(setup)?;
        Ok(Box::new(FanOut { part, count: Count::new(setup), answer }))
    }
}

impl Exchange for FanOut {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        let Part::Sender(publish) = &mut self.part else {
            return Err("the receivers do not lead".into());
        };
        for _ in 0..count {
            let seed = self.count.next_out();
            publish(&mut |bytes| payload::fill(bytes, seed))?;
            self.answer.hear();
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let Part::Receivers(receivers) = &mut self.part else {
            return Err("the sender does not follow".into());
        };
        for _ in 0..count {
            let (number, seed) = self.count.next_in();
            for look in &mut *receivers {
                look(&mut |bytes| check(bytes, seed, number))?;
            }
            self.answer.tell(number);
        }
        Ok(())
    }
}

/// How many words are looked at.
const WORDS: usize = 16;

/// Looks at words spread evenly over a message that `payload::fill` has filled.
fn check(bytes: &[u8], seed: u64, number: u64) -> Outcome<()> {
    let stride = bytes.len() / WORDS;
    let (mut got, mut expected) = (0u64, 0u64);
    for (index, part) in bytes.chunks_exact(stride).enumerate() {
        got = got.wrapping_add(payload::sum(&part[..8]));
        expected = expected.wrapping_add(seed.wrapping_add((index * stride / 8) as u64));
    }
    payload::check(got, expected, number)
}
