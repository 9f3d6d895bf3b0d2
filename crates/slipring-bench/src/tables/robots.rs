//! The table of `bench-rivals robots`: a robot's pipeline over several systems.

use super::markdown::Markdown;
use super::request::Request;
use crate::Outcome;
use crate::results::{Results, RobotFigure};
use crate::units::{digits, short_time};

/// Returns one row for each system.
pub fn table(results: &Results<RobotFigure>, request: &Request) -> Outcome<String> {
    let mut table = Markdown::new([
        "",
        "camera",
        "detector",
        "tracker",
        "viewer",
        "CPU together",
        "age p50",
        "age p99",
        "lost",
        "memory",
    ]);
    for figure in results.figures.iter().filter(|figure| request.admits("systems", &figure.system))
    {
        let percent =
            |value: Option<f64>| value.map_or("–".into(), |value| format!("{} %", digits(value)));
        let age = |value: Option<f64>| value.map_or("–".into(), short_time);
        table.push(vec![
            name(figure),
            percent(figure.camera_percent),
            percent(figure.detector_percent),
            percent(figure.tracker_percent),
            percent(figure.viewer_percent),
            percent(figure.cpu_percent),
            age(figure.age_p50_ns),
            age(figure.age_p99_ns),
            format!("{} and {} of {}", figure.untracked, figure.unseen, figure.sent),
            figure.memory_kib.map_or("–".into(), |kib| format!("{} MiB", digits(kib / 1024.0))),
        ]);
    }
    table.lines()
}

/// Returns the system with its version, which stands before a comma in its name.
fn name(figure: &RobotFigure) -> String {
    let (system, how) = match figure.system.split_once(", ") {
        Some((system, how)) => (system, format!(", {how}")),
        None => (figure.system.as_str(), String::new()),
    };
    match figure.kind.as_str() {
        "floor" => format!("*{system}{how}*"),
        _ => format!("{system} {}{how}", figure.version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_version_the_ages_and_what_was_lost() {
        let head = "system,kind,version,camera_percent,detector_percent,tracker_percent,viewer_percent,cpu_percent,\
            age_p50_ns,age_p99_ns,sent,untracked,unseen,memory_kib,slices,options";
        let results = Results::parse(&format!(
            "{head}\n\"ZeroMQ, ipc\",rival,4.3.4,10.5,1,2,3,16.5,4580000,10100000,180,2,1,2048,3,none\n\
             one process,floor,,,,,,2.5,334000,400000,180,0,0,,3,none\n"
        ))
        .unwrap();
        let lines = table(&results, &Request::parse("robots a.csv").unwrap()).unwrap();
        let rows: Vec<&str> = lines.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| ZeroMQ 4.3.4, ipc | 10.5 % | 1.00 % | 2.00 % | 3.00 % | 16.5 % | 4.58 ms | 10.1 ms | 2 and 1 of 180 | 2.00 MiB |",
                "| *one process* | – | – | – | – | 2.50 % | 334 µs | 400 µs | 0 and 0 of 180 | – |"
            ]
        );
    }
}
