//! The findings of the doctor.

use std::fmt;

use serde::Serialize;

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// slipring works, and lacks something.
    Note,
    /// Something does not work.
    Problem,
}

/// A fact, and what to do about it.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    level: Level,
    about: &'static str,
    fact: String,
    remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(about: &'static str, fact: impl Into<String>) -> Self {
        Self { level: Level::Ok, about, fact: fact.into(), remedy: None }
    }

    pub(super) fn note(
        about: &'static str,
        fact: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Note, about, fact: fact.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn problem(
        about: &'static str,
        fact: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Problem, about, fact: fact.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn is_problem(&self) -> bool {
        self.level == Level::Problem
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "problem",
        };
        write!(f, "{level:<8} {:<15} {}", self.about, self.fact)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}
