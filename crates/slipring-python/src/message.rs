//! A received message.

#![allow(unsafe_code)]

use std::ffi::c_int;

use pyo3::basic::CompareOp;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
use slipring::message::Metadata;

use crate::buffer::export_bytes;
use crate::metadata::to_dict;

/// A received message: bytes, and the metadata that came with them.
///
/// The bytes are a private copy, which nobody changes. `memoryview(message)`, `numpy.frombuffer(message, dtype)` and
/// `struct.unpack(format, message)` read them in place, and `bytes(message)` copies them.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Message {
    body: Vec<u8>,
    metadata: Metadata,
}

impl Message {
    pub fn new((body, metadata): (Vec<u8>, Metadata)) -> Self {
        Self { body, metadata }
    }

    /// Returns the bytes.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

#[pymethods]
impl Message {
    /// The values that the sender gave as `meta`, a dict of its own each time.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, &self.metadata)
    }

    fn __len__(&self) -> usize {
        self.body.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.body)
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let equal = if let Ok(other) = other.cast::<Self>() {
            self.body == other.get().body
        } else if let Ok(other) = other.cast::<PyBytes>() {
            self.body == other.as_bytes()
        } else if let Ok(other) = other.cast::<PyByteArray>() {
            self.body == other.to_vec()
        } else {
            return Ok(py.NotImplemented());
        };
        let answer = match op {
            CompareOp::Eq => equal,
            CompareOp::Ne => !equal,
            _ => return Ok(py.NotImplemented()),
        };
        Ok(answer.into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __repr__(&self) -> String {
        format!("<slipring.Message of {} bytes>", self.body.len())
    }

    /// # Safety
    ///
    /// The interpreter calls it, with a structure to be filled in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the structure is the interpreter's. The bytes do not change and stay where they are.
        unsafe { export_bytes(slf.as_any(), &slf.get().body, view, flags) }
    }
}
