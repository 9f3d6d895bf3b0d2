//! Decoupled models for tests, and clients of their streams.

// Each test binary uses a part of this module.
#![allow(dead_code)]

use std::sync::mpsc;

use futures_util::stream;
use slipring::DType;
use slipring_triton::{DecoupledModel, Inputs, ModelError, ModelMetadata, Responses, TensorSpec};
use tokio::sync::mpsc::UnboundedSender;
use tonic::{Status, Streaming};

use crate::grpc_served::inference::infer_parameter::ParameterChoice;
use crate::grpc_served::inference::*;
use crate::grpc_served::{Client, input, parameter, request};

/// A model that a closure computes.
pub struct Scripted<F>(ModelMetadata, F);

impl<F> Scripted<F>
where
    F: Fn(Inputs, Responses) -> Result<(), ModelError> + Send + Sync + 'static,
{
    /// Returns the model `scripted`: any number of bytes `I`, any number of bytes `O`, and one number `N`.
    pub fn new(infer: F) -> Self {
        Self::with(|metadata| metadata, infer)
    }

    pub fn with(shape: impl FnOnce(ModelMetadata) -> ModelMetadata, infer: F) -> Self {
        let metadata = ModelMetadata::new("scripted")
            .input(TensorSpec::new("I", DType::Uint8, [None]))
            .output(TensorSpec::new("O", DType::Uint8, [None]))
            .output(TensorSpec::new("N", DType::Uint32, [Some(1)]));
        Self(shape(metadata), infer)
    }
}

impl<F> DecoupledModel for Scripted<F>
where
    F: Fn(Inputs, Responses) -> Result<(), ModelError> + Send + Sync + 'static,
{
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, inputs: Inputs, responses: Responses) -> Result<(), ModelError> {
        self.1(inputs, responses)
    }
}

/// Sends the number as the output `N`.
pub fn send_number(responses: &Responses, number: u32) -> Result<(), ModelError> {
    let mut outputs = responses.outputs();
    outputs.output("N", [1])?.write(&[number])?;
    responses.blocking_send(outputs)
}

/// Sends so many bytes as the output `O`.
pub fn send_bytes(responses: &Responses, len: usize) -> Result<(), ModelError> {
    let mut outputs = responses.outputs();
    outputs.output("O", [len])?.write_bytes(&vec![7; len])?;
    responses.blocking_send(outputs)
}

/// Returns a request to `scripted` with these bytes.
pub fn scripted(id: &str, bytes: &[u8]) -> ModelInferRequest {
    let inputs = vec![input("I", "UINT8", &[bytes.len() as i64])];
    ModelInferRequest { id: id.to_owned(), ..request("scripted", inputs, &[bytes]) }
}

/// Returns the same request, which asks for an empty last response.
pub fn with_final(mut request: ModelInferRequest) -> ModelInferRequest {
    let yes = parameter(ParameterChoice::BoolParam(true));
    request.parameters.insert("triton_enable_empty_final_response".to_owned(), yes);
    request
}

/// Returns whether a response is marked as the last one to its request.
#[track_caller]
pub fn is_final(response: &ModelInferResponse) -> bool {
    match response.parameters["triton_final_response"].parameter_choice {
        Some(ParameterChoice::BoolParam(is_final)) => is_final,
        ref other => panic!("{other:?}"),
    }
}

/// A stream whose requests come one by one. It is cancelled on drop.
pub struct Stream {
    requests: Option<UnboundedSender<ModelInferRequest>>,
    answers: Streaming<ModelStreamInferResponse>,
}

impl Stream {
    pub async fn open(client: &mut Client) -> Self {
        let (requests, sent) = tokio::sync::mpsc::unbounded_channel();
        let sent =
            stream::unfold(sent, async |mut sent: tokio::sync::mpsc::UnboundedReceiver<_>| {
                let request = sent.recv().await?;
                Some((request, sent))
            });
        let answers = client.model_stream_infer(sent).await.unwrap().into_inner();
        Self { requests: Some(requests), answers }
    }

    pub fn send(&self, request: ModelInferRequest) {
        self.requests.as_ref().unwrap().send(request).unwrap();
    }

    /// Tells the server that no further request comes.
    pub fn finish(&mut self) {
        self.requests = None;
    }

    pub async fn next(&mut self) -> Result<Option<ModelStreamInferResponse>, Status> {
        self.answers.message().await
    }

    /// Returns the next response, which is no error.
    #[track_caller]
    pub fn response(&mut self) -> impl Future<Output = ModelInferResponse> {
        let caller = std::panic::Location::caller();
        async move {
            let answer = self.next().await.unwrap().unwrap_or_else(|| panic!("{caller}: the end"));
            assert_eq!(answer.error_message, "", "{caller}");
            answer.infer_response.unwrap()
        }
    }

    /// Returns all answers from here to the end.
    pub async fn rest(mut self) -> Vec<ModelStreamInferResponse> {
        self.finish();
        let mut answers = Vec::new();
        while let Some(answer) = self.next().await.unwrap() {
            answers.push(answer);
        }
        answers
    }
}

/// Waits for a value without blocking the runtime.
pub async fn received<T: Send + 'static>(
    receiver: &std::sync::Arc<std::sync::Mutex<mpsc::Receiver<T>>>,
) -> T {
    let receiver = receiver.clone();
    let wait = move || receiver.lock().unwrap().recv_timeout(crate::support::HANG).unwrap();
    tokio::task::spawn_blocking(wait).await.unwrap()
}
