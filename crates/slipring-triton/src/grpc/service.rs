//! The services, for a server of tonic or of this crate.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as HttpBody;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::HeaderValue;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use crate::front::Front;
use crate::grpc::calls::Calls;
use crate::grpc::codec::{BesideTonic, with_bytes_beside, with_charge};
use crate::grpc::deadline_body::DeadlineBody;
use crate::grpc::generated::health::health_server::HealthServer;
use crate::grpc::generated::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::grpc::inflate;
use crate::grpc::progress::ProgressBody;
use crate::grpc::response_body::ChargedBody;
use crate::grpc::scatter_gather::{self, ScatterGatherBody};
use crate::shutdown::Shutdown;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// Adds a text to the status that generated code gives to a method without an implementation.
fn named(response: http::Response<Body>, path: &str) -> http::Response<Body> {
    let headers = response.headers();
    let is_unimplemented = headers.get("grpc-status").is_some_and(|code| code == "12");
    if !is_unimplemented || headers.contains_key("grpc-message") {
        return response;
    }
    Status::unimplemented(format!("method {path:.200} is not served")).into_http()
}

impl Front {
    /// Returns the protocol's service, `inference.GRPCInferenceService`, for a server of tonic 0.14.
    ///
    /// A response of which its client takes nothing for [`Limits::stall_timeout`](crate::Limits::stall_timeout) gives up its
    /// messages, their bytes in flight, and the instance of a decoupled model. Its stream stays open with less than 1 MiB until
    /// the client reads, which then finds an error, or until the connection ends. A [`Server`](crate::Server) resets such a
    /// stream. An application bounds them by its server's `max_concurrent_streams`, and closes the connections of clients that
    /// are gone by `http2_keepalive_interval`.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    /// let front = slipring_triton::Front::builder().build()?;
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

    /// Returns gRPC's health service, `grpc.health.v1.Health`, for applications without one.
    pub fn health(&self) -> GrpcHealth {
        GrpcHealth(self.service())
    }
}

/// The service of [`Front::service`]. Clones serve the same front.
#[derive(Debug, Clone)]
pub struct GrpcService {
    front: Front,
    plain: GrpcInferenceServiceServer<Calls>,
    /// Serves compressed requests. It also compresses their responses, if the client accepts that.
    compressing: GrpcInferenceServiceServer<Calls>,
    health: HealthServer<Calls>,
    /// The deadline of a response. `None`: the server resets streams itself.
    stall_timeout: Option<Duration>,
}

impl GrpcService {
    pub(super) fn new(front: Front, shutdown: Option<Shutdown>) -> Self {
        let most = scatter_gather::max_len(front.limits());
        let stall_timeout = shutdown.is_none().then_some(front.limits().stall_timeout);
        let calls = Calls { front: front.clone(), shutdown };
        // Clients always declare that they accept compression, and seldom want to wait for it.
        let plain = GrpcInferenceServiceServer::new(calls.clone())
            .max_decoding_message_size(most)
            .max_encoding_message_size(i32::MAX as usize)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate);
        let compressing = plain
            .clone()
            .send_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Deflate);
        Self { front, plain, compressing, health: HealthServer::new(calls), stall_timeout }
    }

    /// Passes a call on to its service.
    fn dispatch<B>(&mut self, request: http::Request<B>) -> ResponseFuture
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError> + Send + 'static,
    {
        let kind = request.headers().get("content-type").map(HeaderValue::as_bytes);
        let is_grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
        if !is_grpc || request.method() != http::Method::POST {
            let status = match is_grpc {
                true => http::StatusCode::METHOD_NOT_ALLOWED,
                false => http::StatusCode::UNSUPPORTED_MEDIA_TYPE,
            };
            let mut response = http::Response::new(Body::empty());
            *response.status_mut() = status;
            return Box::pin(std::future::ready(Ok(response)));
        }
        let name = request.headers().get("grpc-encoding").map(HeaderValue::as_bytes);
        let encoding = name.and_then(inflate::encoding);
        let is_compressed = name.is_some_and(|name| name != b"identity");
        let charge = self.front.charge();
        let is_stream = request.uri().path().ends_with("/ModelStreamInfer");
        let (limits, counted) = (self.front.limits(), charge.clone());
        let beside = BesideTonic::default();
        let (messages, tails) = (beside.messages(), beside.tails());
        let mut request = request.map(|body| {
            ScatterGatherBody::new(body, encoding, is_stream, limits, counted, messages)
        });
        request.extensions_mut().insert(charge.clone());
        let uri = request.uri().clone();
        // tonic compresses all responses of a stream or none, also those that have tails.
        let response = self.call_service(request, is_compressed && !is_stream);
        let response = with_bytes_beside(beside, with_charge(charge.clone(), response));
        let stall_timeout = self.stall_timeout;
        Box::pin(async move {
            let response = named(response.await?, uri.path());
            Ok(response.map(|body| {
                let body = Body::new(ChargedBody::new(body, tails, charge));
                match stall_timeout {
                    Some(longest) => Body::new(DeadlineBody::new(ProgressBody::new(body), longest)),
                    None => body,
                }
            }))
        })
    }

    fn call_service<B>(
        &mut self,
        request: http::Request<ScatterGatherBody<B>>,
        is_compressed: bool,
    ) -> ResponseFuture
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError> + Send + 'static,
    {
        let path = request.uri().path();
        if path.starts_with("/grpc.health.v1.Health/") {
            self.health.call(request)
        } else if !path.starts_with("/inference.GRPCInferenceService/") {
            let text = "no service of this name";
            Box::pin(std::future::ready(Ok(Status::unimplemented(text).into_http())))
        } else if is_compressed {
            self.compressing.call(request)
        } else {
            self.plain.call(request)
        }
    }
}

impl NamedService for GrpcService {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl<B> Service<http::Request<B>> for GrpcService
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> ResponseFuture {
        self.dispatch(request)
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
    B::Error: Into<BoxError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> ResponseFuture {
        self.0.dispatch(request)
    }
}
