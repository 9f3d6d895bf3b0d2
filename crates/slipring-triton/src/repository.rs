//! The models of a server, by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::instances::Instances;
use crate::metadata::ModelMetadata;
use crate::model::{AsyncModel, Model};
use crate::refusal::Refusal;
use crate::statistics::Statistics;

/// A model of either kind.
#[derive(Clone)]
pub(crate) enum AnyModel {
    Blocking(Arc<dyn Model>),
    Async(Arc<dyn AsyncModel>),
}

/// A model and its statistics.
pub(crate) struct ModelEntry {
    pub(crate) metadata: Arc<ModelMetadata>,
    pub(crate) model: AnyModel,
    pub(crate) instances: Instances,
    /// The statistics of each version.
    statistics: Vec<(u64, Statistics)>,
}

impl ModelEntry {
    pub(crate) fn new(model: AnyModel) -> Self {
        let metadata = match &model {
            AnyModel::Blocking(model) => model.metadata(),
            AnyModel::Async(model) => model.metadata(),
        };
        let mut metadata = metadata.clone();
        metadata.versions.sort_unstable();
        metadata.versions.dedup();
        let statistics = metadata.versions.iter().map(|version| (*version, Statistics::default()));
        let (statistics, instances) = (statistics.collect(), Instances::new(&metadata));
        Self { statistics, instances, metadata: Arc::new(metadata), model }
    }

    pub(crate) fn is_ready(&self) -> bool {
        match &self.model {
            AnyModel::Blocking(model) => model.is_ready(),
            AnyModel::Async(model) => model.is_ready(),
        }
    }

    /// Returns the statistics of all versions.
    pub(crate) fn all_statistics(&self) -> impl Iterator<Item = (u64, &Statistics)> {
        self.statistics.iter().map(|(version, statistics)| (*version, statistics))
    }
}

impl fmt::Debug for ModelEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelEntry").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

/// One version of a model.
#[derive(Debug, Clone)]
pub(crate) struct ModelVersion {
    pub(crate) entry: Arc<ModelEntry>,
    pub(crate) version: u64,
    at: usize,
}

impl ModelVersion {
    pub(crate) fn statistics(&self) -> &Statistics {
        &self.entry.statistics[self.at].1
    }
}

/// The models, by name.
#[derive(Debug, Default)]
pub(crate) struct Repository {
    models: BTreeMap<String, Arc<ModelEntry>>,
}

impl Repository {
    /// Adds a model. The error is the model's name and the property that it missing_property.
    pub(crate) fn add(&mut self, model: AnyModel) -> Result<(), (String, &'static str)> {
        let entry = ModelEntry::new(model);
        let name = entry.metadata.name.clone();
        let must = match entry.metadata.missing_property() {
            None if self.models.contains_key(&name) => "a name of its own",
            None => {
                self.models.insert(name, Arc::new(entry));
                return Ok(());
            }
            Some(must) => must,
        };
        Err((name, must))
    }

    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<ModelEntry>> {
        self.models.values()
    }

    /// Returns a model, and the version that the client asks for or else the last one.
    pub(crate) fn find(&self, model: &str, version: Option<&str>) -> Result<ModelVersion, Refusal> {
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
        Ok(ModelVersion { entry: entry.clone(), version: versions[at], at })
    }
}
