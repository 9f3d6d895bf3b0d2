//! gRPC over slipring, with tonic's own server and channel, beside gRPC over a Unix socket.
//!
//! ```text
//! cargo run --release --features tokio --example grpc_over_slipring
//! ```
//!
//! The source of the streams alone differs from any other service: the connector and the incoming streams are
//! [`Connection::into_stream`]s. The program starts its own peer, and both run a single-threaded runtime. Slices of both
//! transports alternate (`--slices 30` of each).
//!
//! Expect one line for a short body and one for a long body: the median time of a unary call.
//!
//! `echo.rs` is made from `echo.proto`, without protoc, by
//! `cargo run --manifest-path examples/grpc_over_slipring/generate/Cargo.toml && cargo fmt`.

mod echo;

use std::io::IoSlice;
use std::pin::Pin;
use std::task::Poll;

use echo::Payload;
use echo::echo_client::EchoClient;
use echo::echo_server::{Echo, EchoServer};
use hyper_util::rt::TokioIo;
use prost::bytes::Bytes;
use slipring::Context;
use slipring::tokio::{AsyncConnection, AsyncListener, AsyncStream};
use slipring_bench::Outcome;
use slipring_bench::against_socket::{self, Part, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status};
use tower::service_fn;

const LONGEST: usize = 16 << 20;

type Client = EchoClient<Channel>;

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match against_socket::part()? {
        Part::Serve(name) => runtime.block_on(serve(&name)),
        Part::Measure(slices) => runtime.block_on(measure(slices)),
    }
}

struct Parrot;

#[tonic::async_trait]
impl Echo for Parrot {
    async fn unary(
        &self,
        request: Request<Payload>,
    ) -> std::result::Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

/// A stream of which tonic's server is told who is at its other end: by a user id.
struct Link(AsyncStream);

impl Connected for Link {
    type ConnectInfo = u32;

    fn connect_info(&self) -> u32 {
        self.0.peer().uid()
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// The peer: serves the same over both.
async fn serve(name: &str) -> Outcome<()> {
    let listener = AsyncListener::new(Context::new()?.listen(name)?)?;
    let links = futures_util::stream::unfold(listener, async |mut listener| {
        let accepted = listener.accept().await;
        let link = accepted.map(|link| Link(link.into_stream())).map_err(std::io::Error::other);
        Some((link, listener))
    });
    let sockets = UnixListenerStream::new(against_socket::listen(name)?);
    let service = EchoServer::new(Parrot).max_decoding_message_size(LONGEST);
    let server = Server::builder().add_service(service);
    tokio::try_join!(
        server.clone().serve_with_incoming(links),
        server.serve_with_incoming(sockets)
    )?;
    Ok(())
}

async fn measure(slices: usize) -> Outcome<()> {
    let name = against_socket::fresh_name();
    let _peer = Peer::start(&name)?;
    against_socket::wait_for(&name).await?;
    for (what, len, rounds) in [("64 B", 64, 300), ("1 MiB", 1 << 20, 10)] {
        let (ours, theirs) = (over_slipring(&name).await?, over_socket(&name).await?);
        let body = Bytes::from(vec![7; len]);
        against_socket::compare(
            what,
            (slices, rounds),
            ours,
            theirs,
            async |client: &mut Client| {
                let back = client.unary(Payload { body: body.clone() }).await?.into_inner();
                if back.body == body { Ok(()) } else { Err("the peer sent something else".into()) }
            },
        )
        .await?;
    }
    Ok(())
}

async fn over_slipring(name: &str) -> Outcome<Client> {
    let (context, name) = (Context::new()?, name.to_owned());
    let connector = service_fn(move |_: Uri| {
        let (context, name) = (context.clone(), name.clone());
        async move {
            let link = AsyncConnection::connect(&context, name.as_str()).await?;
            Ok::<_, slipring::Error>(TokioIo::new(link.into_stream()))
        }
    });
    let channel = Endpoint::from_static("http://peer").connect_with_connector(connector).await?;
    Ok(EchoClient::new(channel).max_decoding_message_size(LONGEST))
}

async fn over_socket(name: &str) -> Outcome<Client> {
    let name = name.to_owned();
    let connector = service_fn(move |_: Uri| {
        let name = name.clone();
        async move { against_socket::connect(&name).map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://peer").connect_with_connector(connector).await?;
    Ok(EchoClient::new(channel).max_decoding_message_size(LONGEST))
}
