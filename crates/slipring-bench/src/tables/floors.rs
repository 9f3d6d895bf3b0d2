//! The tables of `ping_pong`: slipring beside the floors of the machine.

use super::markdown::Markdown;
use super::request::Request;
use crate::Outcome;
use crate::results::{FloorFigure, Results};
use crate::units::{digits, short_time, size};

/// Returns one row for each mode, size and state.
pub fn table(results: &Results<FloorFigure>, request: &Request) -> Outcome<String> {
    let mut table = Markdown::new(["mode", "size", "CPUs", "median", "p99", "floor", "ratio"]);
    let kind = request.value("kind").unwrap_or("slipring");
    for figure in results.figures.iter().filter(|figure| wanted(figure, request)) {
        if figure.kind != kind {
            continue;
        }
        let floor = figure.floor.as_ref().zip(figure.floor_ns);
        table.push(vec![
            format!("`{}`", figure.mode),
            size(figure.bytes),
            figure.state.clone(),
            time(figure),
            figure.p99_ns.map_or("–".into(), short_time),
            floor.map_or("–".into(), |(name, time)| format!("`{name}`: {}", short_time(time))),
            figure.ratio.map_or("–".into(), |ratio| format!("{} ×", digits(ratio))),
        ]);
    }
    table.lines()
}

/// Returns one row for each mode and size, with a column for each file: the ratio to the floor, the median, and the part
/// of their speed that the loops kept.
pub fn busy(all: &[Results<FloorFigure>], request: &Request) -> Outcome<String> {
    let column = |results: &Results<FloorFigure>| match results.figures.first() {
        Some(figure) if figure.busy == 1 => "1 loop".to_owned(),
        Some(figure) if figure.busy > 1 => format!("{} loops", figure.busy),
        _ => "nothing".to_owned(),
    };
    let head = ["mode", "size", "floor"].map(str::to_owned).into_iter();
    let mut table =
        Markdown::new(head.chain(all.iter().map(|all| format!("beside {}", column(all)))));
    let subjects = |results: &Results<FloorFigure>| -> Vec<FloorFigure> {
        let subject = |figure: &&FloorFigure| figure.kind == "slipring" && wanted(figure, request);
        results.figures.iter().filter(subject).cloned().collect()
    };
    let all: Vec<Vec<FloorFigure>> = all.iter().map(subjects).collect();
    let mut rows: Vec<(String, usize, String)> = Vec::new();
    for figure in all.iter().flatten() {
        let row = (figure.mode.clone(), figure.bytes, figure.floor.clone().unwrap_or_default());
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    for (mode, bytes, floor) in rows {
        let mut cells = vec![format!("`{mode}`"), size(bytes), format!("`{floor}`")];
        for figures in &all {
            // The figure with more slices counts, near or far.
            let mine = figures.iter().filter(|figure| figure.mode == mode && figure.bytes == bytes);
            cells.push(mine.max_by_key(|figure| figure.slices).map_or("–".into(), cell));
        }
        table.push(cells);
    }
    table.lines()
}

fn cell(figure: &FloorFigure) -> String {
    let ratio = figure.ratio.map_or("–".into(), |ratio| format!("{} ×", digits(ratio)));
    let loops = figure.loops.map_or(String::new(), |part| format!(", loops {:.0} %", 100.0 * part));
    format!("{ratio} ({}, {}{loops})", time(figure), figure.state)
}

fn time(figure: &FloorFigure) -> String {
    let each = if figure.unit == "message" { " a message" } else { "" };
    format!("{}{each}", short_time(figure.p50_ns))
}

fn wanted(figure: &FloorFigure, request: &Request) -> bool {
    request.admits("modes", &figure.mode)
        && request.admits("sizes", &figure.bytes.to_string())
        && request.admits("state", &figure.state)
}
