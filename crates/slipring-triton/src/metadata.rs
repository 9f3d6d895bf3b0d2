//! What a model tells of itself.

use slipring::{DType, Shape};

/// A tensor that a model takes or gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) dims: Vec<Option<usize>>,
}

impl TensorSpec {
    /// Its name, data type, and the lengths of its dimensions, without that of a batch. `None` is any length.
    pub fn new(
        name: impl Into<String>,
        dtype: DType,
        dims: impl IntoIterator<Item = Option<usize>>,
    ) -> Self {
        Self { name: name.into(), dtype, dims: dims.into_iter().collect() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its elements are.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The lengths of its dimensions, without that of a batch.
    pub fn dims(&self) -> &[Option<usize>] {
        &self.dims
    }

    /// Whether these lengths, without that of a batch, are as it says.
    pub(super) fn admits(&self, dims: &[usize]) -> bool {
        let mut pairs = self.dims.iter().zip(dims);
        self.dims.len() == dims.len() && pairs.all(|(is, dim)| is.is_none_or(|is| is == *dim))
    }
}

/// What a model tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelMetadata {
    pub(super) name: String,
    pub(super) versions: Vec<u64>,
    pub(super) platform: String,
    pub(super) max_batch_size: usize,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    pub(super) inline: bool,
}

impl ModelMetadata {
    /// A model of version 1 that takes and gives nothing, and does not batch.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            versions: vec![1],
            platform: "slipring".to_owned(),
            max_batch_size: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
            inline: false,
        }
    }

    /// The versions that it answers to, in rising order; requests that name none get the last.
    pub fn versions(mut self, versions: impl IntoIterator<Item = u64>) -> Self {
        self.versions = versions.into_iter().collect();
        self
    }

    /// What executes it, for clients that ask.
    pub fn platform(mut self, platform: impl Into<String>) -> Self {
        self.platform = platform.into();
        self
    }

    /// The longest batch. 0: it does not batch. Else a first dimension is added to every input and output, and is
    /// the same in all of them.
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

    /// Says that [`Model::infer`] takes a few microseconds and waits for nothing, so that small requests run on the
    /// thread that has read them. Others run on a thread of their own.
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it must have, and has not.
    pub(super) fn lacks(&self) -> Option<&'static str> {
        let named = |specs: &[TensorSpec]| {
            let mut names: Vec<&str> = specs.iter().map(|spec| &*spec.name).collect();
            names.sort_unstable();
            names.first() != Some(&"") && names.windows(2).all(|pair| pair[0] != pair[1])
        };
        match self {
            _ if self.name.is_empty() => Some("a name"),
            _ if self.versions.is_empty() => Some("a version"),
            _ if !named(&self.inputs) => Some("a name of its own for each input"),
            _ if !named(&self.outputs) => Some("a name of its own for each output"),
            _ => None,
        }
    }

    /// The input of this name.
    pub(super) fn input_of(&self, name: &str) -> Option<&TensorSpec> {
        self.inputs.iter().find(|spec| spec.name == name)
    }

    /// The output of this name.
    pub(super) fn output_of(&self, name: &str) -> Option<&TensorSpec> {
        self.outputs.iter().find(|spec| spec.name == name)
    }

    /// A tensor's dimensions as clients see them: that of the batch first, -1 for any length.
    pub(super) fn shape_of(&self, spec: &TensorSpec) -> Vec<i64> {
        let batch = (self.max_batch_size > 0).then_some(-1);
        let dims = spec.dims.iter().map(|dim| dim.map_or(-1, |dim| dim as i64));
        batch.into_iter().chain(dims).collect()
    }

    /// Whether a tensor of this shape, with its batch, is what `spec` says.
    pub(super) fn admits(&self, spec: &TensorSpec, shape: &Shape) -> bool {
        match (self.max_batch_size, shape.dims()) {
            (0, dims) => spec.admits(dims),
            (_, [_, dims @ ..]) => spec.admits(dims),
            (_, []) => false,
        }
    }
}
