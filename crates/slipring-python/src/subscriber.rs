//! A subscriber: a reader of a topic.

use std::os::fd::AsRawFd;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use slipring::ErrorKind;
use slipring::broadcast::{OwnedSample, Sample as Borrowed, SubscribeOptions};
use slipring::error::TryRecvError;

use crate::deadline::{Deadline, Timeout};
use crate::error::raise;
use crate::event_loop::{asyncio, unwatch};
use crate::handle::Handle;
use crate::sample::Sample;

/// A reader of a topic. `for sample in subscriber` receives until the publisher ends, or for ever if the subscriber
/// reconnects. `with subscriber:` leaves the topic at the end.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Subscriber {
    subscriber: Handle<slipring::broadcast::Subscriber>,
}

impl Subscriber {
    /// Returns a subscriber.
    pub fn new(subscriber: slipring::broadcast::Subscriber) -> Self {
        Self { subscriber: Handle::new(subscriber) }
    }

    fn next(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Option<Sample>> {
        let found = self.subscriber.wait(
            py,
            || Deadline::after(timeout),
            |_| Ok(None),
            |subscriber, until| {
                let owned = subscriber.recv_deadline(until)?.map(Borrowed::into_owned).transpose();
                subscriber.release();
                owned
            },
        )?;
        found.map(|sample| Sample::new(py, sample)).transpose()
    }
}

#[pymethods]
impl Subscriber {
    /// Receives the next message. Waits for it, at most for `timeout` seconds if there is one.
    ///
    /// Raises `TimedOut`; `PeerClosed` and `PeerDied` after the publisher's end, unless the subscriber reconnects; `Evicted`;
    /// `HoldLimit` if it holds as many messages as it may; `ProtocolFault`; `Closed`; `Forked`.
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Sample> {
        self.next(py, timeout)?.ok_or_else(|| raise(ErrorKind::PeerClosed.into()))
    }

    /// Receives the next message if it is here. Returns `None` if it is not.
    ///
    /// Raises as `recv`, but for `TimedOut`.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Sample>> {
        let mut subscriber = self.subscriber.lock(py)?;
        let subscriber = &mut *subscriber;
        // Without a publisher it looks for one, which takes a handshake.
        let found: Result<Option<OwnedSample>, TryRecvError> = py.detach(|| {
            let owned = subscriber.try_recv()?.map(Borrowed::into_owned).transpose();
            subscriber.release();
            Ok(owned?)
        });
        match found {
            Ok(Some(sample)) => Sample::new(py, sample).map(Some),
            Ok(None) => Err(raise(ErrorKind::PeerClosed.into())),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Failed(error)) => Err(raise(error)),
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Sample>> {
        self.next(py, None)
    }

    /// Waits for a message in an event loop of asyncio, as `recv` does.
    fn arecv(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        asyncio(slf.py(), "sample", (&slf,))
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        asyncio(slf.py(), "following_sample", (&slf,))
    }

    /// Whether this side has left the topic.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.subscriber.lock_slot(py)?.is_none())
    }

    /// How many messages were received, and how many were missed.
    #[getter]
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        Ok(self.subscriber.lock(py)?.counts())
    }

    /// How many messages in the publisher's pool this subscriber holds.
    #[getter]
    fn held(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.subscriber.lock(py)?.held())
    }

    /// The descriptor that is readable when `try_recv` has something to do, or `None` while there is no publisher. It changes
    /// with the publisher.
    fn descriptor(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        Ok(self.subscriber.lock(py)?.descriptor().map(|descriptor| descriptor.as_raw_fd()))
    }

    /// Leaves the topic. Tensors that were received stay readable. A second call does nothing.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        if slf.get().subscriber.lock_slot(py)?.is_some() {
            unwatch(slf.as_any())?;
        }
        slf.get().subscriber.close(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(slf: &Bound<'_, Self>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        Self::close(slf)
    }
}

/// Returns the options of a policy: "every", "latest", or a number of messages.
///
/// # Errors
///
/// `ValueError`, `TypeError`: there is no such policy.
pub fn options_of(policy: &Bound<'_, PyAny>) -> PyResult<SubscribeOptions> {
    if let Ok(name) = policy.cast::<PyString>() {
        return match &*name.to_cow()? {
            "every" => Ok(SubscribeOptions::every()),
            "latest" => Ok(SubscribeOptions::latest()),
            other => {
                let text = format!("policy is {other:?}, must be every, latest, or a number");
                Err(PyValueError::new_err(text))
            }
        };
    }
    let count = policy.extract::<u32>();
    let refused = |_| PyTypeError::new_err("policy must be every, latest, or a number of messages");
    Ok(SubscribeOptions::newest(count.map_err(refused)?))
}
