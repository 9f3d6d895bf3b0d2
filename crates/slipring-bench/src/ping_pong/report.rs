//! The figures as a table, as JSON, and as lines of the results.

use std::fmt::Write;

use hdrhistogram::Histogram;

use super::harness::Record;
use super::rows::Kind;
use crate::distance::{Distance, Tally};
use crate::loops::Loops;
use crate::machine;
use crate::results::FloorFigure;
use crate::runner::Pace;
use crate::units::{size, time};

/// Returns a record as JSON. A figure that a row does not have is `null`: streams have no tails.
pub fn json(record: &Record) -> String {
    let kind = kind(record);
    let (mode, bytes, state) = (record.row.mode, record.bytes, state(record.distance));
    let (p99, p999) = (tail(record, 0.99), tail(record, 0.999));
    let Record { p50, mean, ratio, n, .. } = *record;
    let mut line = format!(
        r#"{{"what":"{kind}","mode":"{mode}","bytes":{bytes},"state":"{state}","rtt_ns":{{"p50":{p50:.1},"mean":{mean:.1},"p99":{},"p999":{}}},"ratio":{ratio:.3},"n":{n}"#,
        p99.map_or("null".into(), |value| value.to_string()),
        p999.map_or("null".into(), |value| value.to_string()),
    );
    if record.row.pace == Pace::Stream {
        let _ = write!(line, r#","msgs_per_s":{:.0}"#, 1e9 / p50);
    }
    if let Some(loops) = record.loops {
        let _ = write!(line, r#","loops":{loops:.3}"#);
    }
    line.push('}');
    line
}

/// The head of the table.
pub const HEAD: &str = "\
what      mode          bytes  state        p50       mean        p99      p99.9   ratio  floor                  line  slices  loops  round trips, log scale";

/// Returns a record as a line of the table.
pub fn line(record: &Record) -> String {
    let short = |value: Option<u64>| value.map_or("–".into(), |value| time(value as f64));
    let figure = |value: f64| match record.row.pace {
        Pace::Stream => format!("{:.1} M/s", 1e3 / value),
        _ => time(value),
    };
    let loops = record.loops.map_or(String::new(), |part| format!("{:.0} %", 100.0 * part));
    let floor = match record.floor {
        Some((mode, value)) if record.row.pace == Pace::Stream => {
            format!("{mode} {:.1} M/s", 1e3 / value)
        }
        Some((mode, value)) => format!("{mode} {}", time(value)),
        None => record.variant.map_or(String::new(), |variant| format!("best of {variant}")),
    };
    let ratio = record.floor.map_or(String::new(), |_| format!("{:.3}", record.ratio));
    format!(
        "{:<9} {:<12} {:>6}  {:<5} {:>10} {:>10} {:>10} {:>10}  {ratio:>6}  {floor:<18} {:>8}  {:>6}  {loops:>5}  {}",
        kind(record),
        record.row.mode,
        size(record.bytes),
        state(record.distance),
        figure(record.p50),
        figure(record.mean),
        short(tail(record, 0.99)),
        short(tail(record, 0.999)),
        time(record.line),
        record.n,
        bars(&record.stamps),
    )
}

/// Returns the facts about a run that its figures do not tell: the CPUs, and the speed of the busy loops.
pub fn facts(cpus: (usize, usize), loops: Option<&Loops>) -> Vec<String> {
    let mut facts = machine::facts();
    facts.push(format!("CPUs: {},{}", cpus.0, cpus.1));
    facts.extend(loops.map(|loops| {
        let alone = loops.alone() / 1e6;
        format!("busy loops: {}, {alone:.2} M iterations/s alone", loops.count())
    }));
    facts
}

/// Returns a line that names the busy loops.
pub fn loops(loops: &Loops) -> String {
    format!(
        "beside {} busy loops; \"loops\" is the part of their speed that they keep, of {:.2} M iterations/s alone",
        loops.count(),
        loops.alone() / 1e6
    )
}

/// Returns a line with the counts of the run.
pub fn tally(tally: &Tally) -> String {
    let [close, near, far] = tally.probes;
    format!(
        "{close} probes close, {near} near, {far} far, {} moves; {} of {} pairs dropped",
        tally.moves, tally.dropped, tally.pairs,
    )
}

fn kind(record: &Record) -> &'static str {
    match record.row.kind {
        Kind::Slipring => "slipring",
        Kind::Floor => "floor",
    }
}

fn state(distance: Distance) -> &'static str {
    match distance {
        Distance::Close | Distance::Near => "near",
        Distance::Far => "far",
    }
}

fn tail(record: &Record, quantile: f64) -> Option<u64> {
    (!record.stamps.is_empty()).then(|| record.stamps.value_at_quantile(quantile))
}

/// Returns the line of a record in the results.
pub fn figure(record: &Record, busy: usize) -> FloorFigure {
    let tail = |quantile| tail(record, quantile).map(|value| value as f64);
    FloorFigure {
        mode: record.row.mode.into(),
        kind: kind(record).into(),
        bytes: record.bytes,
        unit: if record.row.pace == Pace::Stream { "message" } else { "round trip" }.into(),
        state: state(record.distance).into(),
        busy,
        p50_ns: record.p50,
        mean_ns: record.mean,
        p99_ns: tail(0.99),
        p999_ns: tail(0.999),
        floor: record.floor.map(|(mode, _)| mode.into()),
        floor_ns: record.floor.map(|(_, time)| time),
        ratio: record.floor.map(|(_, time)| record.p50 / time),
        line_ns: record.line,
        slices: record.n,
        variant: record.variant,
        loops: record.loops,
    }
}

/// Returns a histogram in one line: the number of stamps in each step from the least to p99.9. The steps grow by a constant
/// factor.
fn bars(stamps: &Histogram<u64>) -> String {
    const STEPS: usize = 24;
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if stamps.is_empty() {
        return String::new();
    }
    let low = (stamps.min() as f64).max(1.0);
    let high = (stamps.value_at_quantile(0.999) as f64).max(low * 1.01);
    let factor = (high / low).powf(1.0 / STEPS as f64);
    let mut counts = [0; STEPS];
    for value in stamps.iter_recorded() {
        let step = ((value.value_iterated_to() as f64 / low).ln() / factor.ln()) as usize;
        if step < STEPS {
            counts[step] += value.count_at_value();
        }
    }
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    let drawn: String =
        counts.iter().map(|count| BARS[(*count * 8).div_ceil(most) as usize]).collect();
    format!("{} {drawn} {}", time(low), time(high))
}
