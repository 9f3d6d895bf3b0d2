//! Serves the models that test suites of Triton clients expect.
//!
//! ```text
//! cargo run --release -p slipring-triton --example triton_server -- --http 127.0.0.1:8000 --grpc 127.0.0.1:8001
//! cargo run --release -p slipring-triton --example triton_client -- 127.0.0.1:8000
//! ```
//!
//! The server prints each bound address on a line of its own: `http 127.0.0.1:8000`. `--help` lists the options.
//! Ctrl-C or SIGTERM shuts the server down.
//!
//! With `--model-control-mode explicit` clients load and unload the models:
//!
//! ```text
//! cargo run --release -p slipring-triton --example triton_server -- --model-control-mode explicit --load-model simple
//! curl -X POST 127.0.0.1:8000/v2/repository/models/identity_fp32/load
//! ```

mod models;
mod repository;

use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser, ValueEnum};
use slipring::region::SigbusGuard;
use slipring_triton::{Front, LoadParameters, ModelRepository, Protocol, Server};
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
    /// Whether all models are loaded for ever, or clients load and unload them
    #[arg(long, value_name = "MODE", default_value = "none")]
    model_control_mode: ModelControlMode,
    /// Loads a model at the start, with --model-control-mode explicit; * is all of them [repeatable]
    #[arg(long, value_name = "NAME")]
    load_model: Vec<String>,
    /// Whether clients may register shared memory
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    allow_client_shm: bool,
    /// The kernel copies clients' memory; else models work in place under the SIGBUS guard
    #[arg(long)]
    by_copy: bool,
}

/// Who loads models.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModelControlMode {
    /// The server loads all at its start.
    None,
    /// Clients load and unload them.
    Explicit,
}

impl Options {
    /// Builds the front and loads its models.
    async fn front(&self) -> Result<Front> {
        let builder = Front::builder()
            .name(&*self.name)
            .client_shared_memory(self.allow_client_shm)
            .in_place(!self.by_copy);
        if self.model_control_mode == ModelControlMode::None {
            if !self.load_model.is_empty() {
                return Err("--load-model needs --model-control-mode explicit".into());
            }
            return Ok(models::add_all(builder).build()?);
        }
        let front = builder.repository(repository::Reference).build()?;
        let all = repository::Reference.index();
        for name in &self.load_model {
            let names = if name == "*" { &all } else { std::slice::from_ref(name) };
            for name in names {
                front.load_model(name, LoadParameters::new()).await?;
            }
        }
        Ok(front)
    }

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
    let mut server = Server::new(options.front().await?);
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
