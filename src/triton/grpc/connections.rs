//! Connections of HTTP/2, from their acceptance to their orderly end.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tonic::codegen::{Service, http};

use crate::triton::door::{Door, Socket, Stream};
use crate::triton::front::Front;
use crate::triton::grpc::service::GrpcService;
use crate::triton::limits::Limits;
use crate::triton::server::Ending;

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
pub(in crate::triton) async fn serve(
    front: Front,
    socket: Socket,
    mut ending: Ending,
) -> io::Result<()> {
    let limits = *front.limits();
    let service = GrpcService::new(front, Some(ending.clone()));
    let door = Door::new(socket, limits.connections);
    let mut connections = JoinSet::new();
    while !*ending.borrow() {
        tokio::select! {
            _ = ending.changed() => break,
            Some(_) = connections.join_next() => {}
            (place, stream) = door.next() => {
                let (service, ending) = (service.clone(), ending.clone());
                connections.spawn(async move {
                    let _place = place;
                    match stream {
                        Stream::Tcp(stream) => connection(service, stream, limits, ending).await,
                        Stream::Unix(stream) => connection(service, stream, limits, ending).await,
                    }
                });
            }
        }
    }
    drop(door);
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// Serves a connection until it ends. However it ends is its client's affair.
async fn connection(
    service: GrpcService,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    limits: Limits,
    mut ending: Ending,
) {
    let asked = AtomicBool::new(false);
    let answer = service_fn(|request: http::Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        service.clone().call(request)
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
    loop {
        tokio::select! {
            _ = &mut served => return,
            _ = ending.wait_for(|end| *end) => break,
            // Pings begin once a client has said what it is. Who never does has no business here.
            () = tokio::time::sleep(limits.patience), if !asked.load(Ordering::Relaxed) => {
                if !asked.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}
