//! The responses to one request of a decoupled model, as messages of its stream.

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

use crate::budget::Charge;
use crate::grpc::answer::Answer;
use crate::grpc::calls::{Calls, decode};
use crate::grpc::generated::inference::{ModelInferRequest, ModelInferResponse};
use crate::grpc::parameters;
use crate::refusal::Refusal;
use crate::responses::{ResponseStream, StreamedResponse};
use crate::spans::InferSpan;

/// A request that runs.
struct DecoupledCall {
    calls: Calls,
    span: InferSpan,
    /// The fields of answers without a response.
    name: ModelInferResponse,
    wants_empty_final: bool,
    /// `None` when all answers have been returned.
    state: Option<CallState>,
}

enum CallState {
    Waiting(Box<(ModelInferRequest, Charge)>),
    Running(ResponseStream),
    Ended,
}

/// Returns the answers to a request, then `None`.
pub(super) fn answers(
    (calls, span): (Calls, InferSpan),
    message: ModelInferRequest,
    charge: Charge,
) -> BoxStream<'static, Option<Answer>> {
    let name = ModelInferResponse {
        id: message.id.clone(),
        model_name: message.model_name.clone(),
        model_version: message.model_version.clone(),
        ..Default::default()
    };
    // A parameter of another type is refused when the request is decoded.
    let wants_empty_final = parameters::wants_empty_final(&message.parameters).unwrap_or(false);
    let state = Some(CallState::Waiting(Box::new((message, charge))));
    let call = DecoupledCall { calls, span, name, wants_empty_final, state };
    stream::unfold(call, |mut call| async move {
        let state = call.state.take()?;
        let answer = call.next(state).await;
        Some((answer, call))
    })
    .boxed()
}

impl DecoupledCall {
    /// Returns the next answer. `None`: the last one has been returned.
    async fn next(&mut self, state: CallState) -> Option<Answer> {
        let mut responses = match state {
            CallState::Waiting(waiting) => {
                let (message, charge) = *waiting;
                match self.span.enter(self.start(message, charge)).await {
                    Ok(responses) => responses,
                    Err(refusal) => return Some(self.end(Some(refusal))),
                }
            }
            CallState::Running(responses) => responses,
            CallState::Ended => return None,
        };
        match responses.next().await {
            Some(Ok(StreamedResponse { response, is_last, charge })) => {
                match self.calls.encode(response) {
                    Ok(response) => {
                        self.state = Some(match is_last {
                            true => {
                                self.span.end(None);
                                CallState::Ended
                            }
                            false => CallState::Running(responses),
                        });
                        Some(Answer::response(response, is_last).charged(charge))
                    }
                    // The model finds out at its next response.
                    Err(refusal) => Some(self.end(Some(refusal))),
                }
            }
            Some(Err(refusal)) => Some(self.end(Some(refusal))),
            None if self.wants_empty_final => Some(self.end(None)),
            None => {
                self.span.end(None);
                None
            }
        }
    }

    async fn start(
        &self,
        message: ModelInferRequest,
        charge: Charge,
    ) -> Result<ResponseStream, Refusal> {
        self.calls.front.start(decode(message).await?, charge).await
    }

    /// Ends the request with an error or an empty response.
    fn end(&mut self, refusal: Option<Refusal>) -> Answer {
        self.span.end(refusal.as_ref());
        self.state = Some(CallState::Ended);
        let answer = Answer::response(std::mem::take(&mut self.name), true);
        match refusal {
            Some(refusal) => answer.refused(refusal),
            None => answer,
        }
    }
}
