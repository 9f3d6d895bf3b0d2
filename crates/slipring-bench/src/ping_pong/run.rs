//! A run: which rows it measures, in which order, and which lines it prints.

use std::io::Write;
use std::time::Duration;

use super::harness::Harness;
use super::rows::{self, Kind, PingPong};
use super::{Options, neighbours, pairs, report};
use crate::loops;
use crate::results::Results;
use crate::{Outcome, peer};

/// The most seconds that all rows of a run take together without `--seconds`.
const WHOLE: f64 = 48.0;

/// Runs this process by its options: as a child of another run, or as a run of its own.
pub fn run(options: Options) -> Outcome<()> {
    if let Some(parent) = options.follow {
        return match (options.busy_loop, options.pair, options.neighbour) {
            (Some(number), _, _) => loops::run(parent, number, options.cpus),
            (_, Some(kind), _) => pairs::serve(parent, &kind, options.cpus),
            (_, _, Some(neighbour)) => neighbours::run(parent, &neighbour),
            _ => peer::follow(&PingPong, parent, options.cpus.1),
        };
    }
    if options.pairs > 0 {
        return pairs::measure(&options);
    }
    let rows = chosen(&options)?;
    let seconds = options.seconds.unwrap_or((WHOLE / rows.len() as f64).min(3.0));
    let time = Duration::try_from_secs_f64(seconds)?;
    let mut figures = Vec::new();
    let mut harness = Harness::start(options.cpus, options.busy)?;
    let mut facts = report::facts(options.cpus, harness.loops());
    let mut out = std::io::stdout();
    if !options.json {
        if let Some(loops) = harness.loops() {
            writeln!(out, "{}\n", report::loops(loops))?;
        }
        writeln!(out, "{}", report::HEAD)?;
    }
    let mut shown: Vec<(&str, usize)> = Vec::new();
    let mut beside = Vec::new();
    for &(index, bytes) in &rows {
        let records = harness.measure(index, bytes, time)?;
        if records.is_empty() {
            // In every pair of slices the CPUs moved, or a side that was to sleep stayed awake.
            eprintln!("ping_pong: {} at {bytes} B: no slice was kept", rows::row(index).mode);
        }
        for record in records {
            let subject = record.row.mode == rows::row(index).mode;
            let key = (record.row.mode, record.bytes);
            // A floor is shown once: in its own row if that is measured, else beside its first subject.
            let own = rows.iter().any(|&(index, bytes)| (rows::row(index).mode, bytes) == key);
            if subject || !(own || shown.contains(&key)) {
                let line = if options.json { report::json(&record) } else { report::line(&record) };
                writeln!(out, "{line}")?;
                figures.push(report::figure(&record, options.busy));
            }
            beside.extend((!subject).then_some(key));
        }
        shown.append(&mut beside);
    }
    let tally = harness.quit()?;
    facts.push(report::tally(&tally));
    if let Some(path) = &options.csv {
        Results { facts, figures }.write(path)?;
    }
    if options.json {
        eprintln!("{}", report::tally(&tally));
    } else {
        writeln!(out, "\n{}", report::tally(&tally))?;
    }
    Ok(())
}

/// Returns the indices of the rows to measure and their sizes, in the table's order.
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
            None => row.shown || row.kind == Kind::Slipring,
        };
        let sizes = row.sizes.iter().filter(|bytes| {
            wanted && options.sizes.as_ref().is_none_or(|sizes| sizes.contains(bytes))
        });
        chosen.extend(sizes.map(|bytes| (index, *bytes)));
    }
    // A floor that is measured beside a subject needs a row of its own only if it has a floor itself.
    let beside: Vec<(usize, usize)> =
        chosen.iter().filter_map(|row| rows::floor(row.0, row.1)).collect();
    chosen.retain(|row| rows::row(row.0).floor.is_some() || !beside.contains(row));
    if chosen.is_empty() { Err("no row has such a mode and size".into()) } else { Ok(chosen) }
}
