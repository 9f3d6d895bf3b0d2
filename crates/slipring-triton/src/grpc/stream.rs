//! ModelStreamInfer: requests as they come, an answer to each, in their order.
//!
//! A request that fails is answered with its error, and the stream goes on; who sends `triton_grpc_error: true` in
//! the call's metadata has the stream end with the error's status instead. One request is executed at a time, so that
//! a request finds in shared memory what the one before has written.

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
use crate::shutdown::Shutdown;

/// A client's choice that errors are statuses.
const STRICT: &str = "triton_grpc_error";

/// Told of each response: it is the last one to its request.
const FINAL: &str = "triton_final_response";

struct InferStream {
    calls: Calls,
    requests: Streaming<ModelInferRequest>,
    charge: Charge,
    /// Whether an error ends it.
    is_strict: bool,
}

/// The answers to a stream of requests.
pub(super) fn answers(
    calls: Calls,
    request: Request<Streaming<ModelInferRequest>>,
) -> BoxStream<'static, Result<ModelStreamInferResponse, Status>> {
    let is_strict = request.metadata().get(STRICT).is_some_and(|value| value == "true");
    let charge = calls.charge(request.extensions());
    let requests = request.into_inner();
    let stream_state = InferStream { calls, requests, charge, is_strict };
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
    /// The next answer. `None`: the client has asked for all that it wants.
    async fn next(&mut self) -> Option<Result<ModelStreamInferResponse, Status>> {
        let shutdown = ended(self.calls.shutdown.as_mut());
        let message = tokio::select! {
            message = with_charge(self.charge.clone(), self.requests.message()) => message,
            () = shutdown => return Some(Err(Status::unavailable("the server is shutting down"))),
        };
        let message = match message {
            Ok(message) => message?,
            Err(status) => return Some(Err(status)),
        };
        let id = message.id.clone();
        let answer = match self.calls.infer(message, self.charge.clone()).await {
            Ok(mut response) => {
                let yes = Some(ParameterChoice::BoolParam(true));
                let yes = InferParameter { parameter_choice: yes };
                response.parameters.insert(FINAL.to_owned(), yes);
                let infer_response = Some(response);
                ModelStreamInferResponse { infer_response, ..Default::default() }
            }
            Err(refusal) if self.is_strict => return Some(Err(refusal.into())),
            Err(refusal) => {
                // By the id a client finds which of its requests it was.
                let named = ModelInferResponse { id, ..Default::default() };
                let error_message = refusal.text().to_owned();
                ModelStreamInferResponse { error_message, infer_response: Some(named) }
            }
        };
        Some(Ok(answer))
    }
}

/// When the server is told to end.
async fn ended(shutdown: Option<&mut Shutdown>) {
    match shutdown {
        Some(shutdown) => {
            // Whoever could tell is gone: that is an end, too.
            let _ = shutdown.wait_for(|ended| *ended).await;
        }
        None => std::future::pending().await,
    }
}
