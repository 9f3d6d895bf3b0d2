//! Serves what this process's links do, as a page that Prometheus reads:
//!
//!     cargo run --features metrics,tokio --example metrics
//!     curl http://127.0.0.1:9464/metrics
//!
//! Two threads exchange a thousand messages a second. `--port 0` takes any free port; the first line says which.

use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use lexopt::ValueExt;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};
use slipring::Context;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = lexopt::Parser::from_env();
    let mut port: u16 = 9464;
    while let Some(argument) = arguments.next()? {
        match argument {
            lexopt::Arg::Long("port") => port = arguments.value()?.parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    let registry = Registry::new();
    let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build()?;
    let provider = SdkMeterProvider::builder().with_reader(exporter).build();
    slipring::metrics::observe(&provider.meter("slipring"));

    let name = format!("@slipring-metrics-{}", std::process::id());
    let listener = Context::new()?.listen(&name)?;
    thread::spawn(move || echo(listener));
    thread::spawn(move || ask(&name));

    let page = move || async move {
        let text = TextEncoder::new().encode_to_string(&registry.gather());
        text.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    };
    let socket = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("http://{}/metrics", socket.local_addr()?);
    axum::serve(socket, Router::new().route("/metrics", get(page))).await?;
    Ok(())
}

/// Sends each message of one peer back.
fn echo(mut listener: slipring::Listener) -> slipring::Result<()> {
    let mut link = listener.accept()?;
    while let Some(message) = link.recv()? {
        link.send(&message)?;
    }
    Ok(())
}

/// Sends a message each millisecond, and waits for its echo.
fn ask(name: &str) -> slipring::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut link = Context::new()?.connect_retry(name, deadline)?;
    while link.send(b"how much, how often, how long?").is_ok() && link.recv()?.is_some() {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
