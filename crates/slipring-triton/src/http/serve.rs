//! HTTP/1.1 connections.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connections;
use crate::front::Front;
use crate::http::handle::handle;
use crate::http::reply::Reply;
use crate::idle::{Activity, ActivityStream};
use crate::limits::Limits;
use crate::listener::{Socket, Stream};
use crate::shutdown::Shutdown;

/// Serves one address, `most` connections at a time, until the shutdown, then until the requests in flight are answered.
pub(crate) async fn serve(front: Front, socket: Socket, most: usize, shutdown: Shutdown) {
    let limits = *front.limits();
    let respond = move |request| {
        let front = front.clone();
        async move { handle(&front, request).await }
    };
    serve_with(respond, socket, &limits, most, shutdown).await;
}

/// Serves one address as [`serve`] does. `respond` answers each request.
pub(crate) async fn serve_with<F>(
    respond: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    socket: Socket,
    limits: &Limits,
    most: usize,
    shutdown: Shutdown,
) where
    F: Future<Output = Reply> + Send + 'static,
{
    let serve = |stream, activity: Activity| {
        let (respond, shutdown) = (respond.clone(), shutdown.clone());
        async move {
            match stream {
                Stream::Tcp(stream) => connection(respond, stream, activity, shutdown).await,
                Stream::Unix(stream) => connection(respond, stream, activity, shutdown).await,
            }
        }
    };
    let idle = Some(limits.idle_timeout);
    connections::serve(socket, limits, most, idle, shutdown.clone(), serve).await;
}

/// Serves a connection until it ends. Its errors concern the client alone.
async fn connection<F: Future<Output = Reply>>(
    respond: impl Fn(Request<Incoming>) -> F,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    activity: Activity,
    mut shutdown: Shutdown,
) {
    let service = service_fn(|request| {
        let (reply, activity) = (respond(request), &activity);
        async move {
            let _busy = activity.begin_request();
            let reply = reply.await;
            // Here the body is read. While it comes, it wakes the task, and a yield is over.
            activity.take_turn().await;
            Ok::<_, Infallible>(reply)
        }
    });
    let mut builder = http1::Builder::new();
    let stream = TokioIo::new(ActivityStream::new(stream, activity.clone()));
    let served = builder.header_read_timeout(None).serve_connection(stream, service);
    let mut served = pin!(served);
    tokio::select! {
        biased;
        _ = &mut served => return,
        _ = shutdown.wait_for(|end| *end) => {}
    }
    served.as_mut().graceful_shutdown();
    let polled = poll_fn(|context| Poll::Ready(served.as_mut().poll(context)));
    // The server does not wait for the rest of an incomplete request.
    if polled.await.is_pending() && !activity.is_idle() {
        let _ = served.await;
    }
}
