//! A connection to another process.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use slipring::error::TrySendError;
use slipring::message::Metadata;
use slipring::{Context, ErrorKind, Sender, TensorSet};

use crate::arrays::{Source, Wanted};
use crate::buffer::{LONG, to_vec};
use crate::calls::{Pending, Responses};
use crate::deadline::{Deadline, Timeout};
use crate::dtype;
use crate::error::{is_timeout, raise};
use crate::event_loop::{asyncio, unwatch};
use crate::gpu;
use crate::handle::Handle;
use crate::inbox::{Count, Found, Inbox, Next, has_tensors};
use crate::message::Message;
use crate::metadata::from_dict;
use crate::outgoing::{Outgoing, OutgoingSet};
use crate::peer::Peer;
use crate::request::Request;
use crate::stats::to_dict;
use crate::tensor::Tensor;
use crate::tensor_set::Tensors;

/// A link to another process: messages with boundaries and tensors, in order, both ways.
///
/// One thread may send while another receives. `for message in link` receives messages until the peer closes, and
/// `for tensor in link.tensors()` tensors. `with link:` closes it at the end.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Connection {
    sender: Handle<Sender>,
    receiver: Handle<Inbox>,
    context: Context,
    /// How long a send waits for room by default.
    send_timeout: Duration,
    /// Whether a wait polls before it sleeps.
    polls: bool,
    peer: Peer,
    descriptor: OnceLock<i32>,
}

/// How the connections of a context wait.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// How long a send waits for room by default.
    pub send_timeout: Duration,
    /// Whether a wait polls before it sleeps.
    pub polls: bool,
}

/// The attempts of a receive before it lets other threads run: about a microsecond. An awake peer answers in that time, and
/// to let others run takes a tenth of it.
const POLLS: u32 = 50;

/// The longest poll of an event loop, whose other tasks wait meanwhile.
const LONGEST_POLL: Duration = Duration::from_millis(1);

/// Returns `None` if there was no room.
pub fn no_room(answer: Result<(), TrySendError>) -> PyResult<Option<()>> {
    match answer {
        Ok(()) => Ok(Some(())),
        Err(TrySendError::Full { .. }) => Ok(None),
        Err(TrySendError::Failed(error)) => Err(raise(error)),
    }
}

fn closed<T>(found: Found<T>) -> PyResult<T> {
    found.ok_or_else(|| raise(ErrorKind::PeerClosed.into()))
}

impl Connection {
    /// Returns a connection of this context.
    pub fn new(connection: slipring::Connection, context: Context, waits: Waits) -> Self {
        let Waits { send_timeout, polls } = waits;
        let peer = Peer::of(connection.peer());
        let (sender, receiver) = connection.split();
        Self {
            sender: Handle::new(sender),
            receiver: Handle::new(Inbox::new(receiver, None)),
            context,
            send_timeout,
            polls,
            peer,
            descriptor: OnceLock::new(),
        }
    }

