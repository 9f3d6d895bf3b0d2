//! The models of a server, by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::model::{AsyncModel, Model, ModelMetadata};
use crate::refusal::Refusal;
use crate::statistics::Statistics;

/// What computes.
#[derive(Clone)]
pub(super) enum Computing {
    Blocking(Arc<dyn Model>),
    Async(Arc<dyn AsyncModel>),
}

/// A model, and what became of its requests.
pub(super) struct Entry {
    pub(super) metadata: Arc<ModelMetadata>,
    pub(super) computing: Computing,
    /// Of each version.
    statistics: Vec<(u64, Statistics)>,
}

impl Entry {
    pub(super) fn new(computing: Computing) -> Self {
        let metadata = match &computing {
            Computing::Blocking(model) => model.metadata(),
            Computing::Async(model) => model.metadata(),
        };
        let mut metadata = metadata.clone();
        metadata.versions.sort_unstable();
        metadata.versions.dedup();
        let statistics = metadata.versions.iter().map(|version| (*version, Statistics::default()));
        Self { statistics: statistics.collect(), metadata: Arc::new(metadata), computing }
    }

    pub(super) fn is_ready(&self) -> bool {
        match &self.computing {
            Computing::Blocking(model) => model.is_ready(),
            Computing::Async(model) => model.is_ready(),
        }
    }

    /// Of all versions.
    pub(super) fn all_statistics(&self) -> impl Iterator<Item = (u64, &Statistics)> {
        self.statistics.iter().map(|(version, statistics)| (*version, statistics))
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

/// One version of a model.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) entry: Arc<Entry>,
    pub(super) version: u64,
    at: usize,
}

impl Found {
    pub(super) fn statistics(&self) -> &Statistics {
        &self.entry.statistics[self.at].1
    }
}

/// The models, by name.
#[derive(Debug, Default)]
pub(super) struct Repository {
    models: BTreeMap<String, Arc<Entry>>,
}

impl Repository {
    /// Adds a model, or tells its name and what it must have.
    pub(super) fn add(&mut self, computing: Computing) -> Result<(), (String, &'static str)> {
        let entry = Entry::new(computing);
        let name = entry.metadata.name.clone();
        let must = match entry.metadata.lacks() {
            None if self.models.contains_key(&name) => "a name of its own",
            None => {
                self.models.insert(name, Arc::new(entry));
                return Ok(());
            }
            Some(must) => must,
        };
        Err((name, must))
    }

    pub(super) fn models(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.models.values()
    }

    /// A model, and the version that is asked for; the last one, if none is.
    pub(super) fn find(&self, model: &str, version: Option<&str>) -> Result<Found, Refusal> {
        let entry = self.models.get(model).ok_or_else(|| Refusal::unknown_model(model))?;
        let versions = &entry.metadata.versions;
        let at = match version.filter(|version| !version.is_empty()) {
            None => versions.len() - 1,
            Some(text) => {
                let number: u64 = text.parse().map_err(|_| Refusal::version_text(text))?;
                let at = versions.iter().position(|version| *version == number);
                at.ok_or_else(|| Refusal::unknown_version(model, text))?
            }
        };
        Ok(Found { entry: entry.clone(), version: versions[at], at })
    }
}
