//! Requests and responses of a connection.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use slipring::error::TryRecvError;
use slipring::message::{MessageKind, RequestId, Response};
use slipring::{Connection as Link, Error, ErrorKind, Receiver};

use crate::connection::{Connection, no_room};
use crate::deadline::{Deadline, Timeout};
use crate::error::{is_timeout, raise, timed_out};
use crate::gpu;
use crate::message::Message;
use crate::metadata::from_dict;
use crate::outgoing::OutgoingSet;
use crate::request::Request;
use crate::tensor_set::Tensors;

/// The pause between two attempts of a response that has no room. The library has no response with a deadline.
const PAUSE: Duration = Duration::from_millis(1);

/// A request that waits for its response in an event loop.
#[pyclass(frozen, module = "slipring")]
pub struct Pending {
    id: RequestId,
    /// Whether the caller wants tensors.
    has_tensors: bool,
}

/// Requests with their responses or with exceptions, the exception for the others if there is one, and whether anything was
/// received.
pub type Responses = (Vec<(Py<Pending>, Py<PyAny>)>, Option<Py<PyAny>>, bool);

/// A request of the peer, of either kind.
enum Asked {
    Bytes(slipring::message::Request),
    Tensors(slipring::message::TensorRequest),
}

impl Connection {
    /// Sends a request by `submit`, and waits for its response by `wait`, both in slices. Abandons the request after an error.
    fn call_with<R: Send>(
        &self,
        py: Python<'_>,
        deadline: Deadline,
        mut submit: impl FnMut(&mut Link, Instant) -> Result<RequestId, Error> + Send,
        mut wait: impl FnMut(&mut Link, RequestId, Instant) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let id = loop {
            let slice = deadline.slice();
            match self.joined(py, |link| Ok(py.detach(|| submit(link, slice))))? {
                Err(error) if error.is_timeout() && deadline.has_passed() => {
                    return Err(timed_out(deadline.waited(), &error));
                }
                Err(error) if error.is_timeout() => py.check_signals()?,
                done => break done.map_err(raise)?,
            }
        };
        loop {
            let slice = deadline.slice();
            let done = self.joined(py, |link| Ok(py.detach(|| wait(link, id, slice))))?;
            let error = match done {
                Err(error) if error.is_timeout() && deadline.has_passed() => {
                    timed_out(deadline.waited(), &error)
                }
                Err(error) if error.is_timeout() => match py.check_signals() {
                    Ok(()) => continue,
                    Err(interrupt) => interrupt,
                },
                done => return done.map_err(raise),
            };
            self.joined(py, |link| {
                link.abandon(id);
                Ok(())
            })?;
            return Err(error);
        }
    }

