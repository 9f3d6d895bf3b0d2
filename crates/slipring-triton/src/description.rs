//! The descriptions of the server and its models, the same for both protocols.

use slipring::DType;

use crate::front::Front;
use crate::metadata::{ModelMetadata, TensorSpec};
use crate::refusal::Refusal;
use crate::statistics::Counts;

/// The protocol extensions that the server supports.
const EXTENSIONS: [&str; 7] = [
    "binary_tensor_data",
    "classification",
    "cuda_shared_memory",
    "model_configuration",
    "model_repository",
    "statistics",
    "system_shared_memory",
];

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
    /// The version.
    pub version: String,
    /// Whether the version takes requests.
    pub is_ready: bool,
}

impl IndexEntry {
    /// Returns the protocol's word for the state.
    pub fn state(&self) -> &'static str {
        if self.is_ready { "READY" } else { "UNAVAILABLE" }
    }
}

impl Front {
    /// Returns the server's description.
    pub fn describe(&self) -> ServerDescription {
        ServerDescription {
            name: self.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.to_vec(),
        }
    }

    /// Returns whether all models take requests.
    pub fn is_ready(&self) -> bool {
        self.repository().models().all(|entry| entry.is_ready())
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
    pub fn model_metadata(
        &self,
        model: &str,
        version: Option<&str>,
    ) -> Result<ModelDescription, Refusal> {
        let found = self.repository().find(model, version)?;
        let metadata = &*found.entry.metadata;
        Ok(description(metadata, |spec| metadata.shape_of(spec)))
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
        Ok(description(&found.entry.metadata, dims))
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

    /// Returns all versions of all models, or only those that take requests.
    pub fn index(&self, ready_alone: bool) -> Vec<IndexEntry> {
        let models = self.repository().models();
        let entries = models.flat_map(|entry| {
            let is_ready = entry.is_ready();
            entry.metadata.versions.iter().map(move |version| IndexEntry {
                name: entry.metadata.name.clone(),
                version: version.to_string(),
                is_ready,
            })
        });
        entries.filter(|entry| entry.is_ready || !ready_alone).collect()
    }
}

fn description(
    metadata: &ModelMetadata,
    dims: impl Fn(&TensorSpec) -> Vec<i64>,
) -> ModelDescription {
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
        inputs: tensors(&metadata.inputs),
        outputs: tensors(&metadata.outputs),
    }
}
