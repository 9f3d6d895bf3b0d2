//! The line a second about what a node receives.

use std::time::{Duration, Instant};

use slipring::broadcast::Sample;

use crate::Outcome;
use crate::topic::Head;

/// The next time at which a node reports.
pub struct Clock {
    due: Instant,
}

impl Clock {
    const SECOND: Duration = Duration::from_secs(1);

    pub fn start() -> Clock {
        Clock { due: Instant::now() + Self::SECOND }
    }

    pub fn due(&self) -> Instant {
        self.due
    }

    /// Returns whether a report is due, and sets the time of the next one.
    pub fn strikes(&mut self) -> bool {
        let now = Instant::now();
        let strikes = now >= self.due;
        if strikes {
            self.due = now + Self::SECOND;
        }
        strikes
    }
}

/// What arrived with a message, beside its tensor.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub head: Head,
    pub age: Duration,
    pub missed: u64,
    pub restarted: bool,
}

impl Arrival {
    pub fn of(sample: &Sample<'_>) -> Outcome<Arrival> {
        let head = Head::of(sample)?;
        let (missed, restarted) = (sample.missed(), sample.restarted());
        Ok(Arrival { head, age: head.age(), missed, restarted })
    }
}

/// The arrivals on a topic since the last report.
pub struct Hop {
    topic: &'static str,
    ages: Vec<Duration>,
    missed: u64,
    restarts: u64,
}

impl Hop {
    pub fn on(topic: &'static str) -> Hop {
        Hop { topic, ages: Vec::new(), missed: 0, restarts: 0 }
    }

    pub fn take(&mut self, arrival: &Arrival) {
        self.ages.push(arrival.age);
        self.missed += arrival.missed;
        self.restarts += u64::from(arrival.restarted);
    }

    /// Returns the line, and begins anew.
    pub fn report(&mut self) -> String {
        self.ages.sort_unstable();
        let ms = |age: &Duration| format!("{:.2} ms", age.as_secs_f64() * 1e3);
        let middle = self.ages.get(self.ages.len() / 2).map_or("-".into(), ms);
        let oldest = self.ages.last().map_or("-".into(), ms);
        let line = format!(
            "{}: {} messages, frames {middle} old (p50), {oldest} (max), {} missed, {} restarts",
            self.topic,
            self.ages.len(),
            self.missed,
            self.restarts,
        );
        *self = Hop::on(self.topic);
        line
    }
}
