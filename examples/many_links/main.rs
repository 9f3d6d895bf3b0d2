//! A thousand links on one thread: what they cost under load and at rest, beside an epoll loop.
//!
//! ```text
//! cargo run --release --example many_links
//! cargo run --release --example many_links -- --links 100 --rate 1000 --seconds 2 --floor no
//! ```
//!
//! - Question: how late is a message, and what do its links cost the process that serves them?
//! - It starts its own peer, which sends back what comes. Each side has one [`Reactor`].
//! - Load: a paced sender writes the time to one link after the other, `--rate` times a second each;
//!   a latency is from there to its echo. The sender sleeps in between, so a few go at a time.
//! - Floor (`--floor no` leaves it out): the same sender, an eventfd and a word of shared memory for
//!   each link and direction, and an epoll loop on each side. Slices of a second alternate.
//!
//! With `--spin no` no reactor watches before it sleeps.
//!
//! Expect a line for each, the medians of the slices' ratios, and what both cost when all is silent.

#[path = "../ping_pong/exchange.rs"]
#[expect(dead_code, reason = "descriptors are sent, nothing else")]
mod exchange;
mod floor;
#[path = "../ping_pong/memory.rs"]
#[expect(dead_code, reason = "words are used, nothing else")]
mod memory;
mod peer;

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lexopt::{Arg, Parser, ValueExt};
use rustix::time::{ClockId, clock_gettime};
use slipring::options::Spin;
use slipring::{Context, Link, Reactor};

use floor::Floor;
use peer::{Held, Peer};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const SECOND: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(2);

/// Longer latencies count as this, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// Descriptors of one link in one process: ours, and the floor's.
const DESCRIPTORS: u64 = 4;

struct Options {
    links: usize,
    rate: u64,
    seconds: u32,
    floor: bool,
    /// Whether the reactors may watch before they sleep.
    spin: bool,
    /// Hidden: this is the peer, and listens here.
    serve: Option<String>,
}

/// The latencies of a slice, in nanoseconds.
type Latencies = Arc<Mutex<Histogram<u64>>>;

/// What a slice gave: messages a second, latencies, share of a CPU.
struct Slice {
    rate: f64,
    quantiles: [u64; 3],
    cpu: f64,
}

fn main() -> ExitCode {
    match options().and_then(|options| match &options.serve {
        Some(name) => peer::serve(name, &options),
        None => measure(&options),
    }) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("many_links: {error:#}"),
    }
    ExitCode::FAILURE
}

fn options() -> Outcome<Options> {
    let mut options =
        Options { links: 1000, rate: 100, seconds: 5, floor: true, spin: true, serve: None };
    let mut words = Parser::from_env();
    while let Some(word) = words.next()? {
        match word {
            Arg::Long("links") => options.links = words.value()?.parse()?,
            Arg::Long("rate") => options.rate = words.value()?.parse()?,
            Arg::Long("seconds") => options.seconds = words.value()?.parse()?,
            Arg::Long("floor") => options.floor = words.value()? != "no",
            Arg::Long("spin") => options.spin = words.value()? != "no",
            Arg::Long("serve") => options.serve = Some(words.value()?.string()?),
            _ => return Err(word.unexpected().into()),
        }
    }
    if options.links == 0 || options.rate == 0 || options.seconds == 0 {
        return Err("--links, --rate and --seconds are at least 1".into());
    }
    Ok(options)
}

fn measure(options: &Options) -> Outcome<()> {
    raise_limit(options.links)?;
    let peer = Peer::start(options)?;
    let before = peer.held()?;
    let latencies: Latencies = Arc::new(Mutex::new(Histogram::new_with_max(LONGEST, 3)?));
    let context = context(options.spin)?;
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
    // Once around, uncounted: the memory that a link's messages take is there afterwards.
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
    tell("slipring", &ours);
    if !floors.is_empty() {
        tell("floor", &floors);
        let ratio = |value: fn(&Slice) -> f64| {
            median(ours.iter().zip(&floors).map(|(our, floor)| value(our) / value(floor)))
        };
        let (p50, p99) =
            (ratio(|slice| slice.quantiles[0] as f64), ratio(|slice| slice.quantiles[1] as f64));
        println!("ratio: p50 {p50:.2}, p99 {p99:.2}, CPU {:.2}", ratio(|slice| slice.cpu));
    }
    per_link(&before, &after, options.links);
    println!("silent: {:.2} % of a CPU", 100.0 * silent.as_secs_f64() / SILENCE.as_secs_f64());
    Ok(())
}

fn context(spin: bool) -> slipring::Result<Context> {
    if spin {
        Context::new()
    } else {
        Context::with_options(slipring::Options::new().spin(Spin::Never))
    }
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

fn record(latencies: &Latencies, stamp: u64) {
    let latency = now().saturating_sub(stamp);
    latencies.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(latency);
}

/// `CLOCK_MONOTONIC`, the same in both processes.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The median of each figure.
fn tell(what: &str, slices: &[Slice]) {
    let [p50, p99, p999] =
        [0, 1, 2].map(|at| median(slices.iter().map(|slice| slice.quantiles[at] as f64)) / 1e3);
    let rate = median(slices.iter().map(|slice| slice.rate));
    let cpu = 100.0 * median(slices.iter().map(|slice| slice.cpu));
    println!(
        "{what}: {rate:.0} messages/s, p50 {p50:.1} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs, \
         {cpu:.0} % of a CPU"
    );
}

fn per_link(before: &Held, after: &Held, links: usize) {
    let resident = (after.resident - before.resident) as f64 / links as f64;
    let descriptors = (after.descriptors - before.descriptors) as f64 / links as f64;
    println!("each link: {resident:.1} KiB resident, {descriptors:.2} descriptors");
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// As many descriptors as this process may have. The peer inherits that.
fn raise_limit(links: usize) -> Outcome<()> {
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
