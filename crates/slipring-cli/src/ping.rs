//! `slipring ping`: how long a message takes to an `echo` end and back.

use std::fmt;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::latency::{self, Latency};
use crate::output::Output;
use crate::quantity::{self, Nanos};
use crate::round_trip::EchoLink;

/// The arguments of `slipring ping`.
#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// The address of a `slipring echo`
    address: String,
    /// End after so many messages
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// The time between two messages
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = quantity::duration)]
    interval: Duration,
    /// The length of a message
    #[arg(short, long, value_name = "BYTES", default_value = "64", value_parser = quantity::bytes)]
    size: u64,
    /// Send the next message as soon as the last one is back, and print the summary alone
    #[arg(short, long)]
    flood: bool,
    /// End after this time
    #[arg(short, long, value_name = "TIME", value_parser = quantity::duration)]
    duration: Option<Duration>,
    /// Send tensors instead of messages
    #[arg(long)]
    tensor: bool,
    /// How long to wait for the link, and for each message
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = quantity::duration)]
    timeout: Duration,
}

/// A message that came back.
#[derive(Debug, Serialize)]
struct Reply {
    number: u64,
    bytes: u64,
    nanos: u64,
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, bytes, nanos } = self;
        write!(f, "{bytes} bytes, number {number}: {}", Nanos(*nanos as f64))
    }
}

#[derive(Debug, Serialize)]
struct Summary {
    sent: u64,
    received: u64,
    bytes: u64,
    /// `None`: no message came back.
    nanos: Option<Latency>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received, bytes, nanos } = self;
        write!(f, "{sent} messages of {bytes} bytes were sent, {received} came back")?;
        nanos.as_ref().map_or(Ok(()), |nanos| write!(f, ": {nanos}"))
    }
}

impl Ping {
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let interrupt = Interrupt::new()?;
        let mut link = EchoLink::connect(&self.address, self.timeout)?;
        output.remark(format_args!("{} answers on {}", link.process(), self.address))?;
        let mut times = latency::histogram();
        let (mut sent, mut ended) = (0, Ok(()));
        let start = Instant::now();
        let mut next = start;
        let end = self.duration.map(|duration| start + duration);
        let is_over = |sent, now| {
            self.count.is_some_and(|count| sent >= count) || end.is_some_and(|end| now >= end)
        };
        while !interrupt.is_set() && !is_over(sent, Instant::now()) {
            sent += 1;
            ended = self.ping(&mut link, sent, &mut times, output);
            if ended.is_err() {
                break;
            }
            next = (next + self.interval).max(Instant::now());
            let due = end.map_or(next, |end| end.min(next));
            if !self.flood && !is_over(sent, Instant::now()) && !interrupt.sleep_until(due) {
                break;
            }
        }
        let nanos = Latency::of(&times);
        output.show(&Summary { sent, received: times.len(), bytes: self.size, nanos })?;
        ended
    }

    fn ping(
        &self,
        link: &mut EchoLink,
        number: u64,
        times: &mut Histogram<u64>,
        output: Output,
    ) -> Result<(), Failure> {
        let len = self.size as usize;
        let time = if self.tensor { link.round_of_tensor(len) } else { link.round(len) }?;
        let nanos = time.as_nanos() as u64;
        times.saturating_record(nanos);
        if self.flood {
            return Ok(());
        }
        output.show(&Reply { number, bytes: self.size, nanos })
    }
}
