//! Requests and responses that carry tensors.

use std::time::Instant;

use crate::channel::{
    AnyResponse, Metadata, Receiver, RequestId, Sender, TENSOR_REQUEST, TENSOR_RESPONSE,
};
use crate::error::{Result, TryRecvError, TrySendError};
use crate::patience::{RecvPatience, SendPatience};
use crate::tensor::exchange::{into_recv_error, into_send_error, open_set};
use crate::tensor::set::TensorSet;
use crate::transport::Connection;

/// A request of the peer that carries tensors. [`Sender::respond_tensors`](crate::Sender::respond_tensors) answers it.
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context, Tensor, TensorSet};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let mut far = far.join().unwrap()?;
/// use slipring::message::TensorRequest;
///
/// let mut inputs = TensorSet::new();
/// inputs.insert("ids", Tensor::from_slice([2], &[7, 8])?)?;
/// let question = near.submit_tensors(&inputs)?;
///
/// let TensorRequest { id, tensors } = far.recv_tensor_request()?.expect("a request");
/// assert_eq!(tensors["ids"].to_vec::<i32>()?, [7, 8]);
/// far.respond_tensors(id, &tensors)?;
/// assert_eq!(near.wait_tensors(question)?["ids"].to_vec::<i32>()?, [7, 8]);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorRequest {
    /// The id that the response must carry.
    pub id: RequestId,
    /// The request's tensors, with the request's [metadata](TensorSet::metadata).
    pub tensors: TensorSet,
}

/// A response of either kind, as [`Connection::try_wait_any`] returns it.
#[derive(Debug)]
pub enum Response {
    /// Bytes, and the values that came with them.
    Bytes(Vec<u8>, Metadata),
    /// Tensors, with the response's [metadata](TensorSet::metadata).
    Tensors(TensorSet),
}

impl TensorRequest {
    fn new((id, tensors): (RequestId, TensorSet)) -> Self {
        Self { id, tensors }
    }
}

impl Sender {
    /// Sends tensors as the response to a request. The request may have had tensors or bytes. The requesting side receives
    /// them by [`call_tensors`](crate::Connection::call_tensors) or [`wait_tensors`](crate::Connection::wait_tensors).
    ///
    /// # Errors
    ///
    /// As [`send_tensors`](Self::send_tensors).
    pub fn respond_tensors(&mut self, request: RequestId, tensors: &TensorSet) -> Result<()> {
        let envelope = TENSOR_RESPONSE.of(request);
        self.put_tensors(envelope, tensors, SendPatience::Default).map_err(into_send_error)
    }

    /// As [`respond_tensors`](Self::respond_tensors), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_respond_tensors(
        &mut self,
        request: RequestId,
        tensors: &TensorSet,
    ) -> Result<(), TrySendError> {
        self.put_tensors(TENSOR_RESPONSE.of(request), tensors, SendPatience::None)
    }

    /// Sends a request with tensors, and does not wait.
    pub(crate) fn try_request_tensors(
        &mut self,
        request: RequestId,
        (tensors, metadata): (&TensorSet, &Metadata),
    ) -> Result<(), TrySendError> {
        self.put_tensors_with(TENSOR_REQUEST.of(request), tensors, metadata, SendPatience::None)
    }
}

impl Receiver {
    /// Receives the next request with tensors. `None`: the peer has closed in order.
    ///
    /// # Errors
    ///
    /// As [`recv_tensors`](Self::recv_tensors).
    pub fn recv_tensor_request(&mut self) -> Result<Option<TensorRequest>> {
        self.tensor_request(RecvPatience::Forever).map_err(into_recv_error)
    }

    /// As [`recv_tensor_request`](Self::recv_tensor_request), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), and as [`recv_tensors`](Self::recv_tensors).
    pub fn recv_tensor_request_deadline(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<TensorRequest>> {
        self.tensor_request(RecvPatience::Until(deadline)).map_err(into_recv_error)
    }

    /// As [`recv_tensor_request`](Self::recv_tensor_request), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    pub fn try_recv_tensor_request(&mut self) -> Result<Option<TensorRequest>, TryRecvError> {
        self.tensor_request(RecvPatience::None)
    }

