//! A received message of a topic.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use slipring::broadcast::OwnedSample;
use slipring::message::{MessageKind, Metadata};

use crate::error::{exception, raise};
use crate::message::Message;
use crate::metadata::to_dict;
use crate::tensor::Tensor;
use crate::tensor_set::Tensors;

/// A message of a topic: bytes or tensors.
///
/// The subscriber holds the tensors in the publisher's pool until they and all views of them are gone.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Sample {
    /// The number of the message: the first one of a publisher has 1.
    #[pyo3(get)]
    sequence: u64,
    /// How many messages the subscriber has missed between the sample before and this one.
    #[pyo3(get)]
    missed: u64,
    /// Whether this is the first sample of a publisher that came after another one.
    #[pyo3(get)]
    restarted: bool,
    message: Option<Py<Message>>,
    tensors: Option<Py<Tensors>>,
    metadata: Metadata,
}

impl Sample {
    /// Returns a sample with a copy of its bytes, or with its tensors.
    pub fn new(py: Python<'_>, sample: OwnedSample) -> PyResult<Self> {
        let (sequence, missed) = (sample.sequence(), sample.missed());
        let (restarted, metadata) = (sample.restarted(), sample.metadata().clone());
        let (message, tensors) = if sample.kind() == MessageKind::Tensors {
            (None, Some(Py::new(py, Tensors::new(py, sample.into_tensors())?)?))
        } else {
            let body = sample.to_vec().map_err(raise)?;
            (Some(Py::new(py, Message::new((body, metadata.clone())))?), None)
        };
        Ok(Self { sequence, missed, restarted, message, tensors, metadata })
    }
}

#[pymethods]
impl Sample {
    /// The values that came with the message, a dict of its own each time.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, &self.metadata)
    }

    /// The bytes, or `None` if the message has tensors.
    #[getter]
    fn message(&self, py: Python<'_>) -> Option<Py<Message>> {
        self.message.as_ref().map(|message| message.clone_ref(py))
    }

    /// The tensors, or `None` if the message has bytes.
    #[getter]
    fn tensors(&self, py: Python<'_>) -> Option<Py<Tensors>> {
        self.tensors.as_ref().map(|tensors| tensors.clone_ref(py))
    }

    /// The tensor of a message that has one.
    ///
    /// Raises `OtherKind` if the message has bytes or another number of tensors.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> PyResult<Py<Tensor>> {
        let single = self.tensors.as_ref().and_then(|tensors| tensors.get().single());
        single.map(|tensor| tensor.clone_ref(py)).ok_or_else(|| {
            exception(
                "OtherKind",
                "the sample has bytes, or another number of tensors than 1".into(),
            )
        })
    }

    fn __repr__(&self) -> String {
        let what = if self.tensors.is_some() { "tensors" } else { "bytes" };
        format!("<slipring.Sample {} with {what}, {} missed>", self.sequence, self.missed)
    }
}
