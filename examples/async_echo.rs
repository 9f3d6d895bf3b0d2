//! Async round trips over slipring beside the same over a Unix socket of tokio's.
//!
//! ```text
//! cargo run --release --features tokio --example async_echo
//! ```
//!
//! It starts its own peer process; both run a single-threaded runtime. Slices of slipring and of the
//! socket alternate; a figure is the median of its slices. The last line is
//! `8 B: slipring … µs, tokio::net::UnixStream … µs, ratio …`.

use std::error::Error;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use slipring::tokio::{AsyncConnection, AsyncListener};
use slipring::{Address, Context};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Round trips of one slice, and slices of each kind.
const ROUNDS: u32 = 2000;
const SLICES: usize = 50;

/// The peer process. Killed when dropped.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match std::env::args().nth(1) {
        Some(name) => runtime.block_on(echo(&name)),
        None => runtime.block_on(measure()),
    }
}

/// The Unix socket's abstract address beside the link's.
fn socket_address(name: &str) -> Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    Ok(std::os::unix::net::SocketAddr::from_abstract_name(format!("{name}-socket"))?)
}

async fn measure() -> Result<()> {
    let address = Address::fresh();
    let name = address.to_string().trim_start_matches('@').to_owned();
    let mut listener = AsyncListener::new(Context::new()?.listen(&address)?)?;
    let socket = std::os::unix::net::UnixListener::bind_addr(&socket_address(&name)?)?;
    socket.set_nonblocking(true)?;
    let socket = UnixListener::from_std(socket)?;
    let _peer = Peer(Command::new(std::env::current_exe()?).arg(&name).spawn()?);
    let mut link = listener.accept().await?;
    let (mut stream, _) = socket.accept().await?;
    let mut slices = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        let start = Instant::now();
        for round in 0..u64::from(ROUNDS) {
            link.send(&round.to_le_bytes()).await?;
            let back = link.recv().await?.ok_or("the peer has closed")?;
            assert_eq!(back, round.to_le_bytes());
        }
        slices.0.push(start.elapsed() / ROUNDS);
        let start = Instant::now();
        for round in 0..u64::from(ROUNDS) {
            stream.write_all(&round.to_le_bytes()).await?;
            assert_eq!(stream.read_u64_le().await?, round);
        }
        slices.1.push(start.elapsed() / ROUNDS);
    }
    let (ours, theirs) = (median(slices.0), median(slices.1));
    println!(
        "8 B: slipring {:.2} µs, tokio::net::UnixStream {:.2} µs, ratio {:.2}",
        ours.as_secs_f64() * 1e6,
        theirs.as_secs_f64() * 1e6,
        ours.as_secs_f64() / theirs.as_secs_f64(),
    );
    Ok(())
}

fn median(mut slices: Vec<Duration>) -> Duration {
    slices.sort();
    slices[slices.len() / 2]
}

/// The peer: sends back what comes, on both.
async fn echo(name: &str) -> Result<()> {
    let mut link = AsyncConnection::connect(&Context::new()?, name).await?;
    let socket = std::os::unix::net::UnixStream::connect_addr(&socket_address(name)?)?;
    socket.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(socket)?;
    let echo_link = async {
        while let Some(message) = link.recv().await? {
            link.send(&message).await?;
        }
        Ok::<_, slipring::Error>(())
    };
    let echo_stream = async {
        let mut bytes = [0; 8];
        while stream.read_exact(&mut bytes).await.is_ok() {
            stream.write_all(&bytes).await?;
        }
        Ok::<_, std::io::Error>(())
    };
    let (link, stream) = tokio::join!(echo_link, echo_stream);
    link?;
    Ok(stream?)
}
