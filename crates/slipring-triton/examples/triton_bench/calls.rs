//! The requests, and the connections that send them.

use std::collections::BTreeMap;

use prost::Message;
use tonic::transport::{Channel, Endpoint};

use crate::echo::Payload;
use crate::echo::echo_client::EchoClient;
use crate::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use crate::inference::infer_parameter::ParameterChoice;
use crate::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::inference::{InferParameter, ModelInferRequest, SystemSharedMemoryRegisterRequest};
use crate::serve::Server;
use crate::{LONG, LONGEST};

/// A request, and a payload of the same length for the echo.
pub struct Job {
    request: ModelInferRequest,
    payload: Payload,
}

pub struct Jobs {
    pub raw: Job,
    pub shared: Job,
    pub raw_long: Job,
    pub shared_long: Job,
    pub shared_longest: Job,
}

impl Jobs {
    pub fn new() -> Self {
        let small = |name: &str| input(name, "INT32", &[1, 16]);
        let mut raw = request("simple", vec![small("INPUT0"), small("INPUT1")]);
        let mut shared = raw.clone();
        raw.raw_input_contents = vec![vec![7; 64].into(); 2];
        for (at, tensor) in shared.inputs.iter_mut().enumerate() {
            tensor.parameters = window(64 * at, 64);
        }
        shared.outputs = vec![output("OUTPUT0", 4096, 64), output("OUTPUT1", 4160, 64)];
        let shape = [1, LONG as i64 / 4];
        let mut raw_long = request("identity_fp32", vec![input("INPUT0", "FP32", &shape)]);
        raw_long.raw_input_contents = vec![vec![7; LONG].into()];
        let long = |len: usize| {
            let shape = [1, len as i64 / 4];
            let mut long = request("identity_fp32", vec![input("INPUT0", "FP32", &shape)]);
            long.inputs[0].parameters = window(0, len);
            long.outputs = vec![output("OUTPUT0", len, len)];
            job(long)
        };
        Self {
            raw: job(raw),
            shared: job(shared),
            raw_long: job(raw_long),
            shared_long: long(LONG),
            shared_longest: long(LONGEST),
        }
    }
}

fn job(request: ModelInferRequest) -> Job {
    let payload = Payload { body: vec![7; request.encoded_len()].into() };
    Job { request, payload }
}

fn request(model: &str, inputs: Vec<InferInputTensor>) -> ModelInferRequest {
    ModelInferRequest { model_name: model.to_owned(), inputs, ..Default::default() }
}

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    let (name, datatype, shape) = (name.to_owned(), datatype.to_owned(), shape.to_vec());
    InferInputTensor { name, datatype, shape, ..Default::default() }
}

fn output(name: &str, offset: usize, len: usize) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor { name: name.to_owned(), parameters: window(offset, len) }
}

fn window(offset: usize, len: usize) -> BTreeMap<String, InferParameter> {
    let parameter = |name: &str, choice| {
        (format!("shared_memory_{name}"), InferParameter { parameter_choice: Some(choice) })
    };
    BTreeMap::from([
        parameter("region", ParameterChoice::StringParam("bench".to_owned())),
        parameter("offset", ParameterChoice::Int64Param(offset as i64)),
        parameter("byte_size", ParameterChoice::Int64Param(len as i64)),
    ])
}

/// A connection that stays open, to either service.
pub struct Connection {
    front: GrpcInferenceServiceClient<Channel>,
    echo: EchoClient<Channel>,
}

impl Connection {
    pub async fn new(server: &Server) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address));
        let channel = endpoint.expect("an address").connect().await.expect("a server");
        let most = 1 << 30;
        let front = GrpcInferenceServiceClient::new(channel.clone())
            .max_decoding_message_size(most)
            .max_encoding_message_size(most);
        let echo = EchoClient::new(channel)
            .max_decoding_message_size(most)
            .max_encoding_message_size(most);
        Self { front, echo }
    }

    pub async fn register(&mut self, name: &str, key: &str, len: usize) {
        let (name, key) = (name.to_owned(), key.to_owned());
        let asked =
            SystemSharedMemoryRegisterRequest { name, key, offset: 0, byte_size: len as u64 };
        self.front.system_shared_memory_register(asked).await.expect("a region");
    }

    pub async fn infer(&mut self, job: &Job) {
        let answer = self.front.model_infer(job.request.clone()).await.expect("an answer");
        assert_eq!(answer.get_ref().outputs.len(), answer.get_ref().raw_output_contents.len());
    }

    pub async fn echo(&mut self, job: &Job) {
        let answer = self.echo.unary(job.payload.clone()).await.expect("an answer");
        assert_eq!(answer.get_ref().body.len(), job.payload.body.len());
    }
}
