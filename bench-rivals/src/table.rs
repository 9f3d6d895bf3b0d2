//! The figures for people: a block for each measure and size, its systems by their medians.

use std::collections::BTreeSet;
use std::io::Write;

use crate::Outcome;
use crate::systems::slipring::POLLED_NAME;
use crate::work;
use slipring_bench::results::Figure;
use slipring_bench::units::{size, time};

/// Slices from which on a median is shown as one.
pub const ENOUGH: usize = 3;

pub fn print(out: &mut impl Write, figures: &[Figure]) -> Outcome<()> {
    for work in work::ALL {
        let name = work.name();
        let mine: Vec<&Figure> = figures.iter().filter(|figure| figure.measure == name).collect();
        // Works that share a name come together, at the first of them.
        let first = work::ALL.iter().find(|other| other.name() == name);
        if mine.is_empty() || first != Some(&work) {
            continue;
        }
        writeln!(out, "\n== {name}: {}", work.title())?;
        for bytes in mine.iter().map(|figure| figure.bytes).collect::<BTreeSet<_>>() {
            let busy: BTreeSet<usize> = mine.iter().map(|figure| figure.busy).collect();
            for (busy, state) in
                busy.iter().flat_map(|busy| ["near", "far", "any"].map(|state| (*busy, state)))
            {
                let is_here = |figure: &&Figure| figure.is_beside(busy, name, bytes, state);
                let mut block: Vec<&Figure> = mine.iter().copied().filter(is_here).collect();
                block.sort_by(|one, other| key(one).total_cmp(&key(other)));
                if !block.is_empty() {
                    print_block(out, name, bytes, state, &block)?;
                }
            }
        }
    }
    Ok(())
}

fn key(figure: &Figure) -> f64 {
    match figure.measure.as_str() {
        "idle" => figure.beside,
        "footprint" => figure.memory_kib,
        _ if figure.busy > 0 => figure.mean_ns,
        _ => figure.p50_ns,
    }
    .unwrap_or(f64::INFINITY)
}

fn print_block(
    out: &mut impl Write,
    measure: &str,
    bytes: usize,
    state: &str,
    block: &[&Figure],
) -> Outcome<()> {
    let line = block.iter().find_map(|figure| figure.line_ns);
    let line = line.map_or(String::new(), |line| format!(", line {}", time(line)));
    let place = if state == "any" { String::new() } else { format!(", {state}{line}") };
    let beside = match block.first().map_or(0, |figure| figure.busy) {
        0 => String::new(),
        busy => format!(", beside {busy} busy loops, means"),
    };
    writeln!(out, "\n  {}{place}{beside}", size(bytes))?;
    let by_default = |figure: &&&Figure| figure.kind == "slipring" && figure.system != POLLED_NAME;
    let ours = block.iter().find(by_default).map(|figure| key(figure));
    for figure in block {
        let ratio = ours.map_or(String::new(), |ours| format!("{:.2}", key(figure) / ours));
        let links = match figure.measure.as_str() {
            "reactor" if figure.kind == "slipring" => format!(" ({} links)", figure.links),
            _ => String::new(),
        };
        let loops = figure.loops.map_or(String::new(), |part| format!(" loops {part:.2};"));
        let few = if figure.slices < ENOUGH { " few slices;" } else { "" };
        let best = figure.variant.map_or(String::new(), |best| format!(" best of {best};"));
        writeln!(
            out,
            "    {:<24} {:<9} {:>46} {ratio:>8} {:>5}/{:<4}{few}{loops}{best} {}",
            format!("{}{links}", figure.system),
            short(&figure.version),
            values(measure, figure),
            figure.slices,
            figure.dropped,
            figure.options,
        )?;
    }
    Ok(())
}

fn short(version: &str) -> &str {
    version.strip_prefix("Linux ").unwrap_or(version)
}

fn values(measure: &str, figure: &Figure) -> String {
    let p50 = figure.p50_ns.map_or(String::new(), time);
    match measure {
        "stream" | "stream-4m" => {
            let rate = figure.rate().unwrap_or(f64::NAN);
            format!("{:.2} M/s {:>9.2} GB/s", rate / 1e6, rate * figure.bytes as f64 / 1e9)
        }
        "fan-in" => {
            let rate = figure.rate().unwrap_or(f64::NAN) / 1e6;
            let share = figure.beside.unwrap_or(f64::NAN);
            format!("{rate:.2} M/s, slowest {share:.2} of its share")
        }
        "idle" => format!("{:.2} % of a CPU", figure.beside.unwrap_or(f64::NAN)),
        "footprint" => {
            let descriptors = figure.beside.unwrap_or(f64::NAN);
            let memory = figure.memory_kib.unwrap_or(f64::NAN);
            format!("{memory:.0} KiB, {descriptors:.1} descriptors")
        }
        _ => {
            let tail = |value: Option<f64>| value.map_or("–".into(), time);
            let p50 = if figure.busy > 0 { figure.mean_ns.map_or("–".into(), time) } else { p50 };
            format!("{p50:>10} {:>11} {:>11}", tail(figure.p99_ns), tail(figure.p999_ns))
        }
    }
}