    fn tensor_request(
        &mut self,
        patience: RecvPatience,
    ) -> Result<Option<TensorRequest>, TryRecvError> {
        Ok(self.open_request(patience, open_set)?.map(TensorRequest::new))
    }

    /// As [`Connection::wait_tensors`], but does not wait.
    pub(crate) fn try_tensor_response(
        &mut self,
        request: RequestId,
    ) -> Result<TensorSet, TryRecvError> {
        self.open_response(request, RecvPatience::None, open_set)
    }
}

impl Connection {
    /// Sends a request with tensors and waits for its response with tensors, as [`call`](Self::call) does. The memory of
    /// the tensors is handed over without a copy, as by [`Sender::send_tensors`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context, Tensor, TensorSet};
    /// # let address = Address::fresh();
    /// # let context = Context::new()?;
    /// # let mut listener = context.listen(&address)?;
    /// use slipring::meta;
    ///
    /// let server = std::thread::spawn(move || -> slipring::Result<()> {
    ///     let mut link = listener.accept()?;
    ///     while let Some(request) = link.recv_tensor_request()? {
    ///         let sum: f32 = request.tensors["values"].to_vec::<f32>()?.iter().sum();
    ///         let mut outputs = TensorSet::new();
    ///         outputs.insert("sum", Tensor::from_slice([], &[sum])?)?;
    ///         link.respond_tensors(request.id, &outputs)?;
    ///     }
    ///     Ok(())
    /// });
    /// # let mut link = context.connect(&address)?;
    /// let mut values = context.alloc::<f32>([1000])?;
    /// values.fill(0.5);
    /// let mut inputs = TensorSet::new();
    /// inputs.insert("values", values.share()?)?;
    /// inputs.set_metadata(meta! { "model" => "sum" }?);
    ///
    /// let outputs = link.call_tensors(&inputs)?;
    /// assert_eq!(outputs["sum"].to_vec::<f32>()?, [500.0]);
    /// # drop(link);
    /// # server.join().unwrap()?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OtherKind`](crate::ErrorKind::OtherKind): the response has bytes instead of tensors, for
    ///   [`wait`](Self::wait). The connection drops it; [`submit_tensors`](Self::submit_tensors) leaves the choice.
    /// - Otherwise as [`call`](Self::call) and [`Sender::send_tensors`].
    pub fn call_tensors(&mut self, tensors: &TensorSet) -> Result<TensorSet> {
        self.call_tensors_deadline(tensors, self.default_deadline())
    }

    /// As [`call_tensors`](Self::call_tensors), but waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`call_tensors`](Self::call_tensors).
    pub fn call_tensors_deadline(
        &mut self,
        tensors: &TensorSet,
        deadline: Instant,
    ) -> Result<TensorSet> {
        let mut span = self.begin_span();
        let carried = span.carry(tensors.metadata());
        let response = self.request_tensors(tensors, carried, deadline).and_then(|request| {
            let response = self.wait_tensors_deadline(request, deadline);
            if response.is_err() {
                self.abandon(request);
            }
            response
        });
        span.end(&response);
        response
    }

    /// Sends a request with tensors without waiting for its response. Several requests may be in flight, with tensors and
    /// without.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit) and [`Sender::send_tensors`].
    pub fn submit_tensors(&mut self, tensors: &TensorSet) -> Result<RequestId> {
        self.submit_tensors_deadline(tensors, self.default_deadline())
    }

    /// As [`submit_tensors`](Self::submit_tensors), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`submit_tensors`](Self::submit_tensors).
    pub fn submit_tensors_deadline(
        &mut self,
        tensors: &TensorSet,
        deadline: Instant,
    ) -> Result<RequestId> {
        let mut span = self.begin_span();
        let carried = span.carry(tensors.metadata());
        let sent = self.request_tensors(tensors, carried, deadline);
        self.keep_span(span, &sent);
        sent
    }

