//! The descriptions of the server and its models, the same for both protocols.

use std::collections::BTreeSet;

use slipring::DType;

use crate::front::Front;
use crate::metadata::TensorSpec;
use crate::refusal::Refusal;
use crate::repository::{Listed, ModelEntry, ModelState};
use crate::statistics::Counts;

/// The protocol extensions that the server supports.
const EXTENSIONS: [&str; 6] = [
    "binary_tensor_data",
    "classification",
    "cuda_shared_memory",
    "model_configuration",
    "statistics",
    "system_shared_memory",
];

/// The further extensions of a server whose clients can load models.
const MODEL_CONTROL: [&str; 2] = ["model_repository", "model_repository(unload_dependents)"];

/// The server's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDescription {
    /// The server's name.
    pub name: String,
    /// The server's version.
    pub version: String,
    /// The supported protocol extensions.
    pub extensions: Vec<&'static str>,
}

/// An input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorDescription {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The dimensions; -1 is any length. Metadata includes the batch dimension, a configuration does not.
    pub dims: Vec<i64>,
}

impl TensorDescription {
    /// Returns the name of the data type in a model configuration.
    pub fn config_type(&self) -> &'static str {
        match self.dtype {
            DType::Bool => "TYPE_BOOL",
            DType::Uint8 => "TYPE_UINT8",
            DType::Uint16 => "TYPE_UINT16",
            DType::Uint32 => "TYPE_UINT32",
            DType::Uint64 => "TYPE_UINT64",
            DType::Int8 => "TYPE_INT8",
            DType::Int16 => "TYPE_INT16",
            DType::Int32 => "TYPE_INT32",
            DType::Int64 => "TYPE_INT64",
            DType::Fp16 => "TYPE_FP16",
            DType::Fp32 => "TYPE_FP32",
            DType::Fp64 => "TYPE_FP64",
            DType::Bytes => "TYPE_STRING",
            DType::Bf16 => "TYPE_BF16",
            _ => "TYPE_INVALID",
        }
    }
}

/// The inputs and outputs of a model, as metadata or as configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDescription {
    /// The model's name.
    pub name: String,
    /// The model's versions.
    pub versions: Vec<String>,
    /// The platform that executes the model.
    pub platform: String,
    /// The largest batch; 0 for a model without batches.
    pub max_batch_size: usize,
    /// Whether a request may have other than one response.
    pub decoupled: bool,
    /// The model's inputs.
    pub inputs: Vec<TensorDescription>,
    /// The model's outputs.
    pub outputs: Vec<TensorDescription>,
}

impl ModelDescription {
    /// The backend that configurations name.
    pub(crate) const BACKEND: &'static str = "slipring";
}

/// The statistics of one version of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// The version.
    pub version: String,
    /// The counts from the server's start on.
    pub counts: Counts,
}

/// One version of a model in the repository index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// The version; empty for a model whose versions are not known.
    pub version: String,
    /// The version's state.
    pub state: ModelState,
    /// The reason of the state, if there is one.
    pub reason: String,
}

impl Front {
    /// Returns the server's description.
    pub fn describe(&self) -> ServerDescription {
        let control = if self.control().is_served() { &MODEL_CONTROL[..] } else { &[] };
        ServerDescription {
            name: self.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.iter().chain(control).copied().collect(),
        }
    }

    /// Returns whether all models that are loaded take requests.
    pub fn is_ready(&self) -> bool {
        self.repository().models().iter().all(|entry| entry.is_ready())
    }

    /// Returns whether a model, or one version of it, takes requests. The answer for an unknown model is `false`.
    pub fn is_model_ready(&self, model: &str, version: Option<&str>) -> bool {
        self.repository().find(model, version).is_ok_and(|found| found.entry.is_ready())
    }

    /// Returns a model's metadata. The dimensions include the batch.
    ///
    /// # Errors
    ///
    /// [`RefusalKind::NotFound`](crate::RefusalKind::NotFound) or
    /// [`InvalidArgument`](crate::RefusalKind::InvalidArgument): the model or the version does not exist.
    /// [`Unavailable`](crate::RefusalKind::Unavailable): this version is unloaded.
    pub fn model_metadata(
        &self,
        model: &str,
        version: Option<&str>,
    ) -> Result<ModelDescription, Refusal> {
        let found = self.repository().find(model, version)?;
        let metadata = &*found.entry.metadata;
        Ok(description(&found.entry, |spec| metadata.shape_of(spec)))
    }

