//! How fast two processes answer one another: slipring beside what the machine can do.
//!
//! ```text
//! cargo run --release --example ping_pong
//! cargo run --release --example ping_pong -- --modes line-ro,futex --sizes 8 --seconds 5 --json
//! ```
//!
//! - Question: how long is a round trip (how many messages a second, one way), against a floor
//!   measured in the same moments by the same two processes?
//! - Unit: nanoseconds a round trip, median of slices; p99 and p99.9 of single round trips, whose
//!   stamps include one reading of the clock.
//! - Pinning: two processes, one CPU each (`--cpus`, default 0,1).
//!
//! Options: `--modes a,b` and `--sizes 8,48` choose rows (default all), `--seconds S` is the time of a
//! row (default: up to 3, such that all take under a minute), `--json` prints one object a line.
//!
//! Expect a table: one line a row, size and state of the machine (near: both CPUs on one cache;
//! far: not), the ratio to the floor, the floor's own figure, the bare line's in the same moments.

mod commits;
mod exchange;
mod floors;
mod harness;
mod memory;
mod payload;
mod peer;
mod reactors;
mod registered;
mod report;
mod rows;
mod runner;
#[cfg(feature = "tokio")]
mod runtimes;
mod state;
mod subjects;
mod tensors;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use harness::Harness;
use rows::What;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct Options {
    modes: Option<Vec<String>>,
    sizes: Option<Vec<usize>>,
    seconds: Option<f64>,
    cpus: (usize, usize),
    json: bool,
    /// Hidden: this is the peer, of the process with this id.
    follow: Option<u32>,
}

/// What all rows of a run without `--seconds` take together, at most.
const WHOLE: f64 = 48.0;

fn main() -> ExitCode {
    match options().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ping_pong: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Outcome<()> {
    if let Some(parent) = options.follow {
        return peer::follow(parent, options.cpus.1);
    }
    let rows = chosen(&options)?;
    let seconds = options.seconds.unwrap_or((WHOLE / rows.len() as f64).min(3.0));
    let time = Duration::try_from_secs_f64(seconds)?;
    let mut harness = Harness::start(options.cpus)?;
    let mut out = std::io::stdout();
    if !options.json {
        writeln!(out, "{}", report::HEAD)?;
    }
    let mut shown: Vec<(&str, usize)> = Vec::new();
    let mut beside = Vec::new();
    for &(index, bytes) in &rows {
        let records = harness.measure(index, bytes, time)?;
        if records.is_empty() {
            // All pairs were dropped: the machine moved, or a side that was to sleep stayed awake.
            eprintln!("ping_pong: {} at {bytes} B: no slice was kept", rows::row(index).mode);
        }
        for record in records {
            let subject = record.row.mode == rows::row(index).mode;
            let key = (record.row.mode, record.bytes);
            // A floor is shown once: by its own row if that is measured, else by its first subject.
            let own = rows.iter().any(|&(index, bytes)| (rows::row(index).mode, bytes) == key);
            if subject || !(own || shown.contains(&key)) {
                let line = if options.json { report::json(&record) } else { report::line(&record) };
                writeln!(out, "{line}")?;
            }
            beside.extend((!subject).then_some(key));
        }
        shown.append(&mut beside);
    }
    let weather = harness.quit()?;
    if options.json {
        eprintln!("{}", report::weather(&weather));
    } else {
        writeln!(out, "\n{}", report::weather(&weather))?;
    }
    Ok(())
}

/// Row indices and sizes, in the table's order.
fn chosen(options: &Options) -> Outcome<Vec<(usize, usize)>> {
    let known: Vec<&str> = rows::all().map(|row| row.mode).collect();
    for mode in options.modes.iter().flatten() {
        if !known.contains(&mode.as_str()) {
            return Err(format!("no mode {mode:?}, there are: {}", known.join(", ")).into());
        }
    }
    let mut chosen = Vec::new();
    for (index, row) in rows::all().enumerate() {
        let wanted = match &options.modes {
            Some(modes) => modes.iter().any(|mode| mode == row.mode),
            None => row.shown || row.what == What::Slipring,
        };
        let sizes = row.sizes.iter().filter(|bytes| {
            wanted && options.sizes.as_ref().is_none_or(|sizes| sizes.contains(bytes))
        });
        chosen.extend(sizes.map(|bytes| (index, *bytes)));
    }
    // A floor without a floor of its own needs no row where it is measured beside a subject.
    let beside: Vec<(usize, usize)> =
        chosen.iter().filter_map(|row| rows::floor(row.0, row.1)).collect();
    chosen.retain(|row| rows::row(row.0).floor.is_some() || !beside.contains(row));
    if chosen.is_empty() { Err("no row has such a mode and size".into()) } else { Ok(chosen) }
}

fn options() -> Outcome<Options> {
    use lexopt::prelude::{Long, ValueExt};
    let mut options = Options {
        modes: None,
        sizes: None,
        seconds: None,
        cpus: (0, 1),
        json: false,
        follow: None,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("modes") => options.modes = Some(list(&parser.value()?.string()?)?),
            Long("sizes") => options.sizes = Some(list(&parser.value()?.string()?)?),
            Long("seconds") => options.seconds = Some(parser.value()?.parse()?),
            Long("cpus") => match list(&parser.value()?.string()?)?[..] {
                [leader, follower] if leader != follower => options.cpus = (leader, follower),
                _ => return Err("--cpus takes two different CPUs, as 0,1".into()),
            },
            Long("json") => options.json = true,
            Long("follow") => options.follow = Some(parser.value()?.parse()?),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(options)
}

fn list<T: FromStr<Err: Error + Send + Sync + 'static>>(text: &str) -> Outcome<Vec<T>> {
    text.split(',').map(|part| Ok(part.trim().parse()?)).collect()
}
