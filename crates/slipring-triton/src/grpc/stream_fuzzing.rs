//! Streams for a fuzz target: requests to a decoupled model and to others, messages and bytes of any kind, pauses, a
//! shutdown, and clients that leave. No network is part of it.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame};
use prost::Message;
use slipring::DType;
use tokio::sync::watch;
use tonic::Status;
use tonic::codegen::{Service, http};

use crate::fuzzing::{front, run};
use crate::grpc::generated::inference::infer_parameter::ParameterChoice;
use crate::grpc::generated::inference::model_infer_request::InferInputTensor;
use crate::grpc::generated::inference::*;
use crate::grpc::service::GrpcService;
use crate::inputs::Inputs;
use crate::metadata::{ModelMetadata, TensorSpec};
use crate::model::DecoupledModel;
use crate::model_error::ModelError;
use crate::outputs::Outputs;
use crate::responses::Responses;

/// The most responses to one request.
const MAX_RESPONSES: usize = 64;

/// Polls without an answer after which a client whose requests never end leaves.
const MAX_PENDING: usize = 100;

/// The tasks of the model that have not ended.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// What a request asks of [`Many`]: `end | length of each response`.
struct Script<'a>(&'a [u8]);

/// How the model ends a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Dropped,
    Returned,
    Failed,
    SentLast,
}

impl Script<'_> {
    fn end(&self) -> End {
        match self.0.first().copied().unwrap_or(0) % 4 {
            0 => End::Dropped,
            1 => End::Returned,
            2 => End::Failed,
            _ => End::SentLast,
        }
    }

    /// The lengths of the responses. A model that returns an error has none.
    fn lens(&self) -> &[u8] {
        match self.end() {
            End::Returned => &[],
            _ => {
                let lens = self.0.get(1..).unwrap_or_default();
                &lens[..lens.len().min(MAX_RESPONSES)]
            }
        }
    }
}

/// A model "many" of one input `I` of bytes, a script, whose responses have one output `O` of bytes.
pub(crate) struct Many(ModelMetadata);

impl Many {
    pub(crate) fn new() -> Self {
        let tensor = |name| TensorSpec::new(name, DType::Uint8, [None]);
        Self(ModelMetadata::new("many").inline().input(tensor("I")).output(tensor("O")))
    }
}

impl DecoupledModel for Many {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, inputs: Inputs, responses: Responses) -> Result<(), ModelError> {
        let script = inputs.input("I")?.bytes()?.into_owned();
        if Script(&script).end() == End::Returned {
            return Err(ModelError::new("as the script says"));
        }
        RUNNING.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            // The error of a response says that the client has gone.
            let _ = send(Script(&script), responses).await;
            drop(inputs);
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(())
    }
}

async fn send(script: Script<'_>, responses: Responses) -> Result<(), ModelError> {
    let outputs = |len: u8| -> Result<Outputs, ModelError> {
        let mut outputs = responses.outputs();
        outputs.output("O", [len.into()])?.write_bytes(&vec![len; len.into()])?;
        Ok(outputs)
    };
    match (script.end(), script.lens()) {
        (End::SentLast, [lens @ .., last]) => {
            for len in lens {
                responses.send(outputs(*len)?).await?;
            }
            let last = outputs(*last)?;
            responses.send_last(last).await
        }
        (end, lens) => {
            for len in lens {
                responses.send(outputs(*len)?).await?;
            }
            if end == End::Failed {
                responses.fail(ModelError::new("as the script says"));
            }
            Ok(())
        }
    }
}

/// An answer to a request.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Response { bytes: Vec<u8>, is_last: bool },
    Final,
    Error,
}

/// A part of the client's side.
enum Part {
    Bytes(Bytes),
    Pause,
    Shutdown,
}

/// The requests of a stream, of which some are taken by the reader's polls.
struct RequestBody {
    parts: VecDeque<Part>,
    shutdown: watch::Sender<bool>,
    ends: bool,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            return match self.parts.pop_front() {
                Some(Part::Bytes(bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(Part::Pause) => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Some(Part::Shutdown) => {
                    self.shutdown.send_replace(true);
                    continue;
                }
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            };
        }
    }
}

/// The steps of an input, put together.
#[derive(Default)]
struct Steps {
    parts: VecDeque<Part>,
    /// Bytes that follow the parts.
    bytes: Vec<u8>,
    bytes_at_a_time: usize,
    /// The answers to each request, by its id.
    expected: BTreeMap<String, VecDeque<Expected>>,
    /// Whether a step has sent bytes of which the target does not know what they ask.
    has_any_bytes: bool,
    has_shutdown: bool,
}