    /// Returns a model's configuration. The dimensions exclude the batch.
    ///
    /// # Errors
    ///
    /// As for [`model_metadata`](Self::model_metadata).
    pub fn model_config(
        &self,
        model: &str,
        version: Option<&str>,
    ) -> Result<ModelDescription, Refusal> {
        let found = self.repository().find(model, version)?;
        let dims = |spec: &TensorSpec| {
            spec.dims.iter().map(|dim| dim.map_or(-1, |dim| dim as i64)).collect()
        };
        Ok(description(&found.entry, dims))
    }

    /// Returns the statistics of one version of a model, of all its versions, or of all models if `model` is `None`.
    ///
    /// # Errors
    ///
    /// As for [`model_metadata`](Self::model_metadata).
    pub fn statistics(
        &self,
        model: Option<&str>,
        version: Option<&str>,
    ) -> Result<Vec<ModelStatistics>, Refusal> {
        let (model, version) = (model.unwrap_or_default(), version.unwrap_or_default());
        let mut wanted = None;
        if !model.is_empty() {
            let found = self.repository().find(model, Some(version))?;
            wanted = Some((found.entry.metadata.name.clone(), found.version));
        }
        let mut all = Vec::new();
        for entry in self.repository().models() {
            for (number, statistics) in entry.all_statistics() {
                let name = &entry.metadata.name;
                let is = wanted.as_ref().is_none_or(|(wanted, at)| {
                    wanted == name && (version.is_empty() || *at == number)
                });
                if is {
                    let (name, version) = (name.clone(), number.to_string());
                    all.push(ModelStatistics { name, version, counts: statistics.counts() });
                }
            }
        }
        Ok(all)
    }

    /// Returns all versions of all models, loaded or not, or only those that take requests. It calls
    /// [`ModelRepository::index`](crate::ModelRepository::index), which may wait.
    pub fn index(&self, ready_alone: bool) -> Vec<IndexEntry> {
        let mut all = Vec::new();
        for listed in self.repository().list() {
            let (name, versions, state, reason) = match listed {
                Listed::Loaded(entry) => {
                    let is_ready = entry.is_ready();
                    let state = if is_ready { ModelState::Ready } else { ModelState::Unavailable };
                    let metadata = &entry.metadata;
                    (metadata.name.clone(), metadata.versions.clone(), state, String::new())
                }
                Listed::Absent { name, versions, state, reason } => (name, versions, state, reason),
            };
            let row = |version: String| {
                let (name, reason) = (name.clone(), reason.clone());
                IndexEntry { name, version, state, reason }
            };
            match versions.is_empty() {
                true => all.push(row(String::new())),
                false => all.extend(versions.iter().map(|version| row(version.to_string()))),
            }
        }
        if ready_alone {
            all.retain(|entry| entry.state == ModelState::Ready);
            return all;
        }
        let known: BTreeSet<String> = all.iter().map(|entry| entry.name.clone()).collect();
        let others = self.control().names().into_iter().filter(|name| !known.contains(name));
        all.extend(others.map(|name| IndexEntry {
            name,
            version: String::new(),
            state: ModelState::Unavailable,
            reason: "not loaded".to_owned(),
        }));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

fn description(entry: &ModelEntry, dims: impl Fn(&TensorSpec) -> Vec<i64>) -> ModelDescription {
    let metadata = &*entry.metadata;
    let tensors = |specs: &[TensorSpec]| {
        let tensor = |spec: &TensorSpec| TensorDescription {
            name: spec.name.clone(),
            dtype: spec.dtype,
            dims: dims(spec),
        };
        specs.iter().map(tensor).collect()
    };
    ModelDescription {
        name: metadata.name.clone(),
        versions: metadata.versions.iter().map(u64::to_string).collect(),
        platform: metadata.platform.clone(),
        max_batch_size: metadata.max_batch_size,
        decoupled: entry.is_decoupled(),
        inputs: tensors(&metadata.inputs),
        outputs: tensors(&metadata.outputs),
    }
}
