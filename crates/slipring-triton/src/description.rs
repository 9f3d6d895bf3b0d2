//! What clients are told of the server and its models, whichever wire they ask by.

use crate::front::Front;
use crate::metadata::{ModelMetadata, TensorSpec};
use crate::refusal::Refusal;
use crate::statistics::Counts;
use slipring::DType;

/// What is served beyond the plain protocol.
const EXTENSIONS: [&str; 6] = [
    "binary_tensor_data",
    "cuda_shared_memory",
    "model_configuration",
    "model_repository",
    "statistics",
    "system_shared_memory",
];

/// What a server tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDescription {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it serves beyond the plain protocol.
    pub extensions: Vec<&'static str>,
}

/// A tensor that a model takes or gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorDescription {
    /// Its name.
    pub name: String,
    /// What its elements are.
    pub dtype: DType,
    /// In metadata with the dimension of a batch, in a configuration without it. -1 is any length.
    pub dims: Vec<i64>,
}

impl TensorDescription {
    /// Its data type as configurations call it.
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

/// What a model takes and gives, as its metadata or as its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDescription {
    /// Its name.
    pub name: String,
    /// Its versions.
    pub versions: Vec<String>,
    /// What executes it.
    pub platform: String,
    /// The longest batch; 0: it does not batch.
    pub max_batch_size: usize,
    /// What it takes.
    pub inputs: Vec<TensorDescription>,
    /// What it gives.
    pub outputs: Vec<TensorDescription>,
}

impl ModelDescription {
    /// What configurations call the server's side of a model.
    pub(super) const BACKEND: &'static str = "slipring";
}

/// What became of the requests to a version of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelStatistics {
    /// The model's name.
    pub name: String,
    /// The version.
    pub version: String,
    /// Since the server was started.
    pub counts: Counts,
}

/// A version of a model in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// The version.
    pub version: String,
    /// Whether it takes requests.
    pub is_ready: bool,
}

impl IndexEntry {
    /// As the protocol has it.
    pub fn state(&self) -> &'static str {
        if self.is_ready { "READY" } else { "UNAVAILABLE" }
    }
}

impl Front {
    /// What the server is.
    pub fn describe(&self) -> ServerDescription {
        ServerDescription {
            name: self.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.to_vec(),
        }
    }

    /// Whether all models take requests.
    pub fn is_ready(&self) -> bool {
        self.repository().models().all(|entry| entry.is_ready())
    }

    /// Whether a model, or a version of it, takes requests. One that is not there does not.
    pub fn is_model_ready(&self, model: &str, version: Option<&str>) -> bool {
        self.repository().find(model, version).is_ok_and(|found| found.entry.is_ready())
    }

    /// A model's metadata: dimensions with that of a batch.
    ///
    /// # Errors
    ///
    /// There is no such model or version.
    pub fn model_metadata(
        &self,
        model: &str,
        version: Option<&str>,
    ) -> Result<ModelDescription, Refusal> {
        let found = self.repository().find(model, version)?;
        let metadata = &*found.entry.metadata;
        Ok(description(metadata, |spec| metadata.shape_of(spec)))
    }

    /// A model's configuration: dimensions without that of a batch.
    ///
    /// # Errors
    ///
    /// There is no such model or version.
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

    /// What became of the requests to a version of a model, to all of its versions, or, where no model is named,
    /// to all models.
    ///
    /// # Errors
    ///
    /// There is no such model or version.
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

    /// All versions of all models, or those that take requests.
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