impl Steps {
    fn read(mut input: &[u8], bytes_at_a_time: usize) -> Self {
        let mut steps = Self { bytes_at_a_time, ..Self::default() };
        while let [step, rest @ ..] = input {
            input = rest;
            match step % 8 {
                0 => {
                    let script = steps.take(&mut input);
                    let script_of = Script(script);
                    let mut answers: VecDeque<_> = script_of.lens().iter().map(response).collect();
                    let (wants_final, mut has_last) = (step & 8 != 0, false);
                    match script_of.end() {
                        End::Returned | End::Failed => answers.push_back(Expected::Error),
                        End::SentLast => {
                            if let Some(Expected::Response { is_last, .. }) = answers.back_mut() {
                                (*is_last, has_last) = (true, true);
                            }
                        }
                        End::Dropped => {}
                    }
                    let has_error = matches!(answers.back(), Some(Expected::Error));
                    if wants_final && !has_error && !has_last {
                        answers.push_back(Expected::Final);
                    }
                    steps.request("many", script, wants_final, answers);
                }
                1 => {
                    let bytes = steps.take(&mut input);
                    let answer = Expected::Response { bytes: bytes.to_vec(), is_last: true };
                    steps.request("UINT8", bytes, false, VecDeque::from([answer]));
                }
                2 => {
                    let message = steps.take(&mut input);
                    steps.frame(message);
                    steps.has_any_bytes = true;
                }
                3 => {
                    let bytes = steps.take(&mut input);
                    steps.bytes.extend_from_slice(bytes);
                    steps.has_any_bytes = true;
                }
                4 => {
                    let model = if step & 8 != 0 { "BYTES" } else { "none" };
                    let error = VecDeque::from([Expected::Error]);
                    steps.request(model, &[1, 2], false, error);
                }
                5 => {
                    steps.end_bytes();
                    steps.parts.push_back(Part::Shutdown);
                    steps.has_shutdown = true;
                }
                _ => {
                    steps.end_bytes();
                    steps.parts.push_back(Part::Pause);
                }
            }
        }
        steps.end_bytes();
        steps
    }

    /// Takes bytes behind their number.
    fn take<'a>(&self, input: &mut &'a [u8]) -> &'a [u8] {
        let [len, rest @ ..] = *input else { return &[] };
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        *input = rest;
        bytes
    }

    fn request(
        &mut self,
        model: &str,
        bytes: &[u8],
        wants_final: bool,
        answers: VecDeque<Expected>,
    ) {
        let id = self.expected.len().to_string();
        let input = InferInputTensor {
            name: "I".to_owned(),
            datatype: if model == "BYTES" { "BYTES" } else { "UINT8" }.to_owned(),
            shape: vec![bytes.len() as i64],
            ..Default::default()
        };
        let mut message = ModelInferRequest {
            model_name: model.to_owned(),
            id: id.clone(),
            inputs: vec![input],
            raw_input_contents: vec![Bytes::copy_from_slice(bytes)],
            ..Default::default()
        };
        if wants_final {
            let parameter_choice = Some(ParameterChoice::BoolParam(true));
            let name = "triton_enable_empty_final_response".to_owned();
            message.parameters.insert(name, InferParameter { parameter_choice });
        }
        self.frame(&message.encode_to_vec());
        self.expected.insert(id, answers);
    }

    fn frame(&mut self, message: &[u8]) {
        self.bytes.push(0);
        self.bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(message);
    }

    fn end_bytes(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let pieces = bytes.chunks(self.bytes_at_a_time).map(Bytes::copy_from_slice);
        self.parts.extend(pieces.map(Part::Bytes));
    }
}

fn response(len: &u8) -> Expected {
    Expected::Response { bytes: vec![*len; (*len).into()], is_last: false }
}

