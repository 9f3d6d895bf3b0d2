//! The CPU time that a process takes which waits for a message as its system does by default, and to which
//! nobody sends for `SILENCE`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::finding::{self, Finding};
use super::link::End;
use super::stream::Answer;
use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::work::QUICK;

const SILENCE: Duration = Duration::from_millis(100);
/// The same in a run that only sees whether it works.
const QUICK_SILENCE: Duration = Duration::from_millis(5);

pub struct Idle<E> {
    end: E,
    message: Vec<u8>,
    answer: Answer,
}

impl<E: End + 'static> Idle<E> {
    pub fn over(end: E, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let answer = Answer::open(setup)?;
        Ok(Box::new(Idle { end, message: vec![1; setup.bytes], answer }))
    }
}

impl<E: End> Exchange for Idle<E> {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        let mut used = 0;
        let silence = if QUICK.load(Ordering::Relaxed) { QUICK_SILENCE } else { SILENCE };
        for _ in 0..count {
            std::thread::sleep(silence);
            self.end.send(&self.message)?;
            used += self.answer.hear();
        }
        let whole = silence.as_nanos() as f64 * count as f64;
        let percent = 100.0 * used as f64 / whole;
        finding::put(Finding { value: None, beside: Some(percent) });
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let before = cpu();
            self.end.receive(&mut self.message)?;
            self.answer.tell(cpu() - before);
        }
        Ok(())
    }
}

/// What all threads of this process have used, in nanoseconds.
fn cpu() -> u64 {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}
