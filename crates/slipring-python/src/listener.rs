//! A listener: it accepts connections.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use slipring::Context;

use crate::connection::{Connection, Waits};
use crate::context::trusted;
use crate::deadline::{Deadline, Timeout};
use crate::error::raise;
use crate::event_loop::{asyncio, unwatch};
use crate::handle::Handle;

/// An address that other processes connect to. `with listener:` closes it at the end; its connections go on.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Listener {
    listener: Handle<slipring::Listener>,
    context: Context,
    waits: Waits,
    address: Option<String>,
    /// The user vouches for all peers.
    trust: bool,
}

impl Listener {
    /// Returns a listener of this context.
    pub fn new(listener: slipring::Listener, context: Context, waits: Waits, trust: bool) -> Self {
        let address = listener.address().map(ToString::to_string);
        Self { listener: Handle::new(listener), context, waits, address, trust }
    }

    fn connection(&self, connection: slipring::Connection) -> Connection {
        let connection = if self.trust { trusted(connection) } else { connection };
        Connection::new(connection, self.context.clone(), self.waits)
    }
}

#[pymethods]
impl Listener {
    /// Waits for a peer and connects with it, at most for `timeout` seconds if there is one.
    ///
    /// Raises `TimedOut`, `ResourceLimit` if this process lacks what a connection needs, `Closed`.
    #[pyo3(signature = (timeout = None))]
    fn accept(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Connection> {
        let connection = self.listener.wait(
            py,
            || Deadline::after(timeout),
            |_| Ok(None),
            |listener, until: Instant| listener.accept_deadline(until),
        )?;
        Ok(self.connection(connection))
    }

    /// Accepts a peer that is ready. Returns `None` if there is none.
    ///
    /// Raises as `accept`, but for `TimedOut`.
    fn try_accept(&self, py: Python<'_>) -> PyResult<Option<Connection>> {
        let mut listener = self.listener.lock(py)?;
        let listener = &mut *listener;
        let accepted = py.detach(|| listener.try_accept()).map_err(raise)?;
        Ok(accepted.map(|connection| self.connection(connection)))
    }

    /// Waits for a peer in an event loop of asyncio, as `accept` does.
    fn aaccept(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        asyncio(slf.py(), "accept", (&slf,))
    }

    /// The address in its written form, or `None` if the socket was inherited.
    #[getter]
    fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// The descriptor that is readable when a peer may be ready, for an event loop.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.listener.lock(py)?.as_fd().as_raw_fd())
    }

    /// Whether the listener is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.listener.lock_slot(py)?.is_none())
    }

    /// Closes the listener. A second call does nothing.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if slf.get().listener.lock_slot(py)?.is_some() {
            unwatch(slf.as_any())?;
        }
        slf.get().listener.close(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(slf: &Bound<'_, Self>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        Self::close(slf)
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = "a Listener stays in the process that made it: give a child its address, which it connects to";
        Err(PyTypeError::new_err(text))
    }

    fn __repr__(&self) -> String {
        format!("<slipring.Listener on {}>", self.address.as_deref().unwrap_or("a socket"))
    }
}
