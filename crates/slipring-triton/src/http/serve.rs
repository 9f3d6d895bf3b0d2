//! Connections of HTTP/1.1.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connections;
use crate::door::{Socket, Stream};
use crate::front::Front;
use crate::http::handle::handle;
use crate::idlers::{Idler, Watched};
use crate::server::Ending;

/// Serves one address until the end is told, and then until the requests under way are answered.
pub(crate) async fn serve(front: Front, socket: Socket, ending: Ending) {
    let limits = *front.limits();
    let serve = |stream, idler: Idler| {
        let (front, ending) = (front.clone(), ending.clone());
        async move {
            match stream {
                Stream::Tcp(stream) => connection(front, stream, idler, ending).await,
                Stream::Unix(stream) => connection(front, stream, idler, ending).await,
            }
        }
    };
    connections::serve(socket, &limits, Some(limits.idle), ending.clone(), serve).await;
}

/// Serves a connection until it ends. However it ends is its client's affair.
async fn connection(
    front: Front,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    idler: Idler,
    mut ending: Ending,
) {
    let service = service_fn(|request| {
        let (front, idler) = (&front, &idler);
        async move {
            let _busy = idler.works();
            Ok::<_, Infallible>(handle(front, request).await)
        }
    });
    let mut builder = http1::Builder::new();
    let stream = TokioIo::new(Watched::new(stream, idler.clone()));
    let served = builder.header_read_timeout(None).serve_connection(stream, service);
    let mut served = pin!(served);
    tokio::select! {
        biased;
        _ = &mut served => return,
        _ = ending.wait_for(|end| *end) => {}
    }
    served.as_mut().graceful_shutdown();
    let polled = poll_fn(|context| Poll::Ready(served.as_mut().poll(context)));
    // Half a request is none that would be waited for.
    if polled.await.is_pending() && !idler.rests() {
        let _ = served.await;
    }
}
