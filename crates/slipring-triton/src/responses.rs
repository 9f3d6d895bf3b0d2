//! The responses of a decoupled model, on their way from the model to the protocol.
//!
//! ```text
//!   model ─ Responses ─▶ queue of QUEUE_LEN ─▶ ResponseStream ─▶ gRPC stream
//!               └────────── CallEnd: the result, once ─────────────▲
//! ```
//!
//! 1. The sender waits while the queue is full. Each response in it holds a charge of its own.
//! 2. The call ends when the model has returned and has dropped its [`Responses`]. The last of both drops [`CallEnd`], which
//!    counts the request and reports the result.
//! 3. The receiver is dropped when the client goes. The sender then fails.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use slipring::region::Lease;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::blocking::{AbortOnDrop, MAX_INLINE, run_blocking_if};
use crate::budget::Charge;
use crate::inputs::RegionFailure;
use crate::model_error::ModelError;
use crate::outputs::Outputs;
use crate::refusal::Refusal;
use crate::request::{InferResponse, ResponseOutput};

/// The responses of one request that wait for its client.
const QUEUE_LEN: usize = 16;

/// A response in the queue.
struct QueuedResponse {
    outputs: Vec<ResponseOutput>,
    is_last: bool,
    charge: Charge,
}

/// Sends the responses to one request of a [`DecoupledModel`](crate::DecoupledModel).
///
/// The client receives them in the order in which they are sent. The value may move to any thread or task. The request
/// ends when it is dropped.
pub struct Responses {
    /// The outputs that the client asks for, unwritten.
    template: Outputs,
    queue: mpsc::Sender<QueuedResponse>,
    // It goes after the queue, so that the receiver finds the result behind the last response.
    end: Arc<CallEnd>,
}

impl Responses {
    /// Returns the unwritten outputs of a further response.
    ///
    /// An output that the model does not obtain is not part of the response. Outputs in a client's region are written to
    /// the same window in each response, so a client that has not read one may find the next.
    pub fn outputs(&self) -> Outputs {
        self.template.another(self.template.charge.another())
    }

    /// Returns whether the client asks for the output. A model may skip the others.
    pub fn is_requested(&self, name: &str) -> bool {
        self.template.is_requested(name)
    }

    /// Returns whether nobody waits for a response any more: the client has cancelled its stream, or it has gone.
    pub fn is_cancelled(&self) -> bool {
        self.queue.is_closed()
    }

    /// Completes when nobody waits for a response any more.
    pub async fn cancelled(&self) {
        self.queue.closed().await;
    }

    /// Sends a response. It waits while 16 others wait for the client.
    ///
    /// # Errors
    ///
    /// The client has gone, it has truncated its region, or the response is too long.
    pub async fn send(&self, outputs: Outputs) -> Result<(), ModelError> {
        self.queue(outputs, false).await
    }

    /// Sends a response, as [`send`](Self::send). The calling thread waits while 16 others wait for the client.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send).
    ///
    /// # Panics
    ///
    /// The calling thread runs the tasks of a runtime.
    pub fn blocking_send(&self, outputs: Outputs) -> Result<(), ModelError> {
        let response = self.end.finish(outputs, false)?;
        self.queue.blocking_send(response).map_err(|_| gone())
    }

    /// Sends the last response, which is marked as such. The client receives it once the model's method has returned.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send).
    pub async fn send_last(self, outputs: Outputs) -> Result<(), ModelError> {
        self.queue(outputs, true).await
    }

    /// Sends the last response, as [`send_last`](Self::send_last). The calling thread waits.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send).
    ///
    /// # Panics
    ///
    /// The calling thread runs the tasks of a runtime.
    pub fn blocking_send_last(self, outputs: Outputs) -> Result<(), ModelError> {
        let response = self.end.finish(outputs, true)?;
        self.queue.blocking_send(response).map_err(|_| gone())
    }

    /// Ends the request with an error, which the client receives after the responses.
    pub fn fail(self, error: ModelError) {
        self.end.fail(error.into());
    }

    async fn queue(&self, outputs: Outputs, is_last: bool) -> Result<(), ModelError> {
        let end = self.end.clone();
        let is_long = outputs.unfinished() > MAX_INLINE;
        let response = run_blocking_if(is_long, move || end.finish(outputs, is_last)).await?;
        self.queue.send(response).await.map_err(|_| gone())
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end.fail(Refusal::model_panicked(&self.template.metadata.name));
        }
    }
}

impl fmt::Debug for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

fn gone() -> ModelError {
    ModelError::unavailable("nobody waits for the response: the client has gone")
}

/// Counts a request: the moments at which it has started, its inputs were ready and it has ended, or `None` for a failure.
pub(crate) type Count = Box<dyn FnOnce(Option<(Instant, Instant, Instant)>) + Send>;

/// The end of a call. The last holder reports the result and counts the request.
pub(crate) struct CallEnd {
    state: Mutex<EndState>,
    /// The regions of the request, if the model works in place.
    leases: Vec<Lease>,
    failure: Arc<RegionFailure>,
    _instance: OwnedSemaphorePermit,
}

struct EndState {
    /// The moments at which the execution has started and its inputs were ready.
    times: Option<(Instant, Instant)>,
    /// `None` until the model has returned.
    result: Option<Result<(), Refusal>>,
    count: Option<Count>,
    report: Option<oneshot::Sender<Result<(), Refusal>>>,
}

