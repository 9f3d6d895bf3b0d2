//! The tables of README and docs, made of the results of one run.
//!
//! Two comments mark a table in a page. The first one names the kind of the table, its files, and settings that select
//! figures. An underscore in a setting stands for a blank:
//!
//! ```text
//! <!-- table: floors docs/figures/emerald.csv state=far modes=direct,connect -->
//! | … |
//! <!-- end -->
//! ```
//!
//! | kind | files | a row is | settings |
//! |---|---|---|---|
//! | `machine` | one | none: a line that names the machine, the system, the date and the commit | |
//! | `floors` | one of `ping_pong` | a mode at a size | `modes`, `sizes`, `state`, `kind` |
//! | `bounds` | none | what else peers can make a process hold | |
//! | `busy` | several of `ping_pong`, beside more and more loops | a mode at a size | `modes`, `sizes`, `state` |
//! | `pairs` | one of `ping_pong --pairs` | a mode | `modes` |
//! | `resources` | none | something that peers can make a process hold | |
//! | `rivals` | one of `bench-rivals` | a system, with a column a size | `measure`, `state`, `systems`, `sizes` |
//! | `systems` | one of `bench-rivals` | a system, with a column for each `MEASURE:BYTES`, or `MEASURE:BYTES:LOOPS` beside busy loops | `columns`, `state`, `systems` |
//! | `robots` | one of `bench-rivals robots` | a system | `systems` |
//! | `summary` | one of `ping_pong` | a mode at a size, in words, beside its floor | `rows`, `state` |
//! | `summary` | one of `bench-rivals` | a measure at a size, with a column a system | `rows`, `systems`, `state` |
//!
//! All figures but throughputs are times and ratios of times: lower is better.

mod bounds;
mod floors;
mod markdown;
mod page;
mod pairs;
mod request;
mod resources;
mod rivals;
mod robots;

use std::path::Path;

use crate::Outcome;
use crate::results::{self, Results, Source};

pub use page::{check, write};
use request::Request;

/// Returns the tables of a file, each between its marks, to be put into a page.
pub fn tables(path: &Path) -> Outcome<String> {
    let name = path.display();
    let mut requests = vec![format!("machine {name}")];
    match Source::of(path)? {
        Source::Floors => requests.push(format!("floors {name}")),
        Source::Pairs => requests.push(format!("pairs {name}")),
        Source::Robots => requests.push(format!("robots {name}")),
        Source::Rivals => requests.extend(
            rivals::all(&Results::read(path)?)
                .into_iter()
                .map(|(measure, state)| format!("rivals {name} measure={measure} state={state}")),
        ),
    }
    let blocks: Outcome<Vec<String>> = requests
        .iter()
        .map(|request| Ok(page::block(request, &table(&Request::parse(request)?)?)))
        .collect();
    Ok(blocks?.join("\n"))
}

/// Returns a line that names what a file's figures were taken on.
fn machine(path: &Path) -> Outcome<String> {
    let facts = results::facts(path)?;
    let fact = |name: &str| {
        let found = facts.iter().find_map(|fact| fact.strip_prefix(name)?.strip_prefix(": "));
        found.map(str::to_owned)
    };
    let commit = fact("commit").map(|commit| format!("commit {commit}"));
    let known: Vec<String> =
        [fact("machine"), fact("system"), fact("date"), commit].into_iter().flatten().collect();
    Ok(format!("{}.\n", known.join("; ")))
}

/// Returns the table that a mark asks for.
fn table(request: &Request) -> Outcome<String> {
    match request.kind.as_str() {
        "machine" => machine(request.file()?),
        "floors" => floors::table(&Results::read(request.file()?)?, request),
        "busy" => {
            let all: Outcome<Vec<_>> =
                request.files.iter().map(|file| Results::read(file)).collect();
            floors::busy(&all?, request)
        }
        "pairs" => pairs::table(&Results::read(request.file()?)?, request),
        "bounds" => bounds::table(),
        "resources" => resources::table(),
        "rivals" => rivals::table(&Results::read(request.file()?)?, request),
        "systems" => rivals::systems(&Results::read(request.file()?)?, request),
        "robots" => robots::table(&Results::read(request.file()?)?, request),
        "summary" if Source::of(request.file()?)? == Source::Floors => {
            floors::summary(&Results::read(request.file()?)?, request)
        }
        "summary" => rivals::summary(&Results::read(request.file()?)?, request),
        other => Err(format!(
            "no table {other:?}, there are: machine, bounds, floors, busy, pairs, resources, rivals, systems, robots, summary"
        )
        .into()),
    }
}
