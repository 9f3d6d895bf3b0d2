//! Connections.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::triton::front::Front;
use crate::triton::http::handle::handle;
use crate::triton::server::{Ending, Socket};

/// After an error of `accept`, such as a limit on descriptors: how long until the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves one address until the end is told, and then until the requests under way are answered.
pub(in crate::triton) async fn serve(
    front: Front,
    socket: Socket,
    mut ending: Ending,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(front.limits().connections));
    let mut connections = JoinSet::new();
    while !*ending.borrow() {
        let accepted = async {
            // Never closed, so there is always one to wait for.
            let place = places.clone().acquire_owned().await.ok();
            (place, accept(&socket).await)
        };
        tokio::select! {
            _ = ending.changed() => break,
            Some(_) = connections.join_next() => {}
            (place, accepted) = accepted => match accepted {
                Ok(stream) => {
                    let (front, ending) = (front.clone(), ending.clone());
                    connections.spawn(async move {
                        let _place = place;
                        match stream {
                            Stream::Tcp(stream) => connection(front, stream, ending).await,
                            Stream::Unix(stream) => connection(front, stream, ending).await,
                        }
                    });
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
    Ok(())
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn accept(socket: &Socket) -> io::Result<Stream> {
    match socket {
        Socket::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // A response must not wait for an acknowledgement.
            let _ = stream.set_nodelay(true);
            Ok(Stream::Tcp(stream))
        }
        Socket::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
    }
}

/// Serves a connection until it ends. However it ends is its client's affair.
async fn connection(front: Front, stream: impl AsyncRead + AsyncWrite + Unpin, mut ending: Ending) {
    let limits = *front.limits();
    let service = service_fn(|request| {
        let front = &front;
        async move { Ok::<_, Infallible>(handle(front, request).await) }
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        _ = &mut served => return,
        _ = ending.wait_for(|end| *end) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}
