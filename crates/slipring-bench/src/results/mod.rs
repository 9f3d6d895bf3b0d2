//! The results of a run: facts about the run, one a line, and figures as CSV.
//!
//! ```text
//! # date: 2026-11-23
//! # machine: AMD EPYC-Genoa Processor, 2 CPUs, a virtual machine
//! mode,kind,bytes,...
//! direct,slipring,8,...
//! ```
//!
//! One type of figure for each program: [`FloorFigure`] of `ping_pong`, [`PairFigure`] of `ping_pong --pairs`,
//! [`Figure`] of `bench-rivals`, [`RobotFigure`] of `bench-rivals robots`.

mod floors;
mod pairs;
mod rivals;
mod robots;

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Outcome;

pub use floors::FloorFigure;
pub use pairs::PairFigure;
pub use rivals::Figure;
pub use robots::RobotFigure;

/// The facts and figures of a run.
pub struct Results<F> {
    /// Facts about the machine and the run, each without its `# `.
    pub facts: Vec<String>,
    /// The figures, in the order in which they were measured.
    pub figures: Vec<F>,
}

impl<F: Serialize + DeserializeOwned> Results<F> {
    /// Writes the file, and the folder where it lies.
    pub fn write(&self, path: &Path) -> Outcome<()> {
        let facts: String = self.facts.iter().map(|fact| format!("# {fact}\n")).collect();
        let mut writer = csv::Writer::from_writer(facts.into_bytes());
        for figure in &self.figures {
            writer.serialize(figure)?;
        }
        let text = writer.into_inner().map_err(|error| error.to_string())?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text).map_err(|error| named(path, &error))
    }

    /// Reads a file that [`Results::write`] wrote.
    pub fn read(path: &Path) -> Outcome<Results<F>> {
        Self::parse(&text(path)?).map_err(|error| named(path, &error))
    }

    /// Parses the text of such a file.
    pub fn parse(text: &str) -> Outcome<Results<F>> {
        let facts = facts_of(text);
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let figures = reader.deserialize().collect::<Result<_, _>>()?;
        Ok(Results { facts, figures })
    }
}

/// Returns the facts of a file, whatever its figures are.
pub fn facts(path: &Path) -> Outcome<Vec<String>> {
    Ok(facts_of(&text(path)?))
}

fn facts_of(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect()
}

/// Which program wrote a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// `ping_pong`.
    Floors,
    /// `ping_pong --pairs`.
    Pairs,
    /// `bench-rivals`.
    Rivals,
    /// `bench-rivals robots`.
    Robots,
}

impl Source {
    /// Returns the program that wrote the file, by the file's first column.
    pub fn of(path: &Path) -> Outcome<Source> {
        let text = text(path)?;
        let head = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
        match head.split(',').next() {
            Some("mode") => Ok(Source::Floors),
            Some("pairs") => Ok(Source::Pairs),
            Some("measure") => Ok(Source::Rivals),
            Some("system") => Ok(Source::Robots),
            _ => Err(named(path, &"its first column is none of mode, pairs, measure, system")),
        }
    }
}

fn text(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> Box<dyn std::error::Error + Send + Sync> {
    format!("{}: {error}", path.display()).into()
}