/// Reads a stream: `flags | answers until the client leaves | bytes at a time | step …`. A client that can read its answers
/// gets the right ones, and after each stream nothing is in flight and no request waits.
pub fn stream(input: &[u8]) {
    let [flags, most, bytes_at_a_time, rest @ ..] = input else { return };
    let steps = Steps::read(rest, usize::from(*bytes_at_a_time) + 1);
    let [is_strict, leaves, never_ends, has_own_server] = [1, 2, 4, 8].map(|bit| flags & bit != 0);
    let Steps { parts, mut expected, has_any_bytes, has_shutdown, .. } = steps;
    let (shutdown, ended) = watch::channel(false);
    let ended = (!has_own_server).then_some(ended);
    let stops = has_shutdown && ended.is_some();
    let body = RequestBody { parts, shutdown, ends: !never_ends };
    let mut call = http::Request::post("/inference.GRPCInferenceService/ModelStreamInfer")
        .header("content-type", "application/grpc");
    if is_strict {
        call = call.header("triton_grpc_error", "true");
    }
    if flags & 16 != 0 {
        call = call.header("grpc-encoding", "gzip");
    }
    let call = call.body(body).unwrap();
    run(async {
        let Ok(answer) = GrpcService::new(front().clone(), ended).call(call).await;
        let most = if leaves { usize::from(*most) } else { usize::MAX };
        let body = answer.into_body();
        let mut answers = Answers { body, rest: BytesMut::new(), left: most, never_ends };
        let mut status = None;
        while let Some(read) = answers.next().await {
            match read.unwrap_or_else(|failure| panic!("a client cannot read this: {failure}")) {
                Read::Answer(answer) if !has_any_bytes && !is_strict => {
                    check(&mut expected, answer);
                }
                Read::Answer(_) => {}
                Read::Status(code) => status = Some(code),
            }
        }
        let is_left = status.is_none();
        assert!(!is_left || leaves || never_ends, "a stream without a status");
        assert!(is_left || answers.rest.is_empty(), "a message is cut off");
        if !is_left && !has_any_bytes && !is_strict {
            let missing = expected.values().find(|answers| !answers.is_empty());
            assert!(stops || missing.is_none(), "no answer: {missing:?}");
            let wanted: &[&str] = if stops { &["0", "14"] } else { &["0"] };
            assert!(status.as_deref().is_some_and(|code| wanted.contains(&code)), "{status:?}");
        }
        drop(answers);
        while RUNNING.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    });
    let model = front().repository().find("many", None).unwrap();
    assert_eq!(model.entry.instances.waiting(), 0);
    assert!(front().charge().add(front().limits().bytes_in_flight).is_ok(), "all is given back");
}

/// Checks that an answer is the next one to its request.
fn check(expected: &mut BTreeMap<String, VecDeque<Expected>>, answer: ModelStreamInferResponse) {
    let response = answer.infer_response.expect("each answer has a response");
    // The refusal of a request to a model of one response lacks the parameter.
    let choice = response.parameters.get("triton_final_response");
    let choice = choice.and_then(|parameter| parameter.parameter_choice.clone());
    let is_last = choice == Some(ParameterChoice::BoolParam(true));
    let found = if !answer.error_message.is_empty() {
        Expected::Error
    } else if response.outputs.is_empty() {
        assert!(is_last, "an empty response");
        Expected::Final
    } else {
        Expected::Response { bytes: response.raw_output_contents[0].to_vec(), is_last }
    };
    let answers = expected.get_mut(&response.id).expect("the id of a request");
    assert_eq!(answers.pop_front(), Some(found), "request {}", response.id);
}

/// The client's side of a response.
struct Answers {
    body: tonic::body::Body,
    /// Bytes without a whole message.
    rest: BytesMut,
    /// The answers until the client leaves.
    left: usize,
    /// Whether the client's requests have no end, so that the response has none.
    never_ends: bool,
}

enum Read {
    Answer(ModelStreamInferResponse),
    /// The code of the stream's status.
    Status(String),
}

impl Answers {
    /// Returns the next answer, or the status. `None`: the client leaves, or the response has ended.
    async fn next(&mut self) -> Option<Result<Read, Status>> {
        loop {
            if self.left == 0 {
                return None;
            }
            if let Some(answer) = self.whole() {
                self.left -= 1;
                return Some(answer.map(Read::Answer));
            }
            let mut pending = 0;
            let frame = loop {
                let polled = poll_fn(|context| {
                    Poll::Ready(match Pin::new(&mut self.body).poll_frame(context) {
                        Poll::Ready(frame) => Some(frame),
                        Poll::Pending => None,
                    })
                });
                if let Some(frame) = polled.await {
                    break frame?;
                }
                pending += 1;
                let is_idle = self.never_ends && pending > MAX_PENDING;
                if is_idle && RUNNING.load(Ordering::Relaxed) == 0 {
                    return None;
                }
                tokio::task::yield_now().await;
            };
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => self.rest.extend_from_slice(&data),
                Ok(Err(trailers)) => {
                    let trailers = trailers.into_trailers().ok()?;
                    let code = trailers.get("grpc-status").expect("a status").to_str().unwrap();
                    return Some(Ok(Read::Status(code.to_owned())));
                }
                Err(failure) => return Some(Err(failure)),
            }
        }
    }

    /// Takes a whole message out.
    fn whole(&mut self) -> Option<Result<ModelStreamInferResponse, Status>> {
        let (head, _) = self.rest.split_first_chunk::<5>()?;
        assert_eq!(head[0], 0, "the responses of a stream are plain");
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if self.rest.len() < 5 + len {
            return None;
        }
        self.rest.advance(5);
        let message = self.rest.split_to(len);
        let decoded = ModelStreamInferResponse::decode(message.freeze());
        Some(decoded.map_err(|failure| Status::internal(failure.to_string())))
    }
}
