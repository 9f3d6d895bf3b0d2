//! A publisher: one writer of a topic, any number of readers.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use slipring::broadcast::{EventKind, Policy, SubscriberState};
use slipring::{Context, ErrorKind};

use crate::arrays::Wanted;
use crate::buffer::to_vec;
use crate::connection::no_room;
use crate::deadline::{Deadline, Timeout};
use crate::dtype;
use crate::error::raise;
use crate::handle::Handle;
use crate::metadata::from_dict;
use crate::outgoing::{Outgoing, OutgoingSet};
use crate::tensor::Tensor;

/// The writer of a topic. Each message is written once, for all subscribers. `with publisher:` ends the topic.
///
/// A send waits for subscribers of "every", and evicts one that makes no room for `stall_after` seconds.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Publisher {
    publisher: Handle<slipring::broadcast::Publisher>,
    context: Context,
    send_timeout: Duration,
    address: Option<String>,
}

impl Publisher {
    /// Returns a publisher of this context.
    pub fn new(
        publisher: slipring::broadcast::Publisher,
        context: Context,
        send_timeout: Duration,
    ) -> Self {
        let address = publisher.address().map(ToString::to_string);
        Self { publisher: Handle::new(publisher), context, send_timeout, address }
    }
}

#[pymethods]
impl Publisher {
    /// Publishes a message: `bytes`, or a copy of any object with the buffer protocol.
    ///
    /// Raises `ResourceLimit`, `TooLarge`, `TimedOut`, `Closed`, `Forked`, and `ValueError` for a `timeout` beside `meta`.
    #[pyo3(signature = (data, *, meta = None, timeout = None))]
    fn send(
        &self,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let py = data.py();
        let metadata = from_dict(meta)?;
        if metadata.is_some() && timeout.is_some() {
            let text = "a message with meta waits for the context's send_timeout: pass meta or timeout, not both";
            return Err(PyValueError::new_err(text));
        }
        let copy;
        let bytes = match data.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => {
                copy = to_vec(data)?;
                &copy
            }
        };
        if let Some(metadata) = metadata {
            let mut publisher = self.publisher.lock(py)?;
            let publisher = &mut *publisher;
            return py.detach(|| publisher.send_with(bytes, &metadata)).map_err(raise);
        }
        self.publisher.wait(
            py,
            || Deadline::after_or(timeout, self.send_timeout),
            |publisher| no_room(publisher.try_send(bytes)),
            |publisher, until| publisher.send_deadline(bytes, until),
        )
    }

    /// Returns memory for a tensor, as `Connection.empty` does. It first takes back what subscribers no longer read.
    ///
    /// Raises `ResourceLimit`, `InvalidTensor`, `Closed`, `Forked`.
    #[pyo3(signature = (shape, dtype = None, *, zeroed = false))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        zeroed: bool,
    ) -> PyResult<Tensor> {
        let shape = crate::shape::parse(shape)?;
        let dtype = dtype.map_or(Ok(slipring::DType::Uint8), dtype::parse)?;
        let wanted = Wanted { dtype, shape, is_zeroed: zeroed, is_frozen: false };
        let mut publisher = self.publisher.lock(py)?;
        let draft = match wanted.try_allocate(&self.context, None) {
            Err(error) if matches!(error.kind(), ErrorKind::PoolExhausted { .. }) => {
                // This makes room for as many bytes, whatever their type.
                let len = shape.byte_len(dtype).map_err(raise)?.unwrap_or(0);
                let publisher = &mut *publisher;
                py.detach(|| publisher.alloc::<u8>([len]).map(drop)).map_err(raise)?;
                wanted.allocate(py, &self.context, None)?
            }
            done => done.map_err(raise)?,
        };
        Ok(Tensor::draft(draft))
    }

    /// Publishes a tensor, taken as `Connection.send_tensor` takes it.
    ///
    /// Raises as `send`, and `ViewsAlive`, `TensorGone`, `TypeError`.
    #[pyo3(signature = (tensor, *, meta = None))]
    fn send_tensor(
        &self,
        tensor: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let py = tensor.py();
        let metadata = from_dict(meta)?.unwrap_or_default();
        let wait = Deadline::after_or(None, self.send_timeout);
        let outgoing = Outgoing::of(tensor, &self.context, &wait)?;
        let mut publisher = self.publisher.lock(py)?;
        let publisher = &mut *publisher;
        let sent = py.detach(|| publisher.send_tensor_with(outgoing.tensor(), &metadata));
        sent.map_err(raise)?;
        outgoing.sent();
        Ok(())
    }

    /// Publishes tensors in one message, taken as `Connection.send_tensors` takes them.
    ///
    /// Raises as `send_tensor`.
    #[pyo3(signature = (tensors, *, meta = None))]
    fn send_tensors(
        &self,
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let py = tensors.py();
        let metadata = from_dict(meta)?;
        let wait = Deadline::after_or(None, self.send_timeout);
        let (outgoing, names) = OutgoingSet::of(tensors, &self.context, &wait)?;
        let mut set = outgoing.to_set(&names)?;
        set.set_metadata(metadata.unwrap_or_default());
        let mut publisher = self.publisher.lock(py)?;
        let publisher = &mut *publisher;
        py.detach(|| publisher.send_tensors(&set)).map_err(raise)?;
        outgoing.sent();
        Ok(())
    }

    /// The address of the topic in its written form.
    #[getter]
    fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// The number of messages that were published.
    #[getter]
    fn sent(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.publisher.lock(py)?.sent())
    }

    /// Returns a dict for each subscriber: its `id`, `pid`, `uid`, `policy`, how many messages it is behind (`lag`) and holds
    /// (`held`), and its `state`: "awake", "asleep", "stopped" or "left".
    fn subscribers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for subscriber in self.publisher.lock(py)?.subscribers() {
            let facts = PyDict::new(py);
            facts.set_item("id", subscriber.id())?;
            facts.set_item("pid", subscriber.pid())?;
            facts.set_item("uid", subscriber.uid())?;
            match subscriber.policy() {
                Policy::Newest(count) => facts.set_item("policy", count)?,
                Policy::Latest => facts.set_item("policy", "latest")?,
                _ => facts.set_item("policy", "every")?,
            }
            facts.set_item("lag", subscriber.lag())?;
            facts.set_item("held", subscriber.held())?;
            let state = match subscriber.state() {
                SubscriberState::Awake => "awake",
                SubscriberState::Asleep => "asleep",
                SubscriberState::Stopped => "stopped",
                _ => "left",
            };
            facts.set_item("state", state)?;
            list.append(facts)?;
        }
        Ok(list)
    }

    /// Ends a subscriber by its `id`, and takes back all memory that it holds. Returns whether there was one.
    fn evict(&self, py: Python<'_>, subscriber: u64) -> PyResult<bool> {
        Ok(self.publisher.lock(py)?.evict(subscriber))
    }

    /// Returns what has happened to subscribers after the last call: tuples of "joined", "left", "died" or "evicted", the
    /// subscriber's `id`, and its pid.
    fn events(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, u64, Option<u32>)>> {
        let events = self.publisher.lock(py)?.take_events();
        let tuples = events.into_iter().map(|event| {
            let kind = match event.kind() {
                EventKind::Joined => "joined",
                EventKind::Left => "left",
                EventKind::Died => "died",
                _ => "evicted",
            };
            (kind, event.subscriber(), event.pid())
        });
        Ok(tuples.collect())
    }

    /// Whether this side has ended the topic.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.publisher.lock_slot(py)?.is_none())
    }

    /// Ends the topic. Subscribers receive what was published before. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.publisher.close(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<slipring.Publisher on {}>", self.address.as_deref().unwrap_or("a socket"))
    }
}