    /// Returns where the copies of what is sent lie.
    pub fn source(&self) -> Source<'_> {
        Source::of(&self.context)
    }

    /// Returns how long a send waits for room by default.
    pub fn send_timeout(&self) -> Duration {
        self.send_timeout
    }

    /// Returns the sending half.
    pub fn sender(&self) -> &Handle<Sender> {
        &self.sender
    }

    /// Returns the receiving half.
    pub fn receiver(&self) -> &Handle<Inbox> {
        &self.receiver
    }

    /// Calls `act` with both halves joined. No other thread uses one of them meanwhile.
    pub fn joined<R>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut slipring::Connection) -> PyResult<R>,
    ) -> PyResult<R> {
        let mut receiver = self.receiver.lock_slot(py)?;
        let mut sender = self.sender.lock_slot(py)?;
        let (mut connection, left) = join(&mut sender, &mut receiver)?;
        let done = act(&mut connection);
        let (sending, receiving) = connection.split();
        *sender = Some(sending);
        *receiver = Some(Inbox::new(receiving, left));
        done
    }

    /// Calls `attempt` until it finds something, for about a microsecond.
    #[inline]
    fn poll<T>(&self, mut attempt: impl FnMut() -> PyResult<Option<T>>) -> PyResult<Option<T>> {
        // Attempts of a side that sleeps on its descriptor make system calls.
        let polls = if self.polls && self.descriptor.get().is_none() { POLLS } else { 0 };
        for _ in 0..polls {
            if let Some(found) = attempt()? {
                return Ok(Some(found));
            }
        }
        attempt()
    }

    fn recv_message(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Found<Message>> {
        self.receiver.wait(
            py,
            || Deadline::after(timeout),
            |inbox| {
                self.poll(|| match inbox.try_message()? {
                    Next::Here(found) => Ok(Some(found)),
                    Next::Long | Next::Nothing => Ok(None),
                })
            },
            |inbox, until| {
                let received = inbox.receiver()?.recv_with_deadline(until)?;
                Ok(received.map(Message::new))
            },
        )
    }

    fn recv_set(
        &self,
        py: Python<'_>,
        count: Count,
        timeout: Option<Timeout>,
    ) -> PyResult<Found<TensorSet>> {
        self.receiver.wait(
            py,
            || Deadline::after(timeout),
            |inbox| self.poll(|| inbox.try_tensors(count)),
            |inbox, until| inbox.wait_tensors(count, until),
        )
    }

    /// Receives the one tensor of the next message.
    fn recv_one(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Found<Tensor>> {
        self.recv_set(py, Count::One, timeout)?.map(Self::single).transpose()
    }

    /// Returns the tensor of a set of one.
    fn single(mut set: TensorSet) -> PyResult<Tensor> {
        let metadata = set.metadata().clone();
        set.set_metadata(Metadata::new());
        let (_, tensor) = set.into_iter().next().ok_or_else(|| raise(has_tensors()))?;
        Ok(Tensor::ready(tensor).with(metadata))
    }

    fn send_bytes(
        &self,
        py: Python<'_>,
        bytes: &[u8],
        metadata: Option<&Metadata>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        self.sender.wait(
            py,
            || Deadline::after_or(timeout, self.send_timeout),
            |sender| {
                if bytes.len() >= LONG {
                    return Ok(None);
                }
                no_room(match metadata {
                    None => sender.try_send(bytes),
                    Some(metadata) => sender.try_send_with(bytes, metadata),
                })
            },
            |sender, until| match metadata {
                None => sender.send_deadline(bytes, until),
                Some(metadata) => sender.send_with_deadline(bytes, metadata, until),
            },
        )
    }

    fn send_set(&self, py: Python<'_>, set: &TensorSet, deadline: Deadline) -> PyResult<()> {
        self.sender.wait(
            py,
            || deadline,
            |sender| no_room(gpu::sending(py, set, |set| sender.try_send_tensors(set))),
            |sender, until| sender.send_tensors_deadline(set, until),
        )
    }
}

/// Returns the connection of two halves, if both are open, and the set that the receiver has left.
fn join(
    sender: &mut Option<Sender>,
    inbox: &mut Option<Inbox>,
) -> PyResult<(slipring::Connection, Option<TensorSet>)> {
    let closed = || raise(ErrorKind::LinkClosed.into());
    let (Some(sending), Some(inbox)) = (sender.take(), inbox.take()) else {
        return Err(closed());
    };
    let (receiver, left) = inbox.into_parts();
    // They are of one connection, so they fit.
    let connection = slipring::Connection::join(sending, receiver).map_err(|_| closed())?;
    Ok((connection, left))
}

#[pymethods]
impl Connection {
    /// Sends a message: `bytes`, a received message, or a copy of any other object with the buffer protocol.
    ///
    /// Waits for room for `timeout` seconds, or for the context's `send_timeout`. If it raises, nothing was sent.
    ///
    /// Raises `TimedOut`, `PeerClosed`, `PeerDied`, `TooLarge`, `ResourceLimit`, `Closed`.
    #[pyo3(signature = (data, *, meta = None, timeout = None))]
    fn send(
        &self,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let py = data.py();
        let metadata = from_dict(meta)?;
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return self.send_bytes(py, bytes.as_bytes(), metadata.as_ref(), timeout);
        }
        if let Ok(message) = data.cast::<Message>() {
            return self.send_bytes(py, message.get().body(), metadata.as_ref(), timeout);
        }
        // Another thread may write the object, so it is copied first.
        let bytes = to_vec(data)?;
        self.send_bytes(py, &bytes, metadata.as_ref(), timeout)
    }

    /// Sends a message as `send` does, if there is room now. Returns whether it was sent.
    ///
    /// Raises as `send`, but for `TimedOut`.
    #[pyo3(signature = (data, *, meta = None))]
    fn try_send(
        &self,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let metadata = from_dict(meta)?.unwrap_or_default();
        let py = data.py();
        let copy;
        let bytes = if let Ok(bytes) = data.cast::<PyBytes>() {
            bytes.as_bytes()
        } else if let Ok(message) = data.cast::<Message>() {
            message.get().body()
        } else {
            // The object's code may send, so this side holds no lock.
            copy = to_vec(data)?;
            &copy
        };
        let sent = self.sender.lock(py)?.try_send_with(bytes, &metadata);
        Ok(no_room(sent)?.is_some())
    }

    /// Receives the next message. Waits for it, at most for `timeout` seconds if there is one.
    ///
    /// Raises `TimedOut`; `PeerClosed` after the last message of a peer that has closed; `PeerDied`; `OtherKind` if the next
    /// message has tensors or is a request, and stays the next one; `ProtocolFault`; `Closed`.
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Message> {
        closed(self.recv_message(py, timeout)?)
    }

    /// Receives the next message if it is here. Returns `None` if it is not.
    ///
    /// Raises as `recv`, but for `TimedOut`.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let mut inbox = self.receiver.lock(py)?;
        let next = match inbox.try_message()? {
            Next::Nothing => return Ok(None),
            Next::Long => {
                let inbox = &mut *inbox;
                py.detach(|| inbox.try_long())?
            }
            next => next,
        };
        match next {
            Next::Here(found) => closed(found).map(Some),
            _ => Ok(None),
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        self.recv_message(py, None)
    }

    /// Returns memory of the context's pool for a tensor of this shape, to be written and then sent.
    ///
    /// Its first bytes are arbitrary, unless it is `zeroed` or `frozen`. A frozen tensor is sealed against writing when it is
    /// sent or shared, for data that is sent once and read for long. Waits `timeout` seconds for memory that other tensors
    /// hold; without one it does not wait.
    ///
    /// Raises `ResourceLimit`, `TimedOut`, `InvalidTensor`.
    #[pyo3(signature = (shape, dtype = None, *, zeroed = false, frozen = false, timeout = None))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        zeroed: bool,
        frozen: bool,
        timeout: Option<Timeout>,
    ) -> PyResult<Tensor> {
        allocate(py, &self.context, (shape, dtype), (zeroed, frozen), timeout)
    }

    /// Sends a tensor. One of `empty()` goes without a copy, and is gone then; one that was shared goes without a copy and
    /// stays. One that was received, and any other array with the buffer protocol or DLPack, is copied once. One on a GPU goes
    /// without a copy when its elements are written, and is kept until no process uses it: do not write it until then.
    ///
    /// Waits as `send` does. If it raises, nothing was sent, and the tensor can be sent later.
    ///
    /// Raises `ViewsAlive` while an array or another view of a writable tensor is alive, `TensorGone`, `TypeError` for what is no
    /// tensor, `InvalidTensor` for what cannot be sent, `GpuError`, and otherwise as `send`.
    #[pyo3(signature = (tensor, *, meta = None, timeout = None))]
    fn send_tensor(
        &self,
        tensor: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let py = tensor.py();
        let metadata = from_dict(meta)?;
        let deadline = Deadline::after_or(timeout, self.send_timeout);
        let outgoing = Outgoing::of(tensor, self.source(), &deadline)?;
        let sent = if outgoing.tensor().gpu().is_some() {
            None
        } else {
            let mut sender = self.sender.lock(py)?;
            no_room(match &metadata {
                None => sender.try_send_tensor(outgoing.tensor()),
                Some(metadata) => sender.try_send_tensor_with(outgoing.tensor(), metadata),
            })?
        };
        match sent {
            Some(()) => outgoing.sent(),
            None => {
                let outgoing = OutgoingSet::from(outgoing);
                let mut set = outgoing.to_set(&[])?;
                set.set_metadata(metadata.unwrap_or_default());
                self.send_set(py, &set, deadline)?;
                outgoing.sent();
            }
        }
        Ok(())
    }

    /// Sends tensors as `send_tensors` does, if there is room now. Returns whether they were sent. If they were not, those of
    /// `empty()` are shared, and can be sent later.
    ///
    /// Raises as `send_tensors`, but for `TimedOut`.
    #[pyo3(signature = (tensors, *, meta = None))]
    fn try_send_tensors(
        &self,
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let metadata = from_dict(meta)?;
        let py = tensors.py();
        let (outgoing, names) = match OutgoingSet::of(tensors, self.source(), &Deadline::now()) {
            // Other tensors hold the memory for a copy.
            Err(error) if is_timeout(py, &error) => return Ok(false),
            done => done?,
        };
        let mut set = outgoing.to_set(&names)?;
        set.set_metadata(metadata.unwrap_or_default());
        let sent = {
            let sender = &mut *self.sender.lock(py)?;
            gpu::sending(py, &set, |set| sender.try_send_tensors(set))
        };
        let sent = no_room(sent)?;
        if sent.is_some() {
            outgoing.sent();
        }
        Ok(sent.is_some())
    }

    /// Sends tensors in one message: a `dict` of names to tensors, or a sequence of tensors without names. Each is taken as
    /// `send_tensor` takes it.
    ///
    /// Raises as `send_tensor`. If it raises, nothing was sent.
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
        self.send_set(py, &set, deadline)?;
        outgoing.sent();
        Ok(())
    }

    /// Receives the tensor of the next message, with its `meta`. Waits as `recv` does.
    ///
    /// Raises `OtherKind` if the next message is of bytes or has another number of tensors, and stays the next one; otherwise
    /// as `recv`.
    #[pyo3(signature = (timeout = None))]
    fn recv_tensor(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Tensor> {
        closed(self.recv_one(py, timeout)?)
    }

    /// Receives the tensor of the next message if it is here. Returns `None` if it is not.
    ///
    /// Raises as `recv_tensor`, but for `TimedOut`.
    fn try_recv_tensor(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        let found = self.receiver.lock(py)?.try_tensors(Count::One)?;
        found.map(|found| closed(found).and_then(Self::single)).transpose()
    }

    /// Receives the tensors of the next message. Waits as `recv` does.
    ///
    /// Raises as `recv_tensor`.
    #[pyo3(signature = (timeout = None))]
    fn recv_tensors(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Tensors> {
        Tensors::new(py, closed(self.recv_set(py, Count::Any, timeout)?)?)
    }

    /// Receives the tensors of the next message if they are here. Returns `None` if they are not.
    ///
    /// Raises as `recv_tensor`, but for `TimedOut`.
    fn try_recv_tensors(&self, py: Python<'_>) -> PyResult<Option<Tensors>> {
        let found = self.receiver.lock(py)?.try_tensors(Count::Any)?;
        found.map(|found| Tensors::new(py, closed(found)?)).transpose()
    }

    /// Returns an iterator over the tensors that come, until the peer closes.
    fn tensors(slf: Bound<'_, Self>) -> TensorIterator {
        TensorIterator { connection: slf.unbind() }
    }

    /// Sends a request, and returns the response. Waits for it for `timeout` seconds, or for the context's `send_timeout`. Other
    /// messages that come meanwhile stay for `recv` and the others.
    ///
    /// Raises `TimedOut`; `OtherKind` if the response has tensors; `ResourceLimit` if too many other messages have come; and
    /// otherwise as `send` and `recv`.
    #[pyo3(signature = (data, *, meta = None, timeout = None))]
    fn call(
        &self,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<Message> {
        self.call_bytes(data, meta, timeout)
    }

    /// Sends a request with tensors, taken as `send_tensors` takes them, and returns the tensors of the response. Waits as
    /// `call` does.
    ///
    /// Raises as `call` and `send_tensors`.
    #[pyo3(signature = (tensors, *, meta = None, timeout = None))]
    fn call_tensors(
        &self,
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
        timeout: Option<Timeout>,
    ) -> PyResult<Tensors> {
        self.call_set(tensors, meta, timeout)
    }

    /// Receives the next request, with bytes or tensors. Waits as `recv` does.
    ///
    /// Raises `OtherKind` if the next message is no request, and otherwise as `recv`.
    #[pyo3(signature = (timeout = None))]
    fn recv_request(slf: Bound<'_, Self>, timeout: Option<Timeout>) -> PyResult<Request> {
        closed(Self::next_request(&slf, timeout)?)
    }

    /// Answers requests until the peer closes: calls `handler(request)`, and sends what it returns as `Request.respond` does. A
    /// handler that has responded itself returns `None`.
    ///
    /// Raises what the handler raises, and otherwise as `recv_request` and `Request.respond`.
    fn serve(slf: Bound<'_, Self>, handler: &Bound<'_, PyAny>) -> PyResult<()> {
        while let Some(request) = Self::next_request(&slf, None)? {
            let request = Bound::new(slf.py(), request)?;
            let response = handler.call1((&request,))?;
            if !response.is_none() {
                request.get().respond(&response, None)?;
            }
        }
        Ok(())
    }

    /// Receives the next request if it is here. Returns `None` if it is not.
    ///
    /// Raises as `recv_request`, but for `TimedOut`.
    fn try_recv_request(slf: Bound<'_, Self>) -> PyResult<Option<Request>> {
        Self::try_next_request(&slf)?.map(closed).transpose()
    }

    /// Waits for a request in an event loop of asyncio, as `recv_request` does.
    fn arecv_request(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        asyncio(slf.py(), "receive", (slf, "try_recv_request"))
    }

    /// Sends a request, and waits for its response in an event loop of asyncio, as `call` does. Any number of tasks may call at
    /// a time. `asyncio.timeout()` and a cancel end the wait, and the response is dropped when it comes.
    #[pyo3(signature = (data, *, meta = None))]
    fn acall<'py>(
        slf: Bound<'py, Self>,
        data: &Bound<'py, PyAny>,
        meta: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "call", (slf, "_submit", data, meta))
    }

    /// Sends a request with tensors, and waits for the tensors of its response in an event loop of asyncio, as `acall` does.
    #[pyo3(signature = (tensors, *, meta = None))]
    fn acall_tensors<'py>(
        slf: Bound<'py, Self>,
        tensors: &Bound<'py, PyAny>,
        meta: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "call", (slf, "_submit_tensors", tensors, meta))
    }

    /// Answers requests in an event loop of asyncio until the peer closes, as `serve` does: a handler that is `async` runs in a
    /// task of its own, up to `limit` of them at a time.
    #[pyo3(signature = (handler, *, limit = 64))]
    fn aserve<'py>(
        slf: Bound<'py, Self>,
        handler: &Bound<'py, PyAny>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "serve", (slf, handler, limit))
    }

    /// Sends a request, if there is room now. For `slipring._asyncio`, as the next ones.
    #[pyo3(signature = (data, meta = None))]
    fn _submit(
        &self,
        data: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Pending>> {
        self.submit_bytes(data, meta)
    }

    /// Sends a request with tensors, if there is room now.
    #[pyo3(signature = (tensors, meta = None))]
    fn _submit_tensors(
        &self,
        tensors: &Bound<'_, PyAny>,
        meta: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Option<Pending>> {
        self.submit_set(tensors, meta)
    }

    /// Takes the responses to these requests that have come, or the exceptions that there are instead. Returns them, the
    /// exception of all others or `None`, and whether anything was received.
    fn _responses(&self, py: Python<'_>, pending: Vec<Py<Pending>>) -> PyResult<Responses> {
        self.responses(py, pending)
    }

    /// Abandons a request.
    fn _abandon(&self, py: Python<'_>, pending: &Pending) -> PyResult<()> {
        self.abandon(py, pending)
    }

    /// Waits for a message in an event loop of asyncio, as `recv` does.
    fn arecv<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "receive", (slf, "try_recv"))
    }

    /// Waits for a tensor in an event loop of asyncio, as `recv_tensor` does.
    fn arecv_tensor<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "receive", (slf, "try_recv_tensor"))
    }

    /// Waits for tensors in an event loop of asyncio, as `recv_tensors` does.
    fn arecv_tensors<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "receive", (slf, "try_recv_tensors"))
    }

    /// Waits for so many seconds for a message, without a word to the peer, which needs no system call then to send one.
    /// Returns whether one has come. For `slipring._asyncio`.
    fn _poll(&self, py: Python<'_>, timeout: Timeout) -> PyResult<bool> {
        let end = Instant::now() + timeout.duration().min(LONGEST_POLL);
        self.joined(py, |connection| {
            Ok(py.detach(|| {
                loop {
                    if connection.stats().recv_queue > 0 {
                        return true;
                    }
                    if Instant::now() >= end {
                        return false;
                    }
                    std::hint::spin_loop();
                }
            }))
        })
    }

    /// Sends a message, and waits for room in an event loop of asyncio.
    #[pyo3(signature = (data, *, meta = None))]
    fn asend<'py>(
        slf: Bound<'py, Self>,
        data: &Bound<'py, PyAny>,
        meta: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "send", (slf, "try_send", data, meta))
    }

    /// Sends tensors, and waits for room in an event loop of asyncio.
    #[pyo3(signature = (tensors, *, meta = None))]
    fn asend_tensors<'py>(
        slf: Bound<'py, Self>,
        tensors: &Bound<'py, PyAny>,
        meta: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "send", (slf, "try_send_tensors", tensors, meta))
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        asyncio(slf.py(), "following", (slf, "try_recv"))
    }

    /// Returns the counters of this side, and how much is queued, lent and held now.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.joined(py, |connection| to_dict(py, &connection.stats()))
    }

    /// The process on the other side, as the kernel described it when the connection was made.
    #[getter]
    fn peer(&self) -> Peer {
        self.peer.clone()
    }

    /// The descriptor that is readable when a `try_` method has something to do, for an event loop.
    ///
    /// Call the `try_` methods until they return `None` before each wait for it.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        if let Some(descriptor) = self.descriptor.get() {
            // It is another one's if this side has closed it.
            drop(self.sender.lock(py)?);
            return Ok(*descriptor);
        }
        let descriptor = self.joined(py, |connection| Ok(connection.as_fd().as_raw_fd()))?;
        Ok(*self.descriptor.get_or_init(|| descriptor))
    }

    /// Whether this side has closed the connection.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.sender.lock_slot(py)?.is_none())
    }

    /// Closes the connection. The peer receives all that was sent before, even if this process ends right after. Tensors that
    /// were received stay readable.
    ///
    /// Raises `PeerDied` or `ProtocolFault` if the peer may not have received the last messages. A second call does nothing.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        if this.sender.lock_slot(py)?.is_none() {
            return Ok(());
        }
        unwatch(slf.as_any())?;
        let mut receiver = this.receiver.lock_slot(py)?;
        let mut sender = this.sender.lock_slot(py)?;
        if sender.is_none() {
            return Ok(());
        }
        let (connection, left) = join(&mut sender, &mut receiver)?;
        MutexGuard::unlock_fair(sender);
        MutexGuard::unlock_fair(receiver);
        drop(left);
        py.detach(|| connection.close()).map_err(raise)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (exception = None, *_rest))]
    fn __exit__(
        slf: &Bound<'_, Self>,
        exception: Option<&Bound<'_, PyAny>>,
        _rest: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        match (Self::close(slf), exception) {
            // The exception of the block says more.
            (Err(_), Some(_)) => Ok(()),
            (closed, _) => closed,
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        let text = "a Connection stays in the process that opened it: give a child an end of pair(), or an address";
        Err(PyTypeError::new_err(text))
    }

    fn __repr__(&self) -> String {
        format!("<slipring.Connection to {}>", self.peer.text())
    }
}

/// An iterator over the tensors of a connection.
#[pyclass(frozen, module = "slipring")]
pub struct TensorIterator {
    connection: Py<Connection>,
}

#[pymethods]
impl TensorIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Tensor>> {
        self.connection.get().recv_one(py, None)
    }
}

/// Allocates a tensor as Python asks for it.
pub fn allocate(
    py: Python<'_>,
    context: &Context,
    (shape, dtype): (&Bound<'_, PyAny>, Option<&Bound<'_, PyAny>>),
    (is_zeroed, is_frozen): (bool, bool),
    timeout: Option<Timeout>,
) -> PyResult<Tensor> {
    let shape = crate::shape::parse(shape)?;
    let dtype = dtype.map_or(Ok(slipring::DType::Uint8), dtype::parse)?;
    let deadline = timeout.map(|timeout| Deadline::after(Some(timeout)));
    let wanted = Wanted { dtype, shape, is_zeroed, is_frozen };
    Ok(Tensor::draft(wanted.allocate(py, Source::of(context), deadline.as_ref())?))
}
