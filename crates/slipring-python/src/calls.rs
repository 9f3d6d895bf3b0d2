//! Requests and responses of a connection.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use slipring::error::TryRecvError;
use slipring::message::{MessageKind, RequestId};
use slipring::{Connection as Link, Error, ErrorKind};

use crate::connection::{Connection, no_room};
use crate::deadline::{Deadline, Timeout};
use crate::error::{raise, timed_out};
use crate::message::Message;
use crate::metadata::from_dict;
use crate::outgoing::OutgoingSet;
use crate::request::Request;
use crate::tensor_set::Tensors;

/// The pause between two attempts of a response that has no room. The library has no response with a deadline.
const PAUSE: Duration = Duration::from_millis(1);

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

    /// Receives the next request. `None`: the peer has closed.
    pub fn next_request(
        slf: &Bound<'_, Self>,
        timeout: Option<Timeout>,
    ) -> PyResult<Option<Request>> {
        let py = slf.py();
        let asked = slf.get().wait_for_request(py, timeout)?;
        let connection = slf.clone().unbind();
        asked
            .map(|asked| match asked {
                Asked::Bytes(request) => Request::of_bytes(py, connection, request),
                Asked::Tensors(request) => Request::of_tensors(py, connection, request),
            })
            .transpose()
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
                let asked = match kind {
                    None => return Ok(None),
                    Some(MessageKind::TensorRequest(_)) => {
                        receiver.try_recv_tensor_request().map(|found| found.map(Asked::Tensors))
                    }
                    Some(_) => receiver.try_recv_request().map(|found| found.map(Asked::Bytes)),
                };
                asked.map_err(|error| match error {
                    TryRecvError::Failed(error) => error,
                    // A late response was there. The next slice waits on.
                    TryRecvError::Empty => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
                })
            },
        )
    }

    pub fn respond_bytes(
        &self,
        py: Python<'_>,
        id: RequestId,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let metadata = from_dict(meta)?.unwrap_or_default();
        let body = crate::buffer::to_vec(data)?;
        self.retry(py, |sender| no_room(sender.try_respond_with(id, &body, &metadata)))
    }

    pub fn respond_tensors(
        &self,
        py: Python<'_>,
        id: RequestId,
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let metadata = from_dict(meta)?;
        let deadline = Deadline::after_or(None, self.send_timeout());
        let (outgoing, names) = OutgoingSet::of(tensors, self.source(), &deadline)?;
        let mut set = outgoing.to_set(&names)?;
        set.set_metadata(metadata.unwrap_or_default());
        self.retry(py, |sender| no_room(sender.try_respond_tensors(id, &set)))?;
        outgoing.sent();
        Ok(())
    }

    /// Tries until there is room, for the context's `send_timeout`.
    fn retry(
        &self,
        py: Python<'_>,
        mut attempt: impl FnMut(&mut slipring::Sender) -> PyResult<Option<()>>,
    ) -> PyResult<()> {
        let deadline = Deadline::after_or(None, self.send_timeout());
        while attempt(&mut *self.sender().lock(py)?)?.is_none() {
            if deadline.has_passed() {
                let error = ErrorKind::TimedOut { after: deadline.waited() };
                return Err(raise(error.into()));
            }
            py.detach(|| std::thread::sleep(PAUSE));
            py.check_signals()?;
        }
        Ok(())
    }
}