impl CallEnd {
    fn state(&self) -> MutexGuard<'_, EndState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when the execution has started and when its inputs were ready.
    pub(crate) fn started(&self, started: Instant, ready: Instant) {
        self.state().times = Some((started, ready));
    }

    /// Notes that the model has returned without an error.
    pub(crate) fn returned(&self) {
        self.state().result.get_or_insert(Ok(()));
    }

    /// Notes an error. The first one counts.
    pub(crate) fn fail(&self, refusal: Refusal) {
        let result = &mut self.state().result;
        if !matches!(result, Some(Err(_))) {
            *result = Some(Err(refusal));
        }
    }

    /// Returns the response of these outputs.
    fn finish(&self, mut outputs: Outputs, is_last: bool) -> Result<QueuedResponse, Refusal> {
        self.check_regions()?;
        outputs.leave_out_missing();
        let charge = outputs.charge.clone();
        let outputs = outputs.finish()?;
        let len: usize =
            outputs.iter().filter_map(|output| output.data.as_ref()).map(Bytes::len).sum();
        // The protocol encodes the response, which the model can still be told to be too much.
        charge.add(len as u64)?;
        Ok(QueuedResponse { outputs, is_last, charge })
    }

    /// Returns the failure of the client's memory, if there is one.
    fn check_regions(&self) -> Result<(), Refusal> {
        if self.failure.get().is_none() {
            self.failure.check_whole(|| self.leases.iter());
        }
        self.failure.get().cloned().map_or(Ok(()), Err)
    }
}

impl Drop for CallEnd {
    fn drop(&mut self) {
        let memory = self.check_regions();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let result = state.result.take().unwrap_or_else(|| Err(Refusal::stopped()));
        let result = memory.and(result);
        if let Some(count) = state.count.take() {
            let times = state.times.map(|(started, ready)| (started, ready, Instant::now()));
            count(times.filter(|_| result.is_ok()));
        }
        if let Some(report) = state.report.take() {
            let _ = report.send(result);
        }
    }
}

/// A response on its way to the client.
pub(crate) struct StreamedResponse {
    pub(crate) response: InferResponse,
    pub(crate) is_last: bool,
    /// The charge for its bytes.
    pub(crate) charge: Charge,
}

/// The responses to one request, for the protocol. The model finds out when it is dropped.
pub(crate) struct ResponseStream {
    /// The fields that all responses have in common.
    model: String,
    version: String,
    id: Option<String>,
    queue: mpsc::Receiver<QueuedResponse>,
    ended: oneshot::Receiver<Result<(), Refusal>>,
    is_over: bool,
    /// The error behind a response that was sent as the last one.
    failed: Option<Refusal>,
    running: Option<AbortOnDrop<()>>,
}

impl ResponseStream {
    /// Keeps the model's thread, so that a call that has not started never starts for nobody.
    pub(crate) fn keep(&mut self, running: AbortOnDrop<()>) {
        self.running = Some(running);
    }

    /// Waits for the next response. The error comes after the responses; `None` is the end without one.
    pub(crate) async fn next(&mut self) -> Option<Result<StreamedResponse, Refusal>> {
        if self.is_over {
            return self.failed.take().map(Err);
        }
        let last = match self.queue.recv().await {
            Some(queued) if !queued.is_last => return Some(Ok(self.response(queued, false))),
            last => last,
        };
        self.is_over = true;
        let result = (&mut self.ended).await.unwrap_or_else(|_| Err(Refusal::stopped()));
        match (last, result) {
            (Some(queued), result) => {
                self.failed = result.err();
                Some(Ok(self.response(queued, self.failed.is_none())))
            }
            (None, Err(refusal)) => Some(Err(refusal)),
            (None, Ok(())) => None,
        }
    }

    fn response(&self, queued: QueuedResponse, is_last: bool) -> StreamedResponse {
        let QueuedResponse { outputs, charge, .. } = queued;
        let (model, version, id) = (self.model.clone(), self.version.clone(), self.id.clone());
        StreamedResponse {
            response: InferResponse { model, version, id, outputs },
            is_last,
            charge,
        }
    }
}

/// What a call needs besides its inputs.
pub(crate) struct CallParts {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) id: Option<String>,
    pub(crate) template: Outputs,
    pub(crate) leases: Vec<Lease>,
    pub(crate) count: Count,
    pub(crate) instance: OwnedSemaphorePermit,
}

/// Returns both ends of a call, and its end.
pub(crate) fn call(parts: CallParts) -> (Responses, Arc<CallEnd>, ResponseStream) {
    let CallParts { model, version, id, template, leases, count, instance } = parts;
    let (queue, queued) = mpsc::channel(QUEUE_LEN);
    let (report, ended) = oneshot::channel();
    let (count, report) = (Some(count), Some(report));
    let state = Mutex::new(EndState { times: None, result: None, count, report });
    let failure = template.failure.clone();
    let end = Arc::new(CallEnd { state, leases, failure, _instance: instance });
    let responses = Responses { template, queue, end: end.clone() };
    let (is_over, failed, running) = (false, None, None);
    let stream =
        ResponseStream { model, version, id, queue: queued, ended, is_over, failed, running };
    (responses, end, stream)
}
