//! The request of a mark: the kind of a table, its files, and its settings.

use std::path::{Path, PathBuf};

use crate::Outcome;

/// A parsed mark.
pub struct Request {
    pub kind: String,
    /// Relative to the current folder.
    pub files: Vec<PathBuf>,
    settings: Vec<(String, Vec<String>)>,
}

/// The names of all settings.
const KNOWN: [&str; 8] =
    ["modes", "sizes", "state", "kind", "measure", "systems", "rows", "columns"];

impl Request {
    /// Parses `KIND FILE... SETTING=VALUE,VALUE...`. An underscore in a value stands for a blank.
    pub fn parse(text: &str) -> Outcome<Request> {
        let mut words = text.split_whitespace();
        let kind = words.next().ok_or("the mark names no table")?.to_owned();
        let (mut files, mut settings) = (Vec::new(), Vec::new());
        for word in words {
            let Some((name, values)) = word.split_once('=') else {
                files.push(PathBuf::from(word));
                continue;
            };
            if !KNOWN.contains(&name) {
                return Err(format!("no setting {name:?}, there are: {}", KNOWN.join(", ")).into());
            }
            let values = values.split(',').map(|value| value.replace('_', " ")).collect();
            settings.push((name.to_owned(), values));
        }
        if files.is_empty() && !["bounds", "resources"].contains(&&*kind) {
            return Err(format!("the mark {text:?} names no file").into());
        }
        Ok(Request { kind, files, settings })
    }

    /// Returns the file of a table that takes one.
    pub fn file(&self) -> Outcome<&Path> {
        match &self.files[..] {
            [file] => Ok(file),
            files => Err(format!("a table {} takes 1 file, not {}", self.kind, files.len()).into()),
        }
    }

    /// Returns the values of a setting, if the mark has it.
    pub fn values(&self, name: &str) -> Option<&[String]> {
        let found = self.settings.iter().find(|(setting, _)| setting == name);
        found.map(|(_, values)| values.as_slice())
    }

    /// Returns the only value of a setting, if the mark has it.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values(name)?.first().map(String::as_str)
    }

    /// Returns whether the setting admits a value. A setting that the mark does not have admits all.
    pub fn admits(&self, name: &str, value: &str) -> bool {
        self.values(name).is_none_or(|values| values.iter().any(|known| known == value))
    }
}
