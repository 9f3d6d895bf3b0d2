//! `slipring bench`: latency and rate to an `echo` end, beside a socket pair in the same moments.

use std::fmt;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::failure::Failure;
use crate::floor::Floor;
use crate::interrupt::Interrupt;
use crate::latency::{self, Latency};
use crate::output::Output;
use crate::quantity::{self, Len, Nanos};
use crate::round_trip::EchoLink;

/// How long one side is measured before the other one is: short against changes of the machine, long against a wake-up.
const SLICE: Duration = Duration::from_millis(50);

/// Messages on the way at once while the rate is measured, and their bytes: less than the default ring, so neither side waits for
/// room while the other one does.
const AHEAD: (u64, u64) = (16, 64 << 10);

/// The longest message: that of a link by default.
const LONGEST: u64 = 1 << 30;

/// The arguments of `slipring bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The address of a `slipring echo`
    address: String,
    /// The lengths of the messages
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', default_value = "8,64,1KiB,64KiB,1MiB", value_parser = quantity::bytes)]
    sizes: Vec<u64>,
    /// How long to measure each length
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = quantity::duration)]
    duration: Duration,
    /// How long to wait for the link, and for each message
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = quantity::duration)]
    timeout: Duration,
}

/// The times of one length.
#[derive(Debug, Serialize)]
struct Row {
    bytes: u64,
    round_trips: u64,
    nanos: Latency,
    /// The socket pair's round trips.
    floor_nanos: Latency,
    /// The median by that of the socket pair: lower is better.
    ratio: f64,
    /// Messages there and back a second, with several on the way.
    messages_per_second: f64,
}

const HEAD: &str = "    length        p50        p99      p99.9        max   socket p50   ratio   messages/s      bytes/s";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, nanos, floor_nanos, ratio, messages_per_second, .. } = self;
        write!(f, "{:>10}", Len(*bytes as f64))?;
        for nanos in nanos.tail() {
            write!(f, " {:>10}", Nanos(nanos as f64))?;
        }
        let rate = messages_per_second * *bytes as f64;
        write!(f, "   {:>10} {ratio:>7.3}", Nanos(floor_nanos.p50() as f64))?;
        write!(f, " {messages_per_second:>12.0} {:>10}/s", Len(rate))
    }
}

impl Bench {
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let interrupt = Interrupt::new()?;
        if let Some(bytes) = self.sizes.iter().find(|bytes| **bytes > LONGEST) {
            return Err(Failure::new(format!(
                "a message of {bytes} bytes, a link takes {LONGEST}"
            )));
        }
        let mut link = EchoLink::connect(&self.address, self.timeout)?;
        output.remark(format_args!(
            "{} answers on {}; a Unix socket pair between two threads stands beside; lower is better",
            link.process(),
            self.address
        ))?;
        output.remark(HEAD)?;
        for bytes in &self.sizes {
            let Some(row) = self.measure(&mut link, *bytes, &interrupt)? else { break };
            output.show(&row)?;
        }
        Ok(())
    }

    /// Measures one length. Returns `None` if the user wants the end.
    fn measure(
        &self,
        link: &mut EchoLink,
        bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<Option<Row>, Failure> {
        let len = bytes as usize;
        let mut floor = Floor::start(len, self.timeout)?;
        let (mut times, mut floor_times) = (latency::histogram(), latency::histogram());
        let (mut streamed, mut streaming) = (0, Duration::ZERO);
        let end = Instant::now() + self.duration;
        loop {
            slice(&mut times, || link.round(len))?;
            slice(&mut floor_times, || floor.round())?;
            let (messages, time) = stream(link, bytes)?;
            streamed += messages;
            streaming += time;
            if interrupt.is_set() {
                return Ok(None);
            }
            if Instant::now() >= end {
                break;
            }
        }
        let quantiles = Latency::of(&times).zip(Latency::of(&floor_times));
        Ok(quantiles.map(|(nanos, floor_nanos)| Row {
            bytes,
            round_trips: times.len(),
            ratio: nanos.p50() as f64 / floor_nanos.p50().max(1) as f64,
            nanos,
            floor_nanos,
            messages_per_second: streamed as f64 / streaming.as_secs_f64(),
        }))
    }
}

/// Records round trips for one slice, at least one.
fn slice(
    times: &mut Histogram<u64>,
    mut round: impl FnMut() -> Result<Duration, Failure>,
) -> Result<(), Failure> {
    let end = Instant::now() + SLICE;
    loop {
        times.saturating_record(round()?.as_nanos() as u64);
        if Instant::now() >= end {
            return Ok(());
        }
    }
}

/// Sends messages for one slice, several of them ahead of what comes back. Returns how many came back in which time.
fn stream(link: &mut EchoLink, bytes: u64) -> Result<(u64, Duration), Failure> {
    let ahead = (AHEAD.1 / bytes.max(1)).clamp(1, AHEAD.0);
    let (len, start) = (bytes as usize, Instant::now());
    for _ in 0..ahead {
        link.send_ahead(len)?;
    }
    let mut messages = 0;
    while start.elapsed() < SLICE {
        link.take_back()?;
        link.send_ahead(len)?;
        messages += 1;
    }
    for _ in 0..ahead {
        link.take_back()?;
    }
    Ok((messages + ahead, start.elapsed()))
}
