//! The tables of `ping_pong`: slipring beside the floors of the machine.

use super::markdown::Markdown;
use super::request::Request;
use crate::Outcome;
use crate::results::{FloorFigure, Results};
use crate::units::{digits, short_time, size};

/// Returns one row for each `MODE:BYTES` of the setting `rows`, in words.
pub fn summary(results: &Results<FloorFigure>, request: &Request) -> Outcome<String> {
    let rows = request.values("rows").ok_or("a table summary needs rows=MODE:BYTES,...")?;
    let mut table = Markdown::new(["", "slipring", "the machine", "ratio"]);
    for row in rows {
        let (mode, bytes) = row.split_once(':').ok_or_else(|| format!("{row}: no size"))?;
        let bytes: usize = bytes.parse()?;
        let mine = |figure: &&FloorFigure| {
            figure.mode == mode && figure.bytes == bytes && request.admits("state", &figure.state)
        };
        let figure =
            results.figures.iter().find(mine).ok_or_else(|| format!("{row}: no figure"))?;
        let (floor, floor_ns) = (figure.floor.as_deref().zip(figure.floor_ns))
            .ok_or_else(|| format!("{row}: no floor"))?;
        table.push(vec![
            format!("{}, {}", size(bytes), subject(mode)),
            time(figure),
            format!("{}: {}", machine(floor), short_time(floor_ns)),
            figure.ratio.map_or("–".into(), |ratio| format!("{} ×", digits(ratio))),
        ]);
    }
    table.lines()
}

/// Returns the words for a mode.
fn subject(mode: &str) -> &str {
    match mode {
        "direct" => "there and back, both sides awake",
        "inplace" => "written and read in place, there and back",
        "copy" => "copied in and out, there and back",
        "blocking" | "blocking-uds" => "there and back, both sides asleep",
        "tensor" => "tensor handed over and back",
        "tensor-fill" => "fresh tensor filled and summed, there and back",
        "stream" => "one way, one by one",
        "stream-batch" => "one way, in batches",
        "connect" => "connect and first echo",
        "tokio" => "there and back on tokio",
        other => other,
    }
}

/// Returns the words for a floor.
fn machine(floor: &str) -> &str {
    match floor {
        "line-ro" => "a cache line each way",
        "rotate" => "plain shared buffers",
        "ring" => "a bare ring",
        "uds" | "socket" => "a Unix socket",
        "tokio-uds" => "a Unix socket on tokio",
        other => other,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "mode,kind,bytes,unit,state,busy,p50_ns,mean_ns,p99_ns,p999_ns,floor,floor_ns,ratio,line_ns,slices,variant,loops";

    fn results(lines: &[&str]) -> Results<FloorFigure> {
        Results::parse(&format!("# date: 2026-11-23\n{HEAD}\n{}\n", lines.join("\n"))).unwrap()
    }

    fn request(text: &str) -> Request {
        Request::parse(text).unwrap()
    }

    const DIRECT: &str =
        "direct,slipring,8,round trip,near,0,150.2,151,420,,line-ro,128.1,1.1725,105,40,,";
    const LINE: &str = "line-ro,floor,8,round trip,near,0,128.1,128,,,,,,105,40,,";
    const BUSY: &str =
        "direct,slipring,8,round trip,near,2,300.4,817,22573,,line-ro,128.1,2.345,105,38,,0.634";

    #[test]
    fn a_table_has_a_row_for_each_subject_and_none_for_its_floor() {
        let table = table(&results(&[DIRECT, LINE]), &request("floors a.csv")).unwrap();
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            ["| `direct` | 8 B | near | 150 ns | 420 ns | `line-ro`: 128 ns | 1.17 × |"]
        );
    }

    #[test]
    fn settings_select_rows_and_an_empty_table_is_an_error() {
        let all = results(&[DIRECT, LINE]);
        assert!(table(&all, &request("floors a.csv modes=direct sizes=8 state=near")).is_ok());
        assert!(table(&all, &request("floors a.csv state=far")).is_err());
        assert!(Request::parse("floors a.csv stat=far").is_err());
    }

    #[test]
    fn a_summary_says_in_words_what_it_compares() {
        let all = results(&[DIRECT, LINE]);
        let table = summary(&all, &request("summary a.csv state=near rows=direct:8")).unwrap();
        let row = "| 8 B, there and back, both sides awake | 150 ns | a cache line each way: 128 ns | 1.17 × |";
        assert_eq!(table.lines().last(), Some(row));
        assert!(summary(&all, &request("summary a.csv state=near rows=direct:48")).is_err());
    }

    #[test]
    fn a_busy_table_has_a_column_for_each_file() {
        let all = [results(&[DIRECT, LINE]), results(&[BUSY])];
        let table = busy(&all, &request("busy a.csv b.csv")).unwrap();
        assert!(table.starts_with("| mode | size | floor | beside nothing | beside 2 loops |\n"));
        let row = "| `direct` | 8 B | `line-ro` | 1.17 × (150 ns, near) | 2.35 × (300 ns, near, loops 63 %) |";
        assert_eq!(table.lines().last(), Some(row));
    }
}
