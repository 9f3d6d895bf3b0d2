//! A request of the peer, and its response.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use slipring::message::{Metadata, RequestId};

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::event_loop::asyncio;
use crate::message::Message;
use crate::metadata::{to_dict, type_name};
use crate::tensor::Tensor;
use crate::tensor_set::Tensors;

/// A request of the peer, with bytes or with tensors. `respond()` answers it.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Request {
    id: RequestId,
    connection: Py<Connection>,
    message: Option<Py<Message>>,
    tensors: Option<Py<Tensors>>,
    metadata: Metadata,
    /// Whether the response was sent or is being sent. A second one would end the link at the peer.
    is_answered: AtomicBool,
}

impl Request {
    /// Returns a request with bytes.
    pub fn of_bytes(
        py: Python<'_>,
        connection: Py<Connection>,
        request: slipring::message::Request,
    ) -> PyResult<Self> {
        let slipring::message::Request { id, body, metadata } = request;
        let message = Some(Py::new(py, Message::new((body, metadata.clone())))?);
        Ok(Self {
            id,
            connection,
            message,
            tensors: None,
            metadata,
            is_answered: AtomicBool::new(false),
        })
    }

    /// Returns a request with tensors.
    pub fn of_tensors(
        py: Python<'_>,
        connection: Py<Connection>,
        request: slipring::message::TensorRequest,
    ) -> PyResult<Self> {
        let slipring::message::TensorRequest { id, tensors } = request;
        let metadata = tensors.metadata().clone();
        let tensors = Some(Py::new(py, Tensors::new(py, tensors)?)?);
        Ok(Self {
            id,
            connection,
            message: None,
            tensors,
            metadata,
            is_answered: AtomicBool::new(false),
        })
    }
}

#[pymethods]
impl Request {
    /// The bytes of the request, or `None` if it has tensors.
    #[getter]
    fn message(&self, py: Python<'_>) -> Option<Py<Message>> {
        self.message.as_ref().map(|message| message.clone_ref(py))
    }

    /// The tensors of the request, or `None` if it has bytes.
    #[getter]
    fn tensors(&self, py: Python<'_>) -> Option<Py<Tensors>> {
        self.tensors.as_ref().map(|tensors| tensors.clone_ref(py))
    }

    /// The values that came with the request, a dict of its own each time.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, &self.metadata)
    }

    /// Sends the response: bytes, one tensor of this package, or a `dict` or a list or tuple of tensors.
    ///
    /// The side that asked gets bytes by `call`, and tensors by `call_tensors`. Raises `ValueError` if the request was answered,
    /// and otherwise as `send` and `send_tensors`.
    #[pyo3(signature = (response, *, meta = None))]
    pub fn respond(
        &self,
        response: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        self.respond_until(response, meta, Some(self.connection.get().send_deadline())).map(drop)
    }

    /// Sends the response as `respond` does, if there is room now. Returns whether it was sent. If it was not, tensors of
    /// `empty()` are shared, and can be sent later.
    ///
    /// Raises as `respond`, but for `TimedOut`.
    #[pyo3(signature = (response, *, meta = None))]
    fn try_respond(
        &self,
        response: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        self.respond_until(response, meta, None)
    }

    /// Sends the response, and waits for room in an event loop of asyncio.
    #[pyo3(signature = (response, *, meta = None))]
    fn arespond<'py>(
        slf: Bound<'py, Self>,
        response: &Bound<'py, PyAny>,
        meta: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let connection = slf.get().connection.clone_ref(py);
        asyncio(py, "respond", (connection, slf, response, meta))
    }

    fn __repr__(&self) -> String {
        let what = if self.tensors.is_some() { "tensors" } else { "bytes" };
        format!("<slipring.Request {} with {what}>", self.id)
    }
}

impl Request {
    /// Sends the response, and waits for room until a deadline. `None`: it does not wait. Returns whether it was sent.
    fn respond_until(
        &self,
        response: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        deadline: Option<Deadline>,
    ) -> PyResult<bool> {
        if self.is_answered.swap(true, Ordering::Relaxed) {
            return Err(PyValueError::new_err(format!("request {} was answered", self.id)));
        }
        let sent = self.send(response, meta, deadline);
        if !matches!(sent, Ok(true)) {
            self.is_answered.store(false, Ordering::Relaxed);
        }
        sent
    }

    fn send(
        &self,
        response: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        deadline: Option<Deadline>,
    ) -> PyResult<bool> {
        let py = response.py();
        let (connection, to) = (self.connection.get(), (self.id, deadline));
        if response.is_instance_of::<PyDict>()
            || response.is_instance_of::<PyTuple>()
            || response.is_instance_of::<pyo3::types::PyList>()
        {
            return connection.respond_tensors(py, to, response, meta);
        }
        if response.is_instance_of::<Tensor>() {
            let one = PyTuple::new(py, [response])?;
            return connection.respond_tensors(py, to, &one, meta);
        }
        if response.is_none() {
            let text = format!("a response is bytes or tensors, not {}", type_name(response));
            return Err(PyTypeError::new_err(text));
        }
        connection.respond_bytes(py, to, response, meta)
    }
}
