//! HTTP/2 connections, from `accept` to an orderly end.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;
use tonic::codegen::{Service, http};

use crate::connections;
use crate::front::Front;
use crate::grpc::progress::{CallExecutor, ProgressBody};
use crate::grpc::service::GrpcService;
use crate::idle::{ActiveRequest, Activity};
use crate::listener::{Socket, Stream};
use crate::shutdown::Shutdown;

/// The flow-control windows of a call and of a connection. Larger windows gain nothing over local links.
const WINDOWS: (u32, u32) = (4 << 20, 8 << 20);

/// The largest frame of a client. The default of 16 KiB costs large tensors a tenth of their throughput.
const MAX_FRAME: u32 = 1 << 20;

/// The most calls in flight on a connection. Further calls wait at the client.
const MAX_CALLS: u32 = 1024;

/// Bytes of a response that are prepared before the client takes them.
const SEND_BUFFER: usize = 1 << 20;

/// The interval of pings to a silent client, and the longest time to its answer.
const PINGS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Serves one address, `most` connections at a time, until the shutdown, then until the calls in flight are answered.
pub(crate) async fn serve(front: Front, socket: Socket, most: usize, shutdown: Shutdown) {
    let limits = *front.limits();
    let executor = CallExecutor::new(limits.stall_timeout);
    let service = GrpcService::new(front, Some(shutdown.clone()));
    let serve = |stream, activity: Activity| {
        let (service, shutdown) = (service.clone(), shutdown.clone());
        async move {
            match stream {
                Stream::Tcp(stream) => {
                    connection(service, stream, executor, activity, shutdown).await
                }
                Stream::Unix(stream) => {
                    connection(service, stream, executor, activity, shutdown).await
                }
            }
        }
    };
    // A client that has called and answers pings may stay. A closed connection would fail its next call.
    connections::serve(socket, &limits, most, None, shutdown.clone(), serve).await;
}

/// Serves a connection until it ends. Its errors concern the client alone.
async fn connection(
    service: GrpcService,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    executor: CallExecutor,
    activity: Activity,
    mut shutdown: Shutdown,
) {
    let answer = service_fn(|mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(activity.clone());
        let busy = activity.begin_request();
        let called = service.clone().call(request);
        async move {
            let answer = called.await?;
            Ok::<_, Infallible>(
                answer.map(|body| ActiveBody { body: ProgressBody::new(body), _busy: busy }),
            )
        }
    });
    let mut served = pin!(
        http2::Builder::new(executor)
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .max_frame_size(MAX_FRAME)
            .max_concurrent_streams(MAX_CALLS)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PINGS.0)
            .keep_alive_timeout(PINGS.1)
            .serve_connection(TokioIo::new(stream), answer)
    );
    tokio::select! {
        _ = &mut served => return,
        _ = shutdown.wait_for(|end| *end) => {}
    }
    // A client that has not sent a request has nothing to wait for.
    if activity.has_had_request() {
        served.as_mut().graceful_shutdown();
        let _ = served.await;
    }
}

/// The body of a response. Its connection counts as active until the body ends.
struct ActiveBody {
    body: ProgressBody,
    _busy: ActiveRequest,
}

impl HttpBody for ActiveBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
