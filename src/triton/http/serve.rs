//! Connections.

use std::convert::Infallible;
use std::io;
use std::pin::pin;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use crate::triton::door::{Door, Socket, Stream};
use crate::triton::front::Front;
use crate::triton::http::handle::handle;
use crate::triton::http::idlers::{Idler, Idlers};
use crate::triton::server::Ending;

/// Serves one address until the end is told, and then until the requests under way are answered.
pub(in crate::triton) async fn serve(
    front: Front,
    socket: Socket,
    mut ending: Ending,
) -> io::Result<()> {
    let door = Door::new(socket, front.limits().connections);
    let mut connections = JoinSet::new();
    let mut idlers = Idlers::new(front.limits().idle);
    while !*ending.borrow() {
        tokio::select! {
            _ = ending.changed() => break,
            Some(_) = connections.join_next() => {}
            () = idlers.look() => {}
            (place, stream) = door.next() => {
                let (front, ending) = (front.clone(), ending.clone());
                let idler = Idler::new();
                let watched = idler.clone();
                let served = connections.spawn(async move {
                    let _place = place;
                    match stream {
                        Stream::Tcp(stream) => connection(front, stream, idler, ending).await,
                        Stream::Unix(stream) => connection(front, stream, idler, ending).await,
                    }
                });
                idlers.watch(watched, served);
            }
        }
    }
    drop(door);
    loop {
        tokio::select! {
            done = connections.join_next() => if done.is_none() { return Ok(()) },
            () = idlers.look() => {}
        }
    }
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
            idler.works();
            let reply = handle(front, request).await;
            idler.rests();
            Ok::<_, Infallible>(reply)
        }
    });
    let mut builder = http1::Builder::new();
    let served = builder.header_read_timeout(None).serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    tokio::select! {
        biased;
        _ = &mut served => return,
        _ = ending.wait_for(|end| *end) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}
