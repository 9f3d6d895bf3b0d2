//! The tables of `bench-rivals`: slipring beside other systems.

use super::markdown::Markdown;
use super::request::Request;
use crate::Outcome;
use crate::results::{Figure, Results};
use crate::units::{digits, short_time, size};

/// Slices from which on a median is shown.
const ENOUGH: usize = 3;

/// The kinds of systems, in the order in which a table shows them.
const KINDS: [&str; 4] = ["slipring", "rival", "kernel", "floor"];

/// Returns each measure and state in which enough was measured.
pub fn all(results: &Results<Figure>) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for figure in results.figures.iter().filter(|figure| figure.slices >= ENOUGH) {
        let key = (figure.measure.clone(), figure.state.clone());
        if !all.contains(&key) {
            all.push(key);
        }
    }
    all
}

/// Returns one row for each system, with a column for each size; over links of a reactor, for each number of links.
pub fn table(results: &Results<Figure>, request: &Request) -> Outcome<String> {
    let measure = request.value("measure").ok_or("a table rivals needs measure=NAME")?;
    let state = state(request)?;
    let mine: Vec<&Figure> = (results.figures.iter())
        .filter(|figure| figure.measure == measure && figure.state == state)
        .filter(|figure| figure.slices >= ENOUGH && request.admits("systems", &figure.system))
        .filter(|figure| request.admits("sizes", &figure.bytes.to_string()))
        .collect();
    let column = |figure: &Figure| match measure {
        "reactor" if figure.kind == "slipring" => (figure.bytes, figure.links),
        _ => (figure.bytes, 1),
    };
    let (mut columns, mut systems) = (Vec::new(), Vec::new());
    for figure in &mine {
        if !columns.contains(&column(figure)) {
            columns.push(column(figure));
        }
        if !systems.contains(&(&figure.system, &figure.kind)) {
            systems.push((&figure.system, &figure.kind));
        }
    }
    columns.sort_unstable();
    systems.sort_by_key(|(_, kind)| KINDS.iter().position(|known| known == kind));
    let head = columns.iter().map(|(bytes, links)| match measure {
        "reactor" if *links == 1 => "1 link".into(),
        "reactor" => format!("{links} links"),
        _ => size(*bytes),
    });
    let mut table = Markdown::new([title(measure).to_owned()].into_iter().chain(head));
    for (system, kind) in systems {
        let name = if kind == "floor" { format!("*{system}*") } else { system.clone() };
        let cells = columns.iter().map(|at| {
            let found =
                mine.iter().find(|figure| figure.system == *system && column(figure) == *at);
            found.map_or("–".into(), |figure| value(figure))
        });
        table.push([name].into_iter().chain(cells).collect());
    }
    table.lines()
}

/// Returns one row for each `MEASURE:BYTES` of the setting `rows`, with a column for each of `systems`.
pub fn summary(results: &Results<Figure>, request: &Request) -> Outcome<String> {
    let state = state(request)?;
    let rows = request.values("rows").ok_or("a table summary needs rows=MEASURE:BYTES,...")?;
    let systems = request.values("systems").ok_or("a table summary needs systems=NAME,...")?;
    let head = [String::new()].into_iter().chain(systems.iter().cloned());
    let mut table = Markdown::new(head);
    for row in rows {
        let (measure, bytes) = row.split_once(':').ok_or_else(|| format!("{row}: no size"))?;
        let bytes: usize = bytes.parse()?;
        let cells = systems.iter().map(|system| {
            let found = results
                .figures
                .iter()
                .find(|figure| figure.is(measure, bytes, state) && figure.system == *system);
            found.filter(|figure| figure.slices >= ENOUGH).map_or("–".into(), value)
        });
        table.push([label(measure, bytes)].into_iter().chain(cells).collect());
    }
    table.lines()
}

fn state(request: &Request) -> Outcome<&str> {
    request.value("state").ok_or_else(|| "the mark needs state=near, state=far or state=any".into())
}

/// Returns the words for a measure.
fn title(measure: &str) -> &str {
    match measure {
        "trip-filled" => "round trip, filled and summed in place",
        "trip-copied" => "round trip, copied in and out",
        "trip-untouched" => "round trip, untouched",
        "stream" => "one way, default queues",
        "stream-4m" => "one way, queues of 4 MiB",
        "wake" => "round trip, both sides asleep",
        "fan-in" => "16 senders to one receiver",
        "fan-out" => "one message to 16 receivers, and an answer",
        "connect" => "connect and first echo",
        "reactor" => "round trip over one of several links",
        "idle" => "CPU of a receiver to which nobody sends",
        "footprint" => "memory and descriptors of a link",
        other => other,
    }
}

fn label(measure: &str, bytes: usize) -> String {
    match measure {
        "wake" | "connect" | "idle" | "footprint" => title(measure).to_owned(),
        _ => format!("{}, {}", size(bytes), title(measure)),
    }
}

fn value(figure: &Figure) -> String {
    let number = |value: Option<f64>| value.map_or("–".into(), digits);
    match figure.measure.as_str() {
        "stream" | "stream-4m" | "fan-in" => {
            let rate = figure.rate().unwrap_or(f64::NAN);
            let bytes = rate * figure.bytes as f64;
            if figure.bytes < 1 << 16 {
                format!("{} M/s", digits(rate / 1e6))
            } else {
                format!("{} GB/s", digits(bytes / 1e9))
            }
        }
        "idle" => format!("{} %", number(figure.beside)),
        "footprint" => {
            format!("{} KiB, {} descriptors", number(figure.memory_kib), number(figure.beside))
        }
        _ => figure.p50_ns.map_or("–".into(), short_time),
    }
}
