//! Serves the models that test suites of Triton clients expect.
//!
//! ```text
//! cargo run --release -p slipring-triton --example triton_server -- --http 127.0.0.1:8000 --grpc 127.0.0.1:8001
//! cargo run --release -p slipring-triton --example triton_client -- 127.0.0.1:8000
//! ```
//!
//! The server prints each bound address on a line of its own: `http 127.0.0.1:8000`. `--help` lists the options.
//! Ctrl-C or SIGTERM shuts the server down.

mod models;

use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser};
use slipring::region::SigbusGuard;
use slipring_triton::{Front, Protocol, Server};
use tokio::signal::unix::{SignalKind, signal};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Serves the models that test suites of Triton clients expect, over HTTP and gRPC.
///
/// Without an address the server listens on 127.0.0.1:8000 for HTTP and on 127.0.0.1:8001 for gRPC.
#[derive(Parser)]
#[command(name = "triton_server")]
struct Options {
    /// Listens for HTTP on a TCP address; port 0 is any free port [repeatable]
    #[arg(long, value_name = "ADDRESS")]
    http: Vec<String>,
    /// Listens for gRPC on a TCP address; port 0 is any free port [repeatable]
    #[arg(long, value_name = "ADDRESS")]
    grpc: Vec<String>,
    /// Listens for HTTP on a Unix socket [repeatable]
    #[arg(long, value_name = "PATH")]
    http_unix: Vec<PathBuf>,
    /// Listens for gRPC on a Unix socket [repeatable]
    #[arg(long, value_name = "PATH")]
    grpc_unix: Vec<PathBuf>,
    /// Serves metrics in Prometheus' format, at /metrics, on a TCP address [repeatable]
    #[arg(long, value_name = "ADDRESS")]
    metrics: Vec<String>,
    /// The server's name in its metadata; clients of the reference server expect the default
    #[arg(long, default_value = "triton")]
    name: String,
    /// Whether clients may register shared memory
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    allow_client_shm: bool,
    /// The kernel copies clients' memory; else models work in place under the SIGBUS guard
    #[arg(long)]
    by_copy: bool,
}

impl Options {
    fn addresses(&self) -> Vec<(Protocol, &str)> {
        if self.http.len() + self.grpc.len() + self.http_unix.len() + self.grpc_unix.len() == 0 {
            return vec![(Protocol::Http, "127.0.0.1:8000"), (Protocol::Grpc, "127.0.0.1:8001")];
        }
        let http = self.http.iter().map(|address| (Protocol::Http, &**address));
        http.chain(self.grpc.iter().map(|address| (Protocol::Grpc, &**address))).collect()
    }

    fn paths(&self) -> impl Iterator<Item = (Protocol, &Path)> {
        let http = self.http_unix.iter().map(|path| (Protocol::Http, &**path));
        http.chain(self.grpc_unix.iter().map(|path| (Protocol::Grpc, &**path)))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    slipring_triton::raise_descriptor_limit()?;
    if !options.by_copy {
        // The guard comes before the first access. An application may install it; a library never does.
        SigbusGuard::install()?;
    }
    let front = models::add_all(Front::builder())
        .name(&*options.name)
        .client_shared_memory(options.allow_client_shm)
        .in_place(!options.by_copy)
        .build()?;
    let mut server = Server::new(front);
    let name = |protocol| match protocol {
        Protocol::Http => "http",
        Protocol::Grpc => "grpc",
        Protocol::Metrics => "metrics",
    };
    let metrics = options.metrics.iter().map(|address| (Protocol::Metrics, &**address));
    for (protocol, address) in options.addresses().into_iter().chain(metrics) {
        println!("{} {}", name(protocol), server.listen(protocol, address).await?);
    }
    for (protocol, path) in options.paths() {
        println!("{} {}", name(protocol), server.listen_unix(protocol, path)?);
    }
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let ended = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    server.serve(ended).await?;
    Ok(())
}