    /// Sends a request with tensors, and with other metadata than the set's if there is some.
    fn request_tensors(
        &mut self,
        tensors: &TensorSet,
        metadata: Option<Metadata>,
        deadline: Instant,
    ) -> Result<RequestId> {
        let id = self.receiver().start_call()?;
        let (envelope, patience) = (TENSOR_REQUEST.of(id), SendPatience::Until(deadline));
        let metadata = metadata.as_ref().unwrap_or(tensors.metadata());
        let sent = self.sender().put_tensors_with(envelope, tensors, metadata, patience);
        if sent.is_err() {
            self.receiver().cancel_call(id);
        }
        sent.map(|()| id).map_err(into_send_error)
    }

    /// Waits for the response with tensors to a request, in any order.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OtherKind`](crate::ErrorKind::OtherKind): the response has bytes instead of tensors. It waits for
    ///   [`wait`](Self::wait).
    /// - Otherwise as [`wait`](Self::wait).
    pub fn wait_tensors(&mut self, request: RequestId) -> Result<TensorSet> {
        self.wait_tensors_deadline(request, self.default_deadline())
    }

    /// As [`wait_tensors`](Self::wait_tensors), until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`wait_tensors`](Self::wait_tensors).
    pub fn wait_tensors_deadline(
        &mut self,
        request: RequestId,
        deadline: Instant,
    ) -> Result<TensorSet> {
        let patience = RecvPatience::Until(deadline);
        self.receiver().open_response(request, patience, open_set).map_err(into_recv_error)
    }

    /// As [`wait_tensors`](Self::wait_tensors), but does not wait.
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: the response has not come. The request stays in flight.
    /// - [`TryRecvError::Failed`]: as [`wait_tensors`](Self::wait_tensors).
    pub fn try_wait_tensors(&mut self, request: RequestId) -> Result<TensorSet, TryRecvError> {
        self.receiver().try_tensor_response(request)
    }

    /// Returns the response to one of several requests, if one has come. Its request is in flight no longer. A caller that
    /// waits for several responses asks until it gets [`TryRecvError::Empty`]: what it then waits for has not come.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut listener = context.listen(&address)?;
    /// # let far = std::thread::spawn(move || listener.accept());
    /// # let mut near = context.connect(&address)?;
    /// # let mut far = far.join().unwrap()?;
    /// use slipring::message::Response;
    ///
    /// let requests = [near.submit(b"first")?, near.submit(b"second")?];
    /// far.respond(requests[1], b"answer")?;
    /// let (id, response) = near.try_wait_any(&requests)?;
    /// assert_eq!(id, requests[1]);
    /// assert!(matches!(response, Response::Bytes(body, _) if body == b"answer"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: no response to one of them has come.
    /// - [`TryRecvError::Failed`]: as [`wait`](Self::wait), but for `UnknownRequest` and `OtherKind`.
    pub fn try_wait_any(
        &mut self,
        requests: &[RequestId],
    ) -> Result<(RequestId, Response), TryRecvError> {
        let (id, response) = self.receiver().any_response(requests, open_set)?;
        Ok(match response {
            AnyResponse::Bytes(body, metadata) => (id, Response::Bytes(body, metadata)),
            AnyResponse::Tensors(tensors) => (id, Response::Tensors(tensors)),
        })
    }

    /// Receives the next request with tensors, as [`Receiver::recv_tensor_request`].
    ///
    /// # Errors
    ///
    /// As [`Receiver::recv_tensor_request`].
    pub fn recv_tensor_request(&mut self) -> Result<Option<TensorRequest>> {
        self.receiver().recv_tensor_request()
    }

    /// Sends tensors as the response to a request, as [`Sender::respond_tensors`].
    ///
    /// # Errors
    ///
    /// As [`Sender::respond_tensors`].
    pub fn respond_tensors(&mut self, request: RequestId, tensors: &TensorSet) -> Result<()> {
        self.sender().respond_tensors(request, tensors)
    }
}
