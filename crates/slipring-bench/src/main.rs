//! Makes the tables of README and docs of the results of measurements, and checks them.
//!
//! ```text
//! cargo run -p slipring-bench -- table docs/figures/emerald.csv         prints the tables of a file
//! cargo run -p slipring-bench -- write README.md docs/performance.md  makes the marked tables of these pages
//! cargo run -p slipring-bench -- check README.md docs/performance.md  fails if a marked table differs from its file
//! ```
//!
//! Files are relative to the current folder. The module `tables` of the library says how a table is marked.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use slipring_bench::{Outcome, tables};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slipring-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["table", ref files @ ..] if !files.is_empty() => {
            for file in files {
                writeln!(out, "{}", tables::tables(Path::new(file))?)?;
            }
        }
        ["write", ref pages @ ..] if !pages.is_empty() => {
            for page in pages {
                tables::write(Path::new(page))?;
            }
        }
        ["check", ref pages @ ..] if !pages.is_empty() => {
            for page in pages {
                let count = tables::check(Path::new(page))?;
                writeln!(out, "{page}: {count} tables are what their files give")?;
            }
        }
        _ => {
            return Err(
                "usage: slipring-bench table FILE... | write PAGE... | check PAGE...".into()
            );
        }
    }
    Ok(())
}