    pub fn call_bytes(
        &self,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<Message> {
        let metadata = from_dict(meta)?.unwrap_or_default();
        let body = crate::buffer::to_vec(data)?;
        self.call_with(
            data.py(),
            Deadline::after_or(timeout, self.send_timeout()),
            |link, until| link.submit_with_deadline(&body, &metadata, until),
            |link, id, until| link.wait_with_deadline(id, until).map(Message::new),
        )
    }

    pub fn call_set(
        &self,
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<Tensors> {
        let py = tensors.py();
        let metadata = from_dict(meta)?;
        let deadline = Deadline::after_or(timeout, self.send_timeout());
        let (outgoing, names) = OutgoingSet::of(tensors, self.source(), &deadline)?;
        let mut set = outgoing.to_set(&names)?;
        set.set_metadata(metadata.unwrap_or_default());
        let mut outgoing = Some(outgoing);
        let answer = self.call_with(
            py,
            deadline,
            |link, until| {
                let id = link.submit_tensors_deadline(&set, until)?;
                outgoing.take().into_iter().for_each(OutgoingSet::sent);
                Ok(id)
            },
            |link, id, until| link.wait_tensors_deadline(id, until),
        )?;
        Tensors::new(py, answer)
    }

    /// Sends a request. `None`: there is no room.
    pub fn submit_bytes(
        &self,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Pending>> {
        let metadata = from_dict(meta)?.unwrap_or_default();
        let body = crate::buffer::to_vec(data)?;
        self.submit(data.py(), false, |link, now| link.submit_with_deadline(&body, &metadata, now))
    }

    /// Sends a request with tensors. `None`: there is no room.
    pub fn submit_set(
        &self,
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Pending>> {
        let (py, metadata) = (tensors.py(), from_dict(meta)?);
        let (outgoing, names) = match OutgoingSet::of(tensors, self.source(), &Deadline::now()) {
            // Other tensors hold the memory for a copy.
            Err(error) if is_timeout(py, &error) => return Ok(None),
            done => done?,
        };
        let mut set = outgoing.to_set(&names)?;
        set.set_metadata(metadata.unwrap_or_default());
        let sent = self.submit(py, true, |link, now| link.submit_tensors_deadline(&set, now))?;
        if sent.is_some() {
            outgoing.sent();
        }
        Ok(sent)
    }

    fn submit(
        &self,
        py: Python<'_>,
        has_tensors: bool,
        send: impl FnOnce(&mut Link, Instant) -> Result<RequestId, Error> + Send,
    ) -> PyResult<Option<Pending>> {
        match self.joined(py, |link| Ok(py.detach(|| send(link, Instant::now()))))? {
            Ok(id) => Ok(Some(Pending { id, has_tensors })),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(raise(error)),
        }
    }

    /// Takes the responses to these requests that have come.
    pub fn responses(&self, py: Python<'_>, pending: Vec<Py<Pending>>) -> PyResult<Responses> {
        let mut waiting: Vec<RequestId> = pending.iter().map(|pending| pending.get().id).collect();
        let (answers, failure, has_received) = self.joined(py, |link| {
            let count = |link: &mut Link| {
                let stats = link.receiver().stats();
                stats.messages + stats.tensors
            };
            let (mut answers, before) = (Vec::new(), count(link));
            let failure = loop {
                match link.try_wait_any(&waiting) {
                    Ok((id, answer)) => {
                        waiting.retain(|other| *other != id);
                        answers.push((id, answer));
                    }
                    Err(TryRecvError::Empty) => break None,
                    Err(TryRecvError::Failed(error)) => break Some(error),
                }
            };
            Ok((answers, failure, count(link) != before))
        })?;
        let to_object = |pending: &Pending, answer| -> PyResult<Py<PyAny>> {
            match answer {
                Response::Bytes(..) if pending.has_tensors => Ok(other_kind(py, false)),
                Response::Tensors(_) if !pending.has_tensors => Ok(other_kind(py, true)),
                Response::Bytes(body, metadata) => {
                    Ok(Py::new(py, Message::new((body, metadata)))?.into_any())
                }
                Response::Tensors(set) => Ok(Py::new(py, Tensors::new(py, set)?)?.into_any()),
            }
        };
        let mut by_id: HashMap<RequestId, Py<Pending>> =
            pending.into_iter().map(|pending| (pending.get().id, pending)).collect();
        let mut found = Vec::with_capacity(answers.len());
        for (id, answer) in answers {
            if let Some(pending) = by_id.remove(&id) {
                let object = to_object(pending.get(), answer)?;
                found.push((pending, object));
            }
        }
        let failure = failure.map(|error| raise(error).into_value(py).into_any());
        Ok((found, failure, has_received))
    }

    /// Abandons a request.
    pub fn abandon(&self, py: Python<'_>, pending: &Pending) -> PyResult<()> {
        self.joined(py, |link| {
            link.abandon(pending.id);
            Ok(())
        })
    }

    /// Receives the next request. `None`: the peer has closed.
    pub fn next_request(
        slf: &Bound<'_, Self>,
        timeout: Option<Timeout>,
    ) -> PyResult<Option<Request>> {
        let py = slf.py();
        let asked = slf.get().wait_for_request(py, timeout)?;
        asked.map(|asked| asked.of(slf)).transpose()
    }

    /// Receives the next request if it is here. The inner `None`: the peer has closed.
    pub fn try_next_request(slf: &Bound<'_, Self>) -> PyResult<Option<Option<Request>>> {
        let asked = {
            let mut inbox = slf.get().receiver().lock(slf.py())?;
            let receiver = inbox.receiver().map_err(raise)?;
            loop {
                match receiver.try_peek().map(|received| received.map(|received| received.kind())) {
                    Ok(None) => break None,
                    Ok(Some(kind)) => match Asked::take(receiver, kind) {
                        Ok(asked) => break asked,
                        // A late response was there.
                        Err(TryRecvError::Empty) => {}
                        Err(TryRecvError::Failed(error)) => return Err(raise(error)),
                    },
                    Err(TryRecvError::Empty) => return Ok(None),
                    Err(TryRecvError::Failed(error)) => return Err(raise(error)),
                }
            }
        };
        asked.map(|asked| asked.of(slf)).transpose().map(Some)
    }

    fn wait_for_request(
        &self,
        py: Python<'_>,
        timeout: Option<Timeout>,
    ) -> PyResult<Option<Asked>> {
        self.receiver().wait(
            py,
            || Deadline::after(timeout),
            |_| Ok(None),
            |inbox, until| {
                let receiver = inbox.receiver()?;
                let kind = receiver.peek_deadline(until)?.map(|received| received.kind());
                let Some(kind) = kind else { return Ok(None) };
                Asked::take(receiver, kind).map_err(|error| match error {
                    TryRecvError::Failed(error) => error,
                    // A late response was there. The next slice waits on.
                    TryRecvError::Empty => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
                })
            },
        )
    }

    /// Returns the end of a wait of the context's `send_timeout`.
    pub fn send_deadline(&self) -> Deadline {
        Deadline::after_or(None, self.send_timeout())
    }

    /// Sends a response, and waits for room until a deadline, if there is one. Returns whether it was sent.
    pub fn respond_bytes(
        &self,
        py: Python<'_>,
        (id, deadline): (RequestId, Option<Deadline>),
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let metadata = from_dict(meta)?.unwrap_or_default();
        let body = crate::buffer::to_vec(data)?;
        self.retry(py, deadline, |sender| no_room(sender.try_respond_with(id, &body, &metadata)))
    }

    /// Sends a response with tensors as [`respond_bytes`](Self::respond_bytes) does.
    pub fn respond_tensors(
        &self,
        py: Python<'_>,
        (id, deadline): (RequestId, Option<Deadline>),
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let metadata = from_dict(meta)?;
        let until = deadline.unwrap_or_else(Deadline::now);
        let (outgoing, names) = match OutgoingSet::of(tensors, self.source(), &until) {
            // Other tensors hold the memory for a copy.
            Err(error) if deadline.is_none() && is_timeout(py, &error) => return Ok(false),
            done => done?,
        };
        let mut set = outgoing.to_set(&names)?;
        set.set_metadata(metadata.unwrap_or_default());
        let attempt = |sender: &mut slipring::Sender| {
            no_room(gpu::sending(py, &set, |set| sender.try_respond_tensors(id, set)))
        };
        let sent = self.retry(py, deadline, attempt)?;
        if sent {
            outgoing.sent();
        }
        Ok(sent)
    }

    /// Tries until there is room or the deadline passes. Without a deadline it tries once. Returns whether there was room.
    fn retry(
        &self,
        py: Python<'_>,
        deadline: Option<Deadline>,
        mut attempt: impl FnMut(&mut slipring::Sender) -> PyResult<Option<()>>,
    ) -> PyResult<bool> {
        while attempt(&mut *self.sender().lock(py)?)?.is_none() {
            let Some(deadline) = deadline else { return Ok(false) };
            if deadline.has_passed() {
                let error = ErrorKind::TimedOut { after: deadline.waited() };
                return Err(raise(error.into()));
            }
            py.detach(|| std::thread::sleep(PAUSE));
            py.check_signals()?;
        }
        Ok(true)
    }
}

/// Returns the exception of a call whose response is of the other kind.
fn other_kind(py: Python<'_>, has_tensors: bool) -> Py<PyAny> {
    let (next, method) = if has_tensors {
        ("is a response with tensors", "`acall_tensors`")
    } else {
        ("is a response without tensors", "`acall`")
    };
    raise(ErrorKind::OtherKind { next, method }.into()).into_value(py).into_any()
}

impl Asked {
    /// Takes the next request, whose kind the receiver has seen. `None`: the peer has closed.
    fn take(receiver: &mut Receiver, kind: MessageKind) -> Result<Option<Self>, TryRecvError> {
        Ok(match kind {
            MessageKind::TensorRequest(_) => receiver.try_recv_tensor_request()?.map(Self::Tensors),
            MessageKind::Response(_) | MessageKind::TensorResponse(_) => {
                match receiver.try_recv_request() {
                    // The response has gone. The next look finds the kind of the message behind it.
                    Err(TryRecvError::Failed(error))
                        if matches!(error.kind(), ErrorKind::OtherKind { .. }) =>
                    {
                        return Err(TryRecvError::Empty);
                    }
                    taken => taken?.map(Self::Bytes),
                }
            }
            _ => receiver.try_recv_request()?.map(Self::Bytes),
        })
    }

    /// Returns the request of a connection as an object.
    fn of(self, connection: &Bound<'_, Connection>) -> PyResult<Request> {
        let (py, connection) = (connection.py(), connection.clone().unbind());
        match self {
            Self::Bytes(request) => Request::of_bytes(py, connection, request),
            Self::Tensors(request) => Request::of_tensors(py, connection, request),
        }
    }
}
