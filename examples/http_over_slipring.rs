//! HTTP over slipring, with an axum router and a hyper client, beside HTTP over a Unix socket.
//!
//! ```text
//! cargo run --release --features tokio --example http_over_slipring
//! ```
//!
//! The source of the streams alone differs from any other service: an `axum::serve::Listener` of a few lines, and `hyper`'s
//! handshake over [`Connection::into_stream`]. The program starts its own peer, and both run a single-threaded runtime.
//! Slices of both transports alternate (`--slices 30` of each).
//!
//! Expect one line for a short body and one for a long body: the median time of a request and its answer.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use slipring::Context;
use slipring::tokio::{AsyncConnection, AsyncListener, AsyncStream};
use slipring_bench::Outcome;
use slipring_bench::against_socket::{self, Part, Peer};
use tokio::io::{AsyncRead, AsyncWrite};

type Client = SendRequest<Full<Bytes>>;

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match against_socket::part()? {
        Part::Serve(name) => runtime.block_on(serve(&name)),
        Part::Measure(slices) => runtime.block_on(measure(slices)),
    }
}

/// The source of axum's streams.
struct Links(AsyncListener);

impl axum::serve::Listener for Links {
    type Io = AsyncStream;
    /// The user id of the peer.
    type Addr = u32;

    async fn accept(&mut self) -> (AsyncStream, u32) {
        loop {
            match self.0.accept().await {
                Ok(link) => {
                    let uid = link.peer().uid();
                    return (link.into_stream(), uid);
                }
                Err(error) => {
                    eprintln!("http_over_slipring: {error:#}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<u32> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// The peer: sends bodies back, over both.
async fn serve(name: &str) -> Outcome<()> {
    let links = Links(AsyncListener::new(Context::new()?.listen(name)?)?);
    let socket = against_socket::listen(name)?;
    let router = Router::new()
        .route("/echo", post(async |body: Bytes| body))
        .layer(DefaultBodyLimit::max(16 << 20));
    let over_links = axum::serve(links, router.clone());
    let over_sockets = axum::serve(socket, router);
    tokio::try_join!(over_links.into_future(), over_sockets.into_future())?;
    Ok(())
}

async fn measure(slices: usize) -> Outcome<()> {
    let name = against_socket::fresh_name();
    let _peer = Peer::start(&name)?;
    against_socket::wait_for(&name).await?;
    let context = Context::new()?;
    for (what, len, rounds) in [("64 B", 64, 500), ("1 MiB", 1 << 20, 10)] {
        let link = AsyncConnection::connect(&context, name.as_str()).await?;
        let ours = client(link.into_stream()).await?;
        let theirs = client(against_socket::connect(&name)?).await?;
        let body = Bytes::from(vec![7; len]);
        against_socket::compare(what, (slices, rounds), ours, theirs, async |client| {
            echo(client, &body).await
        })
        .await?;
    }
    Ok(())
}

/// A client of hyper's over any stream.
async fn client(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Outcome<Client> {
    let (client, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn echo(client: &mut Client, body: &Bytes) -> Outcome<()> {
    client.ready().await?;
    let request = Request::post("/echo").header("host", "peer").body(Full::new(body.clone()))?;
    let response = client.send_request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(format!("the peer answered {}", response.status()).into());
    }
    let back = Body::new(response.into_body()).collect().await?.to_bytes();
    if back != body { Err("the peer sent something else back".into()) } else { Ok(()) }
}
