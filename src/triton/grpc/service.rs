//! The services to plug into a server of tonic's, or into this crate's own.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body as HttpBody;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use crate::triton::front::Front;
use crate::triton::grpc::calls::Calls;
use crate::triton::grpc::gathered::Gathered;
use crate::triton::grpc::generated::health::health_server::HealthServer;
use crate::triton::grpc::generated::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::triton::limits::Limits;
use crate::triton::server::Ending;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Front {
    /// The protocol's service, `inference.GRPCInferenceService`, for a server of tonic 0.14.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    /// let front = slipring::triton::Front::builder().build()?;
    /// tonic::transport::Server::builder()
    ///     .add_service(front.service())
    ///     .add_service(front.health())
    ///     .serve("127.0.0.1:8001".parse()?)
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn service(&self) -> GrpcService {
        GrpcService::new(self.clone(), None)
    }

    /// gRPC's health service, `grpc.health.v1.Health`, for applications that have none of their own.
    pub fn health(&self) -> GrpcHealth {
        GrpcHealth(self.service())
    }
}

/// The service of [`Front::service`]. Clones serve the same front.
#[derive(Debug, Clone)]
pub struct GrpcService {
    limits: Limits,
    plain: GrpcInferenceServiceServer<Calls>,
    /// For requests that are compressed: their answers are, too, if the client takes that.
    compressing: GrpcInferenceServiceServer<Calls>,
    health: HealthServer<Calls>,
}

impl GrpcService {
    pub(super) fn new(front: Front, ending: Option<Ending>) -> Self {
        let limits = *front.limits();
        let most = longest(&limits);
        let calls = Calls { front, ending };
        // A client that is able to take compressed answers says so always, and seldom wants to wait for them.
        let plain = GrpcInferenceServiceServer::new(calls.clone())
            .max_decoding_message_size(most)
            .max_encoding_message_size(i32::MAX as usize)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate);
        let compressing = plain
            .clone()
            .send_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Deflate);
        Self { limits, plain, compressing, health: HealthServer::new(calls) }
    }

    /// Hands a call on to whom it is for.
    fn hand_on<B>(&mut self, request: http::Request<B>) -> Answering
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Failure> + Send + 'static,
    {
        let Limits { patience, .. } = self.limits;
        let longest = longest(&self.limits);
        let request = request.map(|body| Gathered::new(body, longest, patience));
        let compressed = request.headers().get("grpc-encoding");
        let path = request.uri().path();
        if path.starts_with("/grpc.health.v1.Health/") {
            self.health.call(request)
        } else if !path.starts_with("/inference.GRPCInferenceService/") {
            let text = "no service of this name";
            Box::pin(std::future::ready(Ok(Status::unimplemented(text).into_http())))
        } else if compressed.is_some_and(|encoding| encoding != "identity") {
            self.compressing.call(request)
        } else {
            self.plain.call(request)
        }
    }
}

/// Bytes of a message that is taken.
fn longest(limits: &Limits) -> usize {
    usize::try_from(limits.request_bytes).unwrap_or(usize::MAX)
}

impl NamedService for GrpcService {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl<B> Service<http::Request<B>> for GrpcService
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Failure> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Answering {
        self.hand_on(request)
    }
}

/// The service of [`Front::health`]. Clones serve the same front.
#[derive(Debug, Clone)]
pub struct GrpcHealth(GrpcService);

impl NamedService for GrpcHealth {
    const NAME: &'static str = "grpc.health.v1.Health";
}

impl<B> Service<http::Request<B>> for GrpcHealth
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Failure> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Answering {
        self.0.hand_on(request)
    }
}
