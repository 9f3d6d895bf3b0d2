//! A run: slices of slipring and of the floor, and the lines that it prints.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use slipring::{Context, Link, Reactor};

use super::Options;
use super::floor::Floor;
use super::peer::{Held, Peer};
use crate::Outcome;
use crate::runner;

const SECOND: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(2);

/// The longest latency that is told apart, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// Descriptors of one link in one process: slipring's, and the floor's.
const DESCRIPTORS: u64 = 4;

/// The latencies of a slice, in nanoseconds.
pub type Latencies = Arc<Mutex<Histogram<u64>>>;

/// The figures of a slice: messages a second, latencies, part of a CPU.
struct Slice {
    rate: f64,
    quantiles: [u64; 3],
    cpu: f64,
}

/// Measures slipring, and the floor beside it.
pub fn measure(options: &Options) -> Outcome<()> {
    raise_limit(options.links)?;
    let peer = Peer::start(options)?;
    let before = peer.held()?;
    let latencies: Latencies = Arc::new(Mutex::new(Histogram::new_with_max(LONGEST, 3)?));
    let context = options.context()?;
    let reactor = Reactor::spawn(&context)?;
    let links: Outcome<Vec<Link>> = (0..options.links)
        .map(|_| {
            let link = reactor.adopt(context.connect(&peer.address)?)?;
            let latencies = latencies.clone();
            link.on_message(move |_, message| {
                let mut stamp = [0; 8];
                message.bytes().copy_to(&mut stamp);
                record(&latencies, u64::from_le_bytes(stamp));
            });
            Ok(link)
        })
        .collect();
    let links = links?;
    let send = |link: usize, stamp: u64| Ok(links[link].try_send(&stamp.to_le_bytes())?);
    // The first slice does not count: it allocates the memory of each link's messages.
    slice(options, &peer, &latencies, send)?;
    let after = peer.held()?;
    let mut floor = None;
    if options.floor {
        floor = Some(Floor::start(&peer, options.links, latencies.clone())?);
    }
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..options.seconds {
        ours.push(slice(options, &peer, &latencies, send)?);
        if let Some(floor) = &floor {
            let send = |link: usize, stamp: u64| floor.send(link, stamp);
            floors.push(slice(options, &peer, &latencies, send)?);
        }
    }
    let silent = peer.cpu()?;
    std::thread::sleep(SILENCE);
    let silent = peer.cpu()? - silent;
    print_slices("slipring", &ours);
    if !floors.is_empty() {
        print_slices("floor", &floors);
        let ratio = |value: fn(&Slice) -> f64| {
            median(ours.iter().zip(&floors).map(|(our, floor)| value(our) / value(floor)))
        };
        let (p50, p99) =
            (ratio(|slice| slice.quantiles[0] as f64), ratio(|slice| slice.quantiles[1] as f64));
        println!("ratio: p50 {p50:.2}, p99 {p99:.2}, CPU {:.2}", ratio(|slice| slice.cpu));
    }
    print_link(&before, &after, options.links);
    println!("silent: {:.2} % of a CPU", 100.0 * silent.as_secs_f64() / SILENCE.as_secs_f64());
    Ok(())
}

/// Sends for a second, each message at its time, and waits for the last echoes.
fn slice(
    options: &Options,
    peer: &Peer,
    latencies: &Latencies,
    send: impl Fn(usize, u64) -> Outcome<()>,
) -> Outcome<Slice> {
    latencies.lock().unwrap_or_else(PoisonError::into_inner).reset();
    let count = u32::try_from(options.links as u64 * options.rate)?;
    let (used, start) = (peer.cpu()?, Instant::now());
    for number in 0..count {
        let due = start + SECOND * number / count;
        while let Some(early) = due.checked_duration_since(Instant::now()).filter(|e| !e.is_zero())
        {
            std::thread::sleep(early);
        }
        send(number as usize % options.links, now())?;
    }
    let (cpu, took) = (peer.cpu()? - used, start.elapsed());
    std::thread::sleep(SECOND / 50);
    let latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Slice {
        rate: latencies.len() as f64 / took.as_secs_f64(),
        quantiles: [0.5, 0.99, 0.999].map(|quantile| latencies.value_at_quantile(quantile)),
        cpu: cpu.as_secs_f64() / took.as_secs_f64(),
    })
}

/// Records the latency of a message that was sent at `stamp`.
pub fn record(latencies: &Latencies, stamp: u64) {
    let latency = now().saturating_sub(stamp);
    latencies.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(latency);
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, which both processes share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Prints the median of each figure.
fn print_slices(what: &str, slices: &[Slice]) {
    let [p50, p99, p999] =
        [0, 1, 2].map(|at| median(slices.iter().map(|slice| slice.quantiles[at] as f64)) / 1e3);
    let rate = median(slices.iter().map(|slice| slice.rate));
    let cpu = 100.0 * median(slices.iter().map(|slice| slice.cpu));
    println!(
        "{what}: {rate:.0} messages/s, p50 {p50:.1} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs, \
         {cpu:.0} % of a CPU"
    );
}

/// Prints what a link takes in the peer process.
fn print_link(before: &Held, after: &Held, links: usize) {
    let resident = (after.resident - before.resident) as f64 / links as f64;
    let descriptors = (after.descriptors - before.descriptors) as f64 / links as f64;
    println!("each link: {resident:.1} KiB resident, {descriptors:.2} descriptors");
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    runner::median(&values.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

/// Raises the limit of descriptors, which the peer inherits.
pub fn raise_limit(links: usize) -> Outcome<()> {
    let (most, needed) = (Context::raise_descriptor_limit()?, links as u64 * DESCRIPTORS + 100);
    if most < needed {
        return Err(format!(
            "{links} links need about {needed} descriptors, and RLIMIT_NOFILE allows {most}: \
             raise its hard limit, or ask for fewer --links"
        )
        .into());
    }
    Ok(())
}
