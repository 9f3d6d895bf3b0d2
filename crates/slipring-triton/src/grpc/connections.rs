//! Connections of HTTP/2, from their acceptance to their orderly end.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};

use crate::connections;
use crate::front::Front;
use crate::grpc::service::GrpcService;
use crate::idle::{ActiveRequest, Activity};
use crate::listener::{Socket, Stream};
use crate::shutdown::Shutdown;

/// Bytes that a client may send before the server has taken them: of a call, and of a connection. The ways to and
/// from another process are short; beyond this nothing gets faster.
const WINDOW: (u32, u32) = (4 << 20, 8 << 20);

/// Bytes of a frame that a client may send. Frames of the default, 16 KiB, cost large tensors a tenth of their speed.
const FRAME: u32 = 1 << 20;

/// Calls under way on a connection; more wait at the client.
const CALLS: u32 = 1024;

/// Bytes of an answer that are made ready before the client takes them.
const AHEAD: usize = 1 << 20;

/// How often a silent client is asked whether it is there, and how long it may take to say so.
const PINGS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Serves one address until the end is told, and then until the calls under way are answered.
pub(crate) async fn serve(front: Front, socket: Socket, shutdown: Shutdown) {
    let limits = *front.limits();
    let service = GrpcService::new(front, Some(shutdown.clone()));
    let serve = |stream, activity: Activity| {
        let (service, shutdown) = (service.clone(), shutdown.clone());
        async move {
            match stream {
                Stream::Tcp(stream) => connection(service, stream, activity, shutdown).await,
                Stream::Unix(stream) => connection(service, stream, activity, shutdown).await,
            }
        }
    };
    // Who has called, and answers pings, may stay: its next call would else meet a closed connection.
    connections::serve(socket, &limits, None, shutdown.clone(), serve).await;
}

/// Serves a connection until it ends. However it ends is its client's affair.
async fn connection(
    service: GrpcService,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    activity: Activity,
    mut shutdown: Shutdown,
) {
    let answer = service_fn(|request: http::Request<Incoming>| {
        let busy = activity.begin_request();
        let called = service.clone().call(request);
        async move {
            let answer = called.await?;
            Ok::<_, Infallible>(answer.map(|body| Answering { body, _busy: busy }))
        }
    });
    let mut served = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW.0)
            .initial_connection_window_size(WINDOW.1)
            .max_frame_size(FRAME)
            .max_concurrent_streams(CALLS)
            .max_send_buf_size(AHEAD)
            .keep_alive_interval(PINGS.0)
            .keep_alive_timeout(PINGS.1)
            .serve_connection(TokioIo::new(stream), answer)
    );
    tokio::select! {
        _ = &mut served => return,
        _ = shutdown.wait_for(|end| *end) => {}
    }
    // Who has not even said what it is has nothing to wait for.
    if activity.has_had_request() {
        served.as_mut().graceful_shutdown();
        let _ = served.await;
    }
}

/// The body of an answer: its connection is busy until it has ended.
struct Answering {
    body: Body,
    _busy: ActiveRequest,
}

impl HttpBody for Answering {
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
