//! `slipring hz`: how often the messages of a topic come.

use std::fmt;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use slipring::Context;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::quantity::{self, Len, Nanos};
use crate::topic::{Join, Next, Topic};

/// The arguments of `slipring hz`.
#[derive(Debug, Args)]
pub(crate) struct Hz {
    /// The address of the topic
    address: String,
    #[command(flatten)]
    join: Join,
    /// The time that a line tells of
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = quantity::duration)]
    interval: Duration,
    /// End after so many lines
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End if no message comes for this long
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    timeout: Option<Duration>,
}

/// The messages of a window of time.
#[derive(Debug, Serialize)]
struct Window {
    messages: u64,
    missed: u64,
    seconds: f64,
    /// Messages a second, without those missed.
    rate: f64,
    bytes_per_second: f64,
    /// The times between a message and the next one, in nanoseconds. `None`: there was at most one message.
    gaps: Option<Gaps>,
}

#[derive(Debug, Serialize)]
struct Gaps {
    min: f64,
    mean: f64,
    max: f64,
    std_dev: f64,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, missed, rate, bytes_per_second, gaps, .. } = self;
        write!(f, "{rate:.1} messages/s, {}/s, {messages} messages", Len(*bytes_per_second))?;
        write!(f, ", {missed} missed")?;
        let Some(Gaps { min, mean, max, std_dev }) = gaps else { return Ok(()) };
        write!(f, "; gaps: min {}, mean {}, ", Nanos(*min), Nanos(*mean))?;
        write!(f, "max {}, std dev {}", Nanos(*max), Nanos(*std_dev))
    }
}

/// Counts what comes, and the gaps between by Welford's method, which keeps no gap.
#[derive(Debug)]
struct Counter {
    start: Instant,
    messages: u64,
    missed: u64,
    bytes: u64,
    gaps: u64,
    min: f64,
    max: f64,
    mean: f64,
    squares: f64,
}

impl Counter {
    fn start() -> Self {
        let (messages, missed, bytes, gaps) = (0, 0, 0, 0);
        let (min, max, mean, squares) = (f64::INFINITY, 0.0, 0.0, 0.0);
        Self { start: Instant::now(), messages, missed, bytes, gaps, min, max, mean, squares }
    }

    fn count(&mut self, message: &Arrival, gap: Option<Duration>) {
        self.messages += 1;
        self.missed += message.missed;
        self.bytes += message.bytes;
        let Some(gap) = gap.map(|gap| gap.as_nanos() as f64) else { return };
        self.gaps += 1;
        self.min = self.min.min(gap);
        self.max = self.max.max(gap);
        let off = gap - self.mean;
        self.mean += off / self.gaps as f64;
        self.squares += off * (gap - self.mean);
    }

    fn window(&self) -> Window {
        let Self { messages, missed, min, max, mean, .. } = *self;
        let seconds = self.start.elapsed().as_secs_f64();
        let std_dev = (self.squares / self.gaps as f64).sqrt();
        Window {
            messages,
            missed,
            seconds,
            rate: messages as f64 / seconds,
            bytes_per_second: self.bytes as f64 / seconds,
            gaps: (self.gaps > 0).then_some(Gaps { min, mean, max, std_dev }),
        }
    }
}

/// A message.
#[derive(Debug)]
struct Arrival {
    at: Instant,
    bytes: u64,
    missed: u64,
}

impl Hz {
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let interrupt = Interrupt::new()?;
        let context = Context::new()?;
        let Some(mut topic) = Topic::join(&context, &self.address, &self.join, &interrupt)? else {
            return Ok(());
        };
        let (mut all, mut window) = (Counter::start(), Counter::start());
        let (mut lines, mut last, mut heard) = (0, None, Instant::now());
        let ended = loop {
            if self.count.is_some_and(|count| lines >= count) {
                break Ok(());
            }
            let silent = self.timeout.and_then(|timeout| heard.checked_add(timeout));
            let until = window.start.checked_add(self.interval);
            let until = until.map_or(silent, |until| Some(silent.map_or(until, |s| s.min(until))));
            let next = topic.next(until, |sample| {
                let tensors = sample.tensors().map(|(_, tensor)| tensor.byte_len()).sum::<usize>();
                let bytes = (sample.len() + tensors) as u64;
                Ok(Arrival { at: Instant::now(), bytes, missed: sample.missed() })
            });
            match next {
                Ok(Next::Message(message)) => {
                    let gap = last.map(|last| message.at - last);
                    all.count(&message, gap);
                    window.count(&message, gap);
                    (last, heard) = (Some(message.at), message.at);
                }
                Ok(Next::Late) => {}
                Ok(Next::Ended | Next::Interrupted) => break Ok(()),
                Err(failure) => break Err(failure),
            }
            if window.start.elapsed() >= self.interval {
                output.show(&window.window())?;
                (lines, window) = (lines + 1, Counter::start());
            }
            if let Some(timeout) = self.timeout.filter(|timeout| heard.elapsed() >= *timeout) {
                let timeout = timeout.as_millis();
                break Err(Failure::too_late(format!("no message came for {timeout} ms")));
            }
        };
        output.remark("in all:")?;
        ended.and(output.show(&all.window()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_the_gaps() {
        let mut counter = Counter::start();
        let message = Arrival { at: Instant::now(), bytes: 10, missed: 1 };
        counter.count(&message, None);
        assert!(counter.window().gaps.is_none());
        for gap in [2, 4, 4, 4, 5, 5, 7, 9] {
            counter.count(&message, Some(Duration::from_nanos(gap)));
        }
        let window = counter.window();
        let gaps = window.gaps.unwrap();
        assert_eq!((window.messages, window.missed), (9, 9));
        assert_eq!((gaps.min, gaps.max), (2.0, 9.0));
        assert!((gaps.mean - 5.0).abs() < 1e-9 && (gaps.std_dev - 2.0).abs() < 1e-9, "{gaps:?}");
    }
}
