//! Serves the models that test suites of Triton clients expect.
//!
//! ```text
//! cargo run --release -p slipring-triton --example triton_server -- --http 127.0.0.1:8000 --grpc 127.0.0.1:8001
//! cargo run --release -p slipring-triton --example triton_client -- 127.0.0.1:8000
//! ```
//!
//! The server prints each bound address on a line of its own: `http 127.0.0.1:8000`. Port 0 is any free port. These
//! options may be repeated: `--http ADDRESS`, `--grpc ADDRESS`, `--http-unix PATH`, `--grpc-unix PATH`. Without any of
//! them the server uses the two addresses above. `--allow-client-shm=false` refuses shared memory. With `--by-copy`
//! the kernel copies clients' memory; else models work in place under the SIGBUS guard. Ctrl-C or SIGTERM shuts the
//! server down.

mod models;

use slipring::region::SigbusGuard;
use slipring_triton::{Front, Protocol, Server};
use tokio::signal::unix::{SignalKind, signal};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Options {
    addresses: Vec<(Protocol, String)>,
    paths: Vec<(Protocol, String)>,
    client_shared_memory: bool,
    in_place: bool,
}

fn options() -> Result<Options> {
    use lexopt::prelude::*;
    let (mut addresses, mut paths) = (Vec::new(), Vec::new());
    let (mut client_shared_memory, mut in_place) = (true, true);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("http") => addresses.push((Protocol::Http, arguments.value()?.string()?)),
            Long("grpc") => addresses.push((Protocol::Grpc, arguments.value()?.string()?)),
            Long("http-unix") => paths.push((Protocol::Http, arguments.value()?.string()?)),
            Long("grpc-unix") => paths.push((Protocol::Grpc, arguments.value()?.string()?)),
            Long("allow-client-shm") => client_shared_memory = arguments.value()?.parse()?,
            Long("by-copy") => in_place = false,
            other => return Err(other.unexpected().into()),
        }
    }
    if addresses.is_empty() && paths.is_empty() {
        addresses.push((Protocol::Http, "127.0.0.1:8000".to_owned()));
        addresses.push((Protocol::Grpc, "127.0.0.1:8001".to_owned()));
    }
    Ok(Options { addresses, paths, client_shared_memory, in_place })
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options()?;
    slipring_triton::raise_descriptor_limit()?;
    if options.in_place {
        // The guard comes before the first access. An application may install it; a library never does.
        SigbusGuard::install()?;
    }
    let front = models::add_all(Front::builder())
        .client_shared_memory(options.client_shared_memory)
        .in_place(options.in_place)
        .build()?;
    let mut server = Server::new(front);
    let name = |protocol| if protocol == Protocol::Http { "http" } else { "grpc" };
    for (protocol, address) in options.addresses {
        println!("{} {}", name(protocol), server.listen(protocol, &address).await?);
    }
    for (protocol, path) in options.paths {
        println!("{} {}", name(protocol), server.listen_unix(protocol, &path)?);
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
