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
        .filter(|figure| figure.is(measure, figure.bytes, state))
        .filter(|figure| figure.slices >= ENOUGH && request.admits("systems", &figure.system))
        .filter(|figure| request.admits("sizes", &figure.bytes.to_string()))
        .collect();
    let column = |figure: &Figure| match measure {
        "reactor" if figure.kind == "slipring" => (figure.bytes, figure.links),
        _ => (figure.bytes, 1),
    };
    let mut columns = Vec::new();
    for figure in &mine {
        if !columns.contains(&column(figure)) {
            columns.push(column(figure));
        }
    }
    columns.sort_unstable();
    let head = columns.iter().map(|(bytes, links)| match measure {
        "reactor" if *links == 1 => "1 link".into(),
        "reactor" => format!("{links} links"),
        _ => size(*bytes),
    });
    let mut table = Markdown::new([title(measure).into(), WRITABLE.into()].into_iter().chain(head));
    for who in known(&mine) {
        let cells = columns.iter().map(|at| {
            let found =
                mine.iter().find(|figure| figure.system == who.system && column(figure) == *at);
            found.map_or("–".into(), |figure| value(figure))
        });
        table.push([name(who), who.writable.clone()].into_iter().chain(cells).collect());
    }
    table.lines()
}

/// Returns one row for each system, with a column for each `MEASURE:BYTES` or `MEASURE:BYTES:LOOPS` of the setting
/// `columns`. Beside loops a time is the mean of all slices, with the part of their speed that the loops keep.
pub fn systems(results: &Results<Figure>, request: &Request) -> Outcome<String> {
    let state = state(request)?;
    let columns =
        request.values("columns").ok_or("a table systems needs columns=MEASURE:BYTES,...")?;
    let columns: Vec<Column> =
        columns.iter().map(|text| Column::parse(text)).collect::<Outcome<_>>()?;
    let is_here = |figure: &&Figure, column: &Column| {
        [state, "any"].iter().any(|state| {
            figure.is_beside(column.busy.unwrap_or(0), &column.measure, column.bytes, state)
        })
    };
    let mine: Vec<&Figure> = (results.figures.iter())
        .filter(|figure| figure.slices >= ENOUGH && request.admits("systems", &figure.system))
        .filter(|figure| columns.iter().any(|column| is_here(figure, column)))
        .collect();
    let head = columns.iter().map(Column::title);
    let mut table = Markdown::new([String::new(), WRITABLE.into()].into_iter().chain(head));
    for who in known(&mine) {
        let cells = columns.iter().map(|column| {
            let found =
                mine.iter().find(|figure| figure.system == who.system && is_here(figure, column));
            found.map_or("–".into(), |figure| column.value(figure))
        });
        table.push([name(who), who.writable.clone()].into_iter().chain(cells).collect());
    }
    table.lines()
}

/// The head of the column that says which of the memory that two sides share both may write.
const WRITABLE: &str = "both may write";

/// A column of the table `systems`.
struct Column {
    measure: String,
    bytes: usize,
    /// Busy loops, in a table that has columns beside some.
    busy: Option<usize>,
}

impl Column {
    fn parse(text: &str) -> Outcome<Column> {
        let wrong = || format!("{text}: a column is MEASURE:BYTES or MEASURE:BYTES:LOOPS");
        let mut parts = text.split(':');
        let measure = parts.next().unwrap_or_default().to_owned();
        let bytes = parts.next().ok_or_else(wrong)?.parse()?;
        let busy = parts.next().map(str::parse).transpose()?;
        Ok(Column { measure, bytes, busy })
    }

    fn title(&self) -> String {
        match self.busy {
            None => label(&self.measure, self.bytes),
            Some(0) => "beside nothing".into(),
            Some(1) => "1 loop".into(),
            Some(busy) => format!("{busy} loops"),
        }
    }

    fn value(&self, figure: &Figure) -> String {
        if self.busy.is_none() {
            return value(figure);
        }
        let mean = figure.mean_ns.map_or("–".into(), short_time);
        figure.loops.map_or(mean.clone(), |part| format!("{mean}, loops {:.0} %", part * 100.0))
    }
}

/// Returns a figure of each system, in the table's order.
fn known<'a>(figures: &[&'a Figure]) -> Vec<&'a Figure> {
    let mut known: Vec<&Figure> = Vec::new();
    for figure in figures {
        if !known.iter().any(|one| one.system == figure.system) {
            known.push(figure);
        }
    }
    known.sort_by_key(|figure| KINDS.iter().position(|kind| *kind == figure.kind));
    known
}

fn name(figure: &Figure) -> String {
    match figure.kind.as_str() {
        "floor" => format!("*{}*", figure.system),
        "rival" => format!("{} {}", figure.system, figure.version),
        _ => figure.system.clone(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_beside_loops_has_the_mean_and_what_the_loops_keep() {
        let head = "measure,bytes,links,system,kind,version,state,busy,p50_ns,mean_ns,p99_ns,p999_ns,beside,memory_kib,\
            loops,slices,dropped,line_ns,variant,writable,options";
        let results = Results::parse(&format!(
            "{head}\n\
             trip-filled,8,1,iceoryx2,rival,0.10.0,far,0,900,1000,,,,,,9,0,300,,control,defaults\n\
             trip-filled,8,1,iceoryx2,rival,0.10.0,far,2,900,4000,,,,,0.61,9,0,300,,control,defaults\n\
             trip-filled,8,1,iceoryx2,rival,0.10.0,near,0,500,500,,,,,,9,0,100,,control,defaults\n\
             trip-filled,8,1,line,floor,,far,0,300,310,,,,,,2,0,300,,all,few slices\n"
        ))
        .unwrap();
        let mark = "systems a.csv state=far columns=trip-filled:8:0,trip-filled:8:2";
        let lines = systems(&results, &Request::parse(mark).unwrap()).unwrap();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(
            [lines[0], lines[2]],
            [
                "|  | both may write | beside nothing | 2 loops |",
                "| iceoryx2 0.10.0 | control | 1.00 µs | 4.00 µs, loops 61 % |"
            ]
        );
        assert_eq!(lines.len(), 3);
    }
}
