//! The description of a model: its name, versions, inputs and outputs.

use slipring::{DType, Shape};

/// The data types of the KServe v2 protocol: all but fp8.
pub const DTYPES: [DType; 14] = [
    DType::Bool,
    DType::Uint8,
    DType::Uint16,
    DType::Uint32,
    DType::Uint64,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::Fp16,
    DType::Fp32,
    DType::Fp64,
    DType::Bytes,
    DType::Bf16,
];

/// An input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<Option<usize>>,
    pub(crate) labels: Vec<String>,
}

impl TensorSpec {
    /// Returns a description of a tensor. `dims` excludes the batch; `None` is any length.
    pub fn new(
        name: impl Into<String>,
        dtype: DType,
        dims: impl IntoIterator<Item = Option<usize>>,
    ) -> Self {
        Self { name: name.into(), dtype, dims: dims.into_iter().collect(), labels: Vec::new() }
    }

    /// Sets the labels of an output's elements, by their index in one batch item. A client that asks for a
    /// classification receives them. An element without a label, or with an empty one, has none in its text.
    pub fn labels<T: Into<String>>(mut self, labels: impl IntoIterator<Item = T>) -> Self {
        self.labels = labels.into_iter().map(Into::into).collect();
        self
    }

    /// Returns the tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns its dimensions without the batch.
    pub fn dims(&self) -> &[Option<usize>] {
        &self.dims
    }

    /// Returns whether these dimensions, without the batch, match.
    pub(crate) fn admits(&self, dims: &[usize]) -> bool {
        let mut pairs = self.dims.iter().zip(dims);
        self.dims.len() == dims.len() && pairs.all(|(is, dim)| is.is_none_or(|is| is == *dim))
    }
}

/// The description of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelMetadata {
    pub(crate) name: String,
    pub(crate) versions: Vec<u64>,
    pub(crate) platform: String,
    pub(crate) max_batch_size: usize,
    pub(crate) inputs: Vec<TensorSpec>,
    pub(crate) outputs: Vec<TensorSpec>,
    pub(crate) inline: bool,
    /// `None` is the default of the model's kind.
    pub(crate) instances: Option<usize>,
    pub(crate) max_queue_size: usize,
}

impl ModelMetadata {
    /// Returns a description of version 1 of a model without inputs, outputs and batches.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            versions: vec![1],
            platform: "slipring".to_owned(),
            max_batch_size: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
            inline: false,
            instances: None,
            max_queue_size: 16_384,
        }
    }

    /// Sets the versions, in rising order. A request that names no version gets the last one.
    pub fn versions(mut self, versions: impl IntoIterator<Item = u64>) -> Self {
        self.versions = versions.into_iter().collect();
        self
    }

    /// Sets the platform that clients see.
    pub fn platform(mut self, platform: impl Into<String>) -> Self {
        self.platform = platform.into();
        self
    }

    /// Sets the largest batch; 0 means no batches. A batching model has a first dimension more in every input and
    /// output, of the same length in all of them.
    pub fn max_batch_size(mut self, most: usize) -> Self {
        self.max_batch_size = most;
        self
    }

    /// Adds an input.
    pub fn input(mut self, spec: TensorSpec) -> Self {
        self.inputs.push(spec);
        self
    }

    /// Adds an output.
    pub fn output(mut self, spec: TensorSpec) -> Self {
        self.outputs.push(spec);
        self
    }

    /// Declares that [`Model::infer`](crate::Model::infer) takes a few microseconds and never waits. Small requests
    /// then run on the thread that has read them; others run on a blocking thread.
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// Sets how many requests the model executes at once, at least 1: calls of [`Model::infer`](crate::Model::infer) on
    /// blocking threads, futures of an [`AsyncModel`](crate::AsyncModel), or requests to a
    /// [`DecoupledModel`](crate::DecoupledModel) that are in progress. Small requests to an [`inline`](Self::inline) `Model` do
    /// not count. The default is 32, and 1,024 for an `AsyncModel`, whose calls occupy no thread while they wait.
    pub fn instances(mut self, instances: usize) -> Self {
        self.instances = Some(instances.max(1));
        self
    }

    /// Sets how many requests may wait for an instance, or a [thread](crate::Limits::model_threads), in the order of their
    /// arrival. The default is 16,384. The front
    /// refuses a further one with status 503.
    pub fn max_queue_size(mut self, requests: usize) -> Self {
        self.max_queue_size = requests;
        self
    }

    /// Returns the model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the property that the description missing_property.
    pub(crate) fn missing_property(&self) -> Option<&'static str> {
        let named = |specs: &[TensorSpec]| {
            let mut names: Vec<&str> = specs.iter().map(|spec| &*spec.name).collect();
            names.sort_unstable();
            names.first() != Some(&"") && names.windows(2).all(|pair| pair[0] != pair[1])
        };
        let is_foreign = |spec: &TensorSpec| !DTYPES.contains(&spec.dtype);
        match self {
            _ if self.name.is_empty() => Some("a name"),
            _ if self.versions.is_empty() => Some("a version"),
            _ if !named(&self.inputs) => Some("a name of its own for each input"),
            _ if !named(&self.outputs) => Some("a name of its own for each output"),
            _ if self.inputs.iter().chain(&self.outputs).any(is_foreign) => {
                Some("data types of the KServe v2 protocol, which has no fp8")
            }
            _ => None,
        }
    }

    /// Returns the input of this name.
    pub(crate) fn input_of(&self, name: &str) -> Option<&TensorSpec> {
        self.inputs.iter().find(|spec| spec.name == name)
    }

    /// Returns the output of this name.
    pub(crate) fn output_of(&self, name: &str) -> Option<&TensorSpec> {
        self.outputs.iter().find(|spec| spec.name == name)
    }

    /// Returns a tensor's dimensions as clients see them: the batch first, -1 for any length.
    pub(crate) fn shape_of(&self, spec: &TensorSpec) -> Vec<i64> {
        let batch = (self.max_batch_size > 0).then_some(-1);
        let dims = spec.dims.iter().map(|dim| dim.map_or(-1, |dim| dim as i64));
        batch.into_iter().chain(dims).collect()
    }

    /// Returns whether a tensor of this shape, including the batch, matches `spec`.
    pub(crate) fn admits(&self, spec: &TensorSpec, shape: &Shape) -> bool {
        match (self.max_batch_size, shape.dims()) {
            (0, dims) => spec.admits(dims),
            (_, [_, dims @ ..]) => spec.admits(dims),
            (_, []) => false,
        }
    }
}
