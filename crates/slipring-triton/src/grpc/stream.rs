//! `ModelStreamInfer`: a stream of requests and of the responses to them.
//!
//! | model | requests of a stream | responses |
//! |---|---|---|
//! | any other | one at a time, so that a request finds in shared memory what the one before has written | one each, in order |
//! | decoupled | up to [`MAX_RUNNING`] at once, beside one of another model | any number each, in the order of the model |
//!
//! A failed request is answered with its error, and the stream goes on. With `triton_grpc_error: true` in the call's
//! metadata the stream ends with the error's status instead. A stream ends when its requests have ended and are answered.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, SelectAll};
use tonic::{Request, Status, Streaming};

use crate::budget::Charge;
use crate::grpc::answer::Answer;
use crate::grpc::calls::Calls;
use crate::grpc::codec::with_charge;
use crate::grpc::decoupled;
use crate::grpc::generated::inference::{ModelInferRequest, ModelStreamInferResponse};
use crate::idle::Activity;
use crate::shutdown::Shutdown;
use crate::spans::{InferSpan, Parent};

/// The client's choice that an error ends the stream.
const STRICT: &str = "triton_grpc_error";

/// The most requests to decoupled models that run at once in a stream. Further requests wait at the client.
const MAX_RUNNING: usize = 256;

/// The name of the method.
const METHOD: &str = "inference.GRPCInferenceService/ModelStreamInfer";

struct InferStream {
    calls: Calls,
    /// The parent of the spans of all requests.
    parent: Parent,
    requests: Streaming<ModelInferRequest>,
    charge: Charge,
    connection: Option<Activity>,
    /// Whether an error ends the stream.
    is_strict: bool,
    /// The answers of decoupled models. Those to one request end with a `None`.
    running: SelectAll<BoxStream<'static, Option<Answer>>>,
    /// The requests among them that have not ended. `SelectAll` also counts those that have.
    running_count: usize,
    /// The answer of another model.
    ordered: Option<BoxFuture<'static, Answer>>,
    /// No further requests come: the client has ended them, or there is an error behind the last answer.
    end: Option<Result<(), Status>>,
    /// The charge for the last answer, which the connection takes before it asks for the next one.
    sending: Option<Charge>,
}

/// An event of a stream.
enum Event {
    Message(Result<Option<ModelInferRequest>, Status>),
    Answer(Option<Answer>),
    Shutdown,
}

/// Returns the responses to a stream of requests.
pub(super) fn answers(
    calls: Calls,
    request: Request<Streaming<ModelInferRequest>>,
) -> BoxStream<'static, Result<ModelStreamInferResponse, Status>> {
    let is_strict = request.metadata().get(STRICT).is_some_and(|value| value == "true");
    let stream_state = InferStream {
        charge: calls.charge(request.extensions()),
        calls,
        parent: Parent::of(request.metadata().as_ref()),
        connection: request.extensions().get().cloned(),
        requests: request.into_inner(),
        is_strict,
        running: SelectAll::new(),
        running_count: 0,
        ordered: None,
        end: None,
        sending: None,
    };
    stream::unfold(Some(stream_state), |stream_state| async {
        let mut stream_state = stream_state?;
        match stream_state.next().await? {
            Ok(answer) => Some((Ok(answer), Some(stream_state))),
            Err(status) => Some((Err(status), None)),
        }
    })
    .boxed()
}

impl InferStream {
    /// Returns the next response. `None`: the client has ended the stream, and all requests are answered.
    async fn next(&mut self) -> Option<Result<ModelStreamInferResponse, Status>> {
        self.sending = None;
        loop {
            if self.running_count == 0
                && self.ordered.is_none()
                && let Some(end) = self.end.take()
            {
                return end.err().map(Err);
            }
            let mut answer = match self.event().await {
                Event::Message(Ok(Some(message))) => {
                    self.begin(message).await;
                    continue;
                }
                Event::Message(Ok(None)) => {
                    self.end = Some(Ok(()));
                    continue;
                }
                Event::Message(Err(status)) => return Some(Err(status)),
                Event::Shutdown => {
                    self.end = Some(Err(Status::unavailable("the server is shutting down")));
                    continue;
                }
                Event::Answer(Some(answer)) => answer,
                Event::Answer(None) => {
                    self.running_count -= 1;
                    continue;
                }
            };
            self.sending = answer.take_charge();
            return Some(answer.into_message(self.is_strict));
        }
    }

    /// Waits for the next event.
    async fn event(&mut self) -> Event {
        let connection = self.connection.as_ref();
        let takes_requests = self.end.is_none();
        let has_ordered = self.ordered.is_some();
        let has_room = !has_ordered && self.running_count < MAX_RUNNING;
        let mut message = pin!(with_charge(self.charge.clone(), self.requests.message()));
        let message = poll_fn(|context| {
            let polled = message.as_mut().poll(context);
            if let (Poll::Pending, Some(connection)) = (&polled, connection) {
                connection.pause();
            }
            polled
        });
        tokio::select! {
            message = message, if takes_requests && has_room => Event::Message(message),
            answer = answered(&mut self.ordered), if has_ordered => Event::Answer(Some(answer)),
            Some(answer) = self.running.next() => Event::Answer(answer),
            () = shut_down(self.calls.shutdown.as_mut()), if takes_requests => Event::Shutdown,
        }
    }

    /// Starts a request.
    async fn begin(&mut self, message: ModelInferRequest) {
        // An answer that the client does not take holds up this stream, so it must not hold up the beginning of a call.
        if let Some(connection) = &self.connection {
            connection.begin_call().await;
        }
        let (calls, span) = (self.calls.clone(), self.parent.grpc(METHOD));
        // A request to an unknown model is refused below.
        if self.calls.is_decoupled(&message).unwrap_or(false) {
            // The stream's own charge is released by its next message.
            let charge = self.charge.split();
            self.running.push(decoupled::answers((calls, span), message, charge));
            self.running_count += 1;
        } else {
            self.ordered = Some(Box::pin(ordered((calls, span), message, self.charge.clone())));
        }
    }
}

/// Returns the one answer to a request.
async fn ordered(
    (calls, span): (Calls, InferSpan),
    message: ModelInferRequest,
    charge: Charge,
) -> Answer {
    let id = message.id.clone();
    match span.run(calls.infer(message, charge)).await {
        Ok(response) => Answer::response(response, true),
        Err(refusal) => Answer::refusal(id, refusal),
    }
}

/// Completes with the answer, if there is a request.
async fn answered(ordered: &mut Option<BoxFuture<'static, Answer>>) -> Answer {
    let answer = match ordered {
        Some(answer) => answer.await,
        None => std::future::pending().await,
    };
    *ordered = None;
    answer
}

/// Completes at the shutdown.
async fn shut_down(shutdown: Option<&mut Shutdown>) {
    match shutdown {
        Some(shutdown) => {
            // A server that is gone has shut down, too.
            let _ = shutdown.wait_for(|ended| *ended).await;
        }
        None => std::future::pending().await,
    }
}
