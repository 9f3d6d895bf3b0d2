//! HTTP over slipring: an axum router and a hyper client that know nothing of it, beside the same over
//! a Unix socket.
//!
//! ```text
//! cargo run --release --features tokio --example http_over_slipring
//! ```
//!
//! What differs from any other service is where streams come from: an `axum::serve::Listener` of a
//! few lines, and `hyper`'s handshake over [`AsyncConnection::into_stream`]. It starts its own peer; both
//! run a single-threaded runtime. Slices of both kinds alternate (`--slices 30` of each).
//!
//! Expect a line for a short and for a long body: the medians of a request, there and back.

#[path = "beside/mod.rs"]
mod beside;

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use beside::{Part, Peer, Result};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use slipring::Context;
use slipring::tokio::{AsyncConnection, AsyncListener, AsyncStream};
use tokio::io::{AsyncRead, AsyncWrite};

type Client = SendRequest<Full<Bytes>>;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match beside::part()? {
        Part::Serve(name) => runtime.block_on(serve(&name)),
        Part::Measure(slices) => runtime.block_on(measure(slices)),
    }
}

/// Where axum gets its streams.
struct Links(AsyncListener);

impl axum::serve::Listener for Links {
    type Io = AsyncStream;
    /// Who has connected: a user id.
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
async fn serve(name: &str) -> Result<()> {
    let links = Links(AsyncListener::new(Context::new()?.listen(name)?)?);
    let socket = beside::listen(name)?;
    let router = Router::new()
        .route("/echo", post(async |body: Bytes| body))
        .layer(DefaultBodyLimit::max(16 << 20));
    let over_links = axum::serve(links, router.clone());
    let over_sockets = axum::serve(socket, router);
    tokio::try_join!(over_links.into_future(), over_sockets.into_future())?;
    Ok(())
}

async fn measure(slices: usize) -> Result<()> {
    let name = beside::fresh_name();
    let _peer = Peer::start(&name)?;
    beside::wait_for(&name).await?;
    let context = Context::new()?;
    for (what, len, rounds) in [("64 B", 64, 500), ("1 MiB", 1 << 20, 10)] {
        let link = AsyncConnection::connect(&context, name.as_str()).await?;
        let ours = client(link.into_stream()).await?;
        let theirs = client(beside::connect(&name)?).await?;
        let body = Bytes::from(vec![7; len]);
        beside::compare(what, (slices, rounds), ours, theirs, async |client| {
            echo(client, &body).await
        })
        .await?;
    }
    Ok(())
}

/// A client of hyper's over any stream.
async fn client(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Client> {
    let (client, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn echo(client: &mut Client, body: &Bytes) -> Result<()> {
    client.ready().await?;
    let request = Request::post("/echo").header("host", "peer").body(Full::new(body.clone()))?;
    let response = client.send_request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(format!("the peer answered {}", response.status()).into());
    }
    let back = Body::new(response.into_body()).collect().await?.to_bytes();
    if back != body { Err("the peer sent something else back".into()) } else { Ok(()) }
}
