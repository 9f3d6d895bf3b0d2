//! `ModelStreamInfer`: a stream of requests, and one response to each in the same order.
//!
//! A failed request is answered with its error, and the stream goes on. With `triton_grpc_error: true` in the call's
//! metadata the stream ends with the error's status instead. The front executes one request of a stream at a time, so
//! that a request finds in shared memory what the request before has written.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tonic::{Request, Status, Streaming};

use crate::budget::Charge;
use crate::grpc::calls::Calls;
use crate::grpc::codec::with_charge;
use crate::grpc::generated::inference::infer_parameter::ParameterChoice;
use crate::grpc::generated::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
};
use crate::idle::Activity;
use crate::shutdown::Shutdown;

/// The client's choice that an error ends the stream.
const STRICT: &str = "triton_grpc_error";

/// Marks each response as the last one to its request.
const FINAL_RESPONSE: &str = "triton_final_response";

struct InferStream {
    calls: Calls,
    requests: Streaming<ModelInferRequest>,
    charge: Charge,
    connection: Option<Activity>,
    /// Whether an error ends the stream.
    is_strict: bool,
}

/// Returns the responses to a stream of requests.
pub(super) fn answers(
    calls: Calls,
    request: Request<Streaming<ModelInferRequest>>,
) -> BoxStream<'static, Result<ModelStreamInferResponse, Status>> {
    let is_strict = request.metadata().get(STRICT).is_some_and(|value| value == "true");
    let charge = calls.charge(request.extensions());
    let connection = request.extensions().get().cloned();
    let requests = request.into_inner();
    let stream_state = InferStream { calls, requests, charge, connection, is_strict };
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
    /// Returns the next response. `None`: the client has ended the stream.
    async fn next(&mut self) -> Option<Result<ModelStreamInferResponse, Status>> {
        let shutdown = shut_down(self.calls.shutdown.as_mut());
        let connection = self.connection.as_ref();
        let mut message = pin!(with_charge(self.charge.clone(), self.requests.message()));
        let message = poll_fn(|context| {
            let polled = message.as_mut().poll(context);
            if let (Poll::Pending, Some(connection)) = (&polled, connection) {
                connection.pause();
            }
            polled
        });
        let message = tokio::select! {
            message = message => message,
            () = shutdown => return Some(Err(Status::unavailable("the server is shutting down"))),
        };
        let message = match message {
            Ok(message) => message?,
            Err(status) => return Some(Err(status)),
        };
        let id = message.id.clone();
        let answer =
            match self.calls.infer(message, self.charge.clone(), self.connection.as_ref()).await {
                Ok(mut response) => {
                    let yes = Some(ParameterChoice::BoolParam(true));
                    let yes = InferParameter { parameter_choice: yes };
                    response.parameters.insert(FINAL_RESPONSE.to_owned(), yes);
                    let infer_response = Some(response);
                    ModelStreamInferResponse { infer_response, ..Default::default() }
                }
                Err(refusal) if self.is_strict => return Some(Err(refusal.into())),
                Err(refusal) => {
                    // The client matches an error to its request by the id.
                    let named = ModelInferResponse { id, ..Default::default() };
                    let error_message = refusal.text().to_owned();
                    ModelStreamInferResponse { error_message, infer_response: Some(named) }
                }
            };
        Some(Ok(answer))
    }
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
