//! Tensors that came in one message.

use std::collections::HashSet;
use std::sync::OnceLock;

use pyo3::exceptions::{PyIndexError, PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use slipring::TensorSet;
use slipring::message::Metadata;

use crate::deadline::{Deadline, Timeout};
use crate::metadata::{to_dict, type_name};
use crate::opened::open_all;
use crate::tensor::Tensor;

/// Tensors that came in one message, in order, each with a name if the sender gave one.
///
/// `tensors[0]` and `tensors["ids"]` return one of them, and iteration all in order.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Tensors {
    tensors: Vec<(String, Py<Tensor>)>,
    /// The places of the tensors by name, once one was looked up.
    by_name: OnceLock<Box<[usize]>>,
    metadata: Metadata,
}

impl Tensors {
    /// Returns the tensors of a received set.
    pub fn new(py: Python<'_>, set: TensorSet) -> PyResult<Self> {
        let metadata = set.metadata().clone();
        let tensors = set.into_iter().map(|(name, tensor)| {
            Ok::<_, PyErr>((name.into(), Py::new(py, Tensor::ready(tensor))?))
        });
        let tensors = tensors.collect::<Result<_, _>>()?;
        Ok(Self { tensors, by_name: OnceLock::new(), metadata })
    }

    /// Returns the tensor of a set of one.
    pub fn single(&self) -> Option<&Py<Tensor>> {
        match &*self.tensors {
            [(_, tensor)] => Some(tensor),
            _ => None,
        }
    }

    fn named(&self, name: &str) -> Option<&Py<Tensor>> {
        if name.is_empty() {
            return None;
        }
        let name_at = |place: &usize| self.tensors[*place].0.as_str();
        let by_name = self.by_name.get_or_init(|| {
            let mut places: Box<[usize]> = (0..self.tensors.len()).collect();
            places.sort_unstable_by_key(name_at);
            places
        });
        let found = by_name.binary_search_by_key(&name, name_at).ok()?;
        Some(&self.tensors[by_name[found]].1)
    }
}

#[pymethods]
impl Tensors {
    /// The values that came with the tensors, a dict of its own each time.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, &self.metadata)
    }

    /// The names, in order. A tensor without a name has an empty one.
    #[getter]
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensors.iter().map(|(name, _)| name))
    }

    /// Opens the tensors that lie on GPUs for a stream, all at once, and returns the tensors, to be taken by DLPack on that stream.
    /// Tensors that share an allocation are opened with the calls of the driver that one of them takes. What takes one on another
    /// stream opens it by itself.
    ///
    /// `stream` is the stream on which they are taken: one of PyTorch, such as `torch.cuda.current_stream()`, of CuPy or another
    /// library with `__cuda_stream__`, or a number as in `__dlpack__`. The object is kept until the returned tensors and what was
    /// made of them are gone, and a stream that is given by its number must live as long. `gpu` is the number of the GPU whose
    /// work reads them, by default the one that each lies on.
    ///
    /// Raises `GpuError`, `PeerDied`; `TensorGone` if one of the tensors is gone; `ValueError` for stream 0, a `__cuda_stream__` of
    /// another version than 0, and a stream where the tensors lie on several GPUs and `gpu` is not given.
    #[pyo3(signature = (*, stream, gpu = None))]
    fn open(&self, stream: &Bound<'_, PyAny>, gpu: Option<u32>) -> PyResult<Self> {
        let py = stream.py();
        let again: Vec<Tensor> =
            self.tensors.iter().map(|(_, tensor)| tensor.get().again(gpu)).collect();
        let opened = open_all(&again, stream)?;
        let names = self.tensors.iter().map(|(name, _)| name.clone());
        let tensors = names.zip(again.into_iter().zip(opened)).map(|(name, (tensor, opened))| {
            Ok::<_, PyErr>((name, Py::new(py, tensor.opened(opened))?))
        });
        let tensors = tensors.collect::<Result<_, _>>()?;
        Ok(Self { tensors, by_name: OnceLock::new(), metadata: self.metadata.clone() })
    }

    /// Checks all tensors as `Tensor.check()` does, within `timeout` seconds together. Those that share an allocation, and that
    /// `open()` has returned, are checked once.
    ///
    /// Raises what `Tensor.check()` does.
    #[pyo3(signature = (*, timeout = None))]
    fn check(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<()> {
        let deadline = Deadline::after(timeout);
        let mut checked = HashSet::new();
        for (_, tensor) in &self.tensors {
            let tensor = tensor.get();
            // Its views go back together, because one word tells of them.
            let opened = tensor.open_view();
            if opened.is_none_or(|opened| checked.insert(opened.together())) {
                tensor.check_until(py, &deadline)?;
            }
        }
        Ok(())
    }

    /// Returns names and tensors, in order.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.tensors.iter().map(|(name, tensor)| (name, tensor.bind(py))))
    }

    fn __len__(&self) -> usize {
        self.tensors.len()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Tensor>> {
        let py = key.py();
        let count = self.tensors.len();
        if let Ok(name) = key.cast::<PyString>() {
            let name = name.to_cow()?;
            let tensor = self.named(&name).map(|tensor| tensor.bind(py).clone());
            return tensor.ok_or_else(|| PyKeyError::new_err(name.into_owned()));
        }
        let index: isize = key.extract().map_err(|_| {
            PyTypeError::new_err(format!("an index is int or str, not {}", type_name(key)))
        })?;
        let at = if index < 0 { index.checked_add_unsigned(count) } else { Some(index) };
        let tensor = at.and_then(|at| self.tensors.get(usize::try_from(at).ok()?));
        tensor
            .map(|(_, tensor)| tensor.bind(py).clone())
            .ok_or_else(|| PyIndexError::new_err(format!("index {index} of {count} tensors")))
    }

    fn __contains__(&self, name: &str) -> bool {
        self.named(name).is_some()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tensors = self.tensors.iter().map(|(_, tensor)| tensor.bind(py));
        Ok(PyTuple::new(py, tensors)?.try_iter()?.into_any())
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.tensors.iter().map(|(name, _)| name.as_str()).collect();
        format!("<slipring.Tensors {names:?}>")
    }
}
