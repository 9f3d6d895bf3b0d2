//! A publisher: one writer of a topic, any number of readers.

use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use slipring::Context;
use slipring::broadcast::{EventKind, Policy, SubscriberState};

use crate::arrays::{Source, Wanted};
use crate::buffer::to_vec;
use crate::connection::no_room;
use crate::deadline::{Deadline, Timeout};
use crate::dtype;
use crate::handle::Handle;
use crate::metadata::from_dict;
use crate::outgoing::{Outgoing, OutgoingSet};
use crate::tensor::Tensor;

/// The writer of a topic. Each message is written once, for all subscribers. `with publisher:` ends the topic.
///
/// A send waits for subscribers of "every", and evicts one that makes no room for `stall_after` seconds. It gives up after its
/// `timeout`, or after the context's `send_timeout`, and has then published nothing.
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

    fn source(&self) -> Source<'_> {
        Source::of_publisher(&self.context, &self.publisher)
    }
}

#[pymethods]
impl Publisher {
    /// Publishes a message: `bytes`, or a copy of any object with the buffer protocol.
    ///
    /// Raises `ResourceLimit`, `TooLarge`, `TimedOut`, `Closed`, `Forked`.
    #[pyo3(signature = (data, *, meta = None, timeout = None))]
    fn send(
        &self,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let py = data.py();
        let metadata = from_dict(meta)?;
        let copy;
        let bytes = match data.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => {
                copy = to_vec(data)?;
                &copy
            }
        };
        self.publisher.wait(
            py,
            || Deadline::after_or(timeout, self.send_timeout),
            |publisher| match &metadata {
                None => no_room(publisher.try_send(bytes)),
                Some(_) => Ok(None),
            },
            |publisher, until| match &metadata {
                None => publisher.send_deadline(bytes, until),
                Some(metadata) => publisher.send_with_deadline(bytes, metadata, until),
            },
        )
    }

    /// Returns memory for a tensor, as `Connection.empty` does. It takes back what subscribers no longer read, and waits as a
    /// send does for those that still read: for `timeout` seconds if there is one.
    ///
    /// Raises `ResourceLimit`, `TimedOut`, `InvalidTensor`, `Closed`, `Forked`.
    #[pyo3(signature = (shape, dtype = None, *, zeroed = false, timeout = None))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        zeroed: bool,
        timeout: Option<Timeout>,
    ) -> PyResult<Tensor> {
        let shape = crate::shape::parse(shape)?;
        let dtype = dtype.map_or(Ok(slipring::DType::Uint8), dtype::parse)?;
        let wanted = Wanted { dtype, shape, is_zeroed: zeroed, is_frozen: false };
        // A closed publisher allocates nothing.
        drop(self.publisher.lock(py)?);
        let deadline = Deadline::after(timeout);
        Ok(Tensor::draft(wanted.allocate(py, self.source(), Some(&deadline))?))
    }

    /// Publishes a tensor, taken as `Connection.send_tensor` takes it.
    ///
    /// Raises as `send`, and `ViewsAlive`, `TensorGone`, `TypeError`.
    #[pyo3(signature = (tensor, *, meta = None, timeout = None))]
    fn send_tensor(
        &self,
        tensor: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let py = tensor.py();
        let metadata = from_dict(meta)?.unwrap_or_default();
        let deadline = Deadline::after_or(timeout, self.send_timeout);
        let outgoing = Outgoing::of(tensor, self.source(), &deadline)?;
        self.publisher.wait(
            py,
            || deadline,
            |_| Ok(None),
            |publisher, until| {
                publisher.send_tensor_with_deadline(outgoing.tensor(), &metadata, until)
            },
        )?;
        outgoing.sent();
        Ok(())
    }

    /// Publishes tensors in one message, taken as `Connection.send_tensors` takes them.
    ///
    /// Raises as `send_tensor`.
    #[pyo3(signature = (tensors, *, meta = None, timeout = None))]
    fn send_tensors(
        &self,
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let py = tensors.py();
        let metadata = from_dict(meta)?;
        let deadline = Deadline::after_or(timeout, self.send_timeout);
        let (outgoing, names) = OutgoingSet::of(tensors, self.source(), &deadline)?;
        let mut set = outgoing.to_set(&names)?;
        set.set_metadata(metadata.unwrap_or_default());
        self.publisher.wait(
            py,
            || deadline,
            |_| Ok(None),
            |publisher, until| publisher.send_tensors_deadline(&set, until),
        )?;
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

    fn __reduce__(&self) -> PyResult<()> {
        let text = "a Publisher stays in the process that made it: give a child its address, which it subscribes to";
        Err(PyTypeError::new_err(text))
    }

    fn __repr__(&self) -> String {
        format!("<slipring.Publisher on {}>", self.address.as_deref().unwrap_or("a socket"))
    }
}
