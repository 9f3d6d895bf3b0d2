//! The tables of README and docs, made of the results of one run.
//!
//! A page marks a table by two comments. The first one names the kind of the table, its files, and what is in it:
//!
//! ```text
//! <!-- table: floors docs/figures/zen4.csv state=near modes=direct,connect -->
//! | … |
//! <!-- end -->
//! ```
//!
//! | kind | files | a row is | settings |
//! |---|---|---|---|
//! | `floors` | one of `ping_pong` | a mode at a size | `modes`, `sizes`, `state`, `kind` |
//! | `busy` | several of `ping_pong`, beside more and more loops | a mode at a size | `modes`, `sizes`, `state` |
//! | `pairs` | one of `ping_pong --pairs` | a mode | `modes` |
//! | `rivals` | one of `bench-rivals` | a system, with a column a size | `measure`, `state`, `systems`, `sizes` |
//! | `summary` | one of `bench-rivals` | a measure at a size, with a column a system | `rows`, `systems`, `state` |
//!
//! All but the throughputs are times and ratios of times: the lower, the better.

mod floors;
mod markdown;
mod page;
mod pairs;
mod request;
mod rivals;

use std::path::Path;

use crate::Outcome;
use crate::results::{Results, Source};

pub use page::{check, write};
use request::Request;

/// Returns the tables of a file, each between its marks, to be put into a page.
pub fn tables(path: &Path) -> Outcome<String> {
    let name = path.display();
    let requests = match Source::of(path)? {
        Source::Floors => vec![format!("floors {name}")],
        Source::Pairs => vec![format!("pairs {name}")],
        Source::Rivals => rivals::all(&Results::read(path)?)
            .into_iter()
            .map(|(measure, state)| format!("rivals {name} measure={measure} state={state}"))
            .collect(),
    };
    let blocks: Outcome<Vec<String>> = requests
        .iter()
        .map(|request| Ok(page::block(request, &table(&Request::parse(request)?)?)))
        .collect();
    Ok(blocks?.join("\n"))
}

/// Returns the table that a mark asks for.
fn table(request: &Request) -> Outcome<String> {
    match request.kind.as_str() {
        "floors" => floors::table(&Results::read(request.file()?)?, request),
        "busy" => {
            let all: Outcome<Vec<_>> =
                request.files.iter().map(|file| Results::read(file)).collect();
            floors::busy(&all?, request)
        }
        "pairs" => pairs::table(&Results::read(request.file()?)?, request),
        "rivals" => rivals::table(&Results::read(request.file()?)?, request),
        "summary" => rivals::summary(&Results::read(request.file()?)?, request),
        other => {
            Err(format!("no table {other:?}, there are: floors, busy, pairs, rivals, summary")
                .into())
        }
    }
}
