//! A front of this process over gRPC, and a client of tonic.

// Each test binary uses a part of this module.
#![allow(dead_code)]

#[allow(clippy::all)]
#[path = "health.rs"]
pub mod health;
#[allow(clippy::all)]
#[path = "inference.rs"]
pub mod inference;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use slipring::region::PosixShm;
use slipring_triton::{Bound, Front, FrontBuilder, Protocol, Server};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::http_served::models;
use crate::support::{HANG, unique_name};
use health::health_client::HealthClient;
use inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use inference::infer_parameter::ParameterChoice;
use inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use inference::*;

pub type Client = GrpcInferenceServiceClient<Channel>;

/// A front on a port of its own, and the runtime of the server and its clients. It ends on drop.
pub struct Served {
    pub front: Front,
    pub address: SocketAddr,
    runtime: Option<Runtime>,
    end: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves all reference models, by copy.
    pub fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub fn with(shape: impl FnOnce(FrontBuilder) -> FrontBuilder) -> Self {
        Self::of(shape(models::add_all(Front::builder())).build().unwrap())
    }

    pub fn of(front: Front) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let mut server = Server::new(front.clone());
        let bound = runtime.block_on(server.listen(Protocol::Grpc, "127.0.0.1:0")).unwrap();
        let Bound::Tcp(address) = bound else { panic!("no address") };
        let (end, ended) = oneshot::channel::<()>();
        let serving = async move { server.serve(async { drop(ended.await) }).await.unwrap() };
        let serving = Some(runtime.spawn(serving));
        Self { front, address, runtime: Some(runtime), end: Some(end), serving }
    }

    /// Runs a future to its end, with a deadline.
    #[track_caller]
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref().unwrap();
        let done = runtime.block_on(async { tokio::time::timeout(HANG, future).await });
        done.expect("an answer in time")
    }

    /// Runs a future beside the test.
    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.as_ref().unwrap().spawn(future)
    }

    pub fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        self.run(endpoint.connect()).unwrap()
    }

    pub fn client(&self) -> Client {
        let client = Client::new(self.channel());
        client
            .max_decoding_message_size(i32::MAX as usize)
            .max_encoding_message_size(i32::MAX as usize)
    }

    /// Returns a client whose connection nobody else uses.
    pub async fn client_of_its_own(&self) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        Client::new(endpoint.connect().await.unwrap())
    }

    pub fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel())
    }

    /// Sends one request with a new client.
    pub fn infer(&self, request: ModelInferRequest) -> Result<ModelInferResponse, Status> {
        let mut client = self.client();
        self.run(client.model_infer(request)).map(tonic::Response::into_inner)
    }

    /// Creates a POSIX shared memory object and registers all of it under `name`.
    pub fn region(&self, name: &str, len: u64) -> PosixShm {
        let object = PosixShm::create(&format!("/{}", unique_name()), len).unwrap();
        self.register(name, object.key(), 0, len).unwrap();
        object
    }

    pub fn register(&self, name: &str, key: &str, offset: u64, len: u64) -> Result<(), Status> {
        let (name, key) = (name.to_owned(), key.to_owned());
        let request = SystemSharedMemoryRegisterRequest { name, key, offset, byte_size: len };
        let mut client = self.client();
        self.run(client.system_shared_memory_register(request)).map(|_| ())
    }

    pub fn unregister(&self, name: &str) {
        let mut client = self.client();
        let request = SystemSharedMemoryUnregisterRequest { name: name.to_owned() };
        self.run(client.system_shared_memory_unregister(request)).unwrap();
    }

    /// Shuts the server down and waits for its end.
    pub fn end(&mut self) {
        drop(self.end.take());
        if let Some(serving) = self.serving.take() {
            self.run(serving).unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
        // A model that still waits after a failed test must not block the other tests.
        self.runtime.take().unwrap().shutdown_timeout(Duration::from_secs(2));
    }
}

/// Serves a front by an application's own server of tonic, on the current runtime. Returns a connection to it.
pub async fn served_by_tonic(front: &Front) -> Channel {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder()
        .add_service(front.service())
        .add_service(front.health());
    tokio::spawn(server.serve_with_incoming(incoming));
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// Asserts that a call was refused with this code and text.
#[track_caller]
pub fn is_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    let status = answer.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, text));
}

pub fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    let (name, datatype, shape) = (name.to_owned(), datatype.to_owned(), shape.to_vec());
    InferInputTensor { name, datatype, shape, ..Default::default() }
}

pub fn output(name: &str) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor { name: name.to_owned(), ..Default::default() }
}

pub fn request(model: &str, inputs: Vec<InferInputTensor>, raw: &[&[u8]]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs,
        raw_input_contents: raw.iter().map(|bytes| bytes.to_vec().into()).collect(),
        ..Default::default()
    }
}

/// Returns a request to `simple` with raw contents.
pub fn simple(first: &[u8], second: &[u8]) -> ModelInferRequest {
    let inputs = vec![input("INPUT0", "INT32", &[1, 16]), input("INPUT1", "INT32", &[1, 16])];
    request("simple", inputs, &[first, second])
}

/// Returns a request to `identity_int32` with 16 raw elements.
pub fn identity(bytes: &[u8]) -> ModelInferRequest {
    request("identity_int32", vec![input("INPUT0", "INT32", &[1, 16])], &[bytes])
}

pub fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

pub fn int(value: i64) -> InferParameter {
    parameter(ParameterChoice::Int64Param(value))
}

pub fn text(value: &str) -> InferParameter {
    parameter(ParameterChoice::StringParam(value.to_owned()))
}

/// Returns parameters that name a window of a region.
pub fn window(region: &str, offset: i64, len: i64) -> BTreeMap<String, InferParameter> {
    BTreeMap::from([
        ("shared_memory_region".to_owned(), text(region)),
        ("shared_memory_offset".to_owned(), int(offset)),
        ("shared_memory_byte_size".to_owned(), int(len)),
    ])
}

pub fn in_memory(mut tensor: InferInputTensor, region: &str, offset: i64) -> InferInputTensor {
    tensor.parameters = window(region, offset, 64);
    tensor
}
