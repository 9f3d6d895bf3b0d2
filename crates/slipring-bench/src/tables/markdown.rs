//! A table in markdown.

use crate::Outcome;

/// A table with a head and rows of as many cells.
pub struct Markdown {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Markdown {
    pub fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Markdown {
        Markdown { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    pub fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Returns the lines of the table, or an error if there is no row.
    pub fn lines(&self) -> Outcome<String> {
        if self.rows.is_empty() {
            return Err("no figure is what the mark asks for".into());
        }
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        Ok(format!("{}|{}\n{rows}", line(&self.head), "---|".repeat(self.head.len())))
    }
}
