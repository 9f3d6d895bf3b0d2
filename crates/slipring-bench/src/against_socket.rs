//! Times a protocol over slipring beside the same protocol over a Unix socket: the peer process, both addresses, slices
//! that alternate, and a line with the ratio.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use slipring::Address;

use crate::Outcome;
use crate::runner::median;

/// The peer process, which runs this program with a name as its argument. Dropping kills it.
pub struct Peer(Child);

impl Peer {
    /// Starts the process.
    pub fn start(name: &str) -> Outcome<Self> {
        Ok(Self(Command::new(std::env::current_exe()?).args(["--serve", name]).spawn()?))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The part of this process.
pub enum Part {
    /// Measures so many slices of each transport (`--slices`).
    Measure(usize),
    /// Serves under this name (`--serve`, hidden).
    Serve(String),
}

/// Returns the part that the command line asks for, in a process whose heap keeps its pages.
pub fn part() -> Outcome<Part> {
    keep_pages()?;
    use lexopt::prelude::{Long, ValueExt};
    let mut words = lexopt::Parser::from_env();
    let mut part = Part::Measure(30);
    while let Some(word) = words.next()? {
        part = match word {
            Long("slices") => Part::Measure(words.value()?.parse::<usize>()?.max(1)),
            Long("serve") => Part::Serve(words.value()?.string()?),
            _ => return Err(word.unexpected().into()),
        };
    }
    Ok(part)
}

/// Starts this program once more, with a glibc that keeps freed pages. Otherwise both transports spend most of the time of
/// a long body on pages that are returned and allocated.
fn keep_pages() -> Outcome<()> {
    const KEEP: [&str; 3] = ["MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"];
    if std::env::var_os(KEEP[0]).is_some() {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe()?);
    again.args(std::env::args_os().skip(1)).envs(KEEP.map(|name| (name, "268435456")));
    // `exec` returns only if it fails.
    Err(again.exec().into())
}

/// Returns a name for both addresses that no other process uses.
pub fn fresh_name() -> String {
    Address::fresh().to_string().trim_start_matches('@').to_owned()
}

/// Returns the abstract address of the Unix socket.
fn socket_address(name: &str) -> Outcome<SocketAddr> {
    Ok(SocketAddr::from_abstract_name(format!("{name}-socket"))?)
}

/// Listens on the Unix socket.
pub fn listen(name: &str) -> Outcome<tokio::net::UnixListener> {
    let socket = std::os::unix::net::UnixListener::bind_addr(&socket_address(name)?)?;
    socket.set_nonblocking(true)?;
    Ok(tokio::net::UnixListener::from_std(socket)?)
}

/// Connects to the Unix socket.
pub fn connect(name: &str) -> Outcome<tokio::net::UnixStream> {
    let socket = std::os::unix::net::UnixStream::connect_addr(&socket_address(name)?)?;
    socket.set_nonblocking(true)?;
    Ok(tokio::net::UnixStream::from_std(socket)?)
}

/// Waits until the peer serves. It opens both addresses at once.
pub async fn wait_for(name: &str) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while connect(name).is_err() {
        if Instant::now() > deadline {
            return Err("the peer does not start".into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Times `slices` slices of `rounds` rounds over each transport, in turn, and prints the median of a round over each and
/// the median of the ratios.
pub async fn compare<T>(
    title: &str,
    (slices, rounds): (usize, u32),
    mut ours: T,
    mut theirs: T,
    mut round: impl AsyncFnMut(&mut T) -> Outcome<()>,
) -> Outcome<()> {
    let mut times = [Vec::new(), Vec::new()];
    // The first pair of slices does not count.
    for _ in 0..=slices {
        for (at, client) in [&mut ours, &mut theirs].into_iter().enumerate() {
            let start = Instant::now();
            for _ in 0..rounds {
                round(client).await?;
            }
            times[at].push(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds));
        }
    }
    for times in &mut times {
        times.remove(0);
    }
    let ratios: Vec<f64> =
        times[0].iter().zip(&times[1]).map(|(ours, theirs)| ours / theirs).collect();
    let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
    let [ours, theirs] = times.each_ref().map(|times| middle(times));
    let ratio = middle(&ratios);
    println!("{title}: slipring {ours:.1} µs, Unix socket {theirs:.1} µs, ratio {ratio:.2}");
    Ok(())
}
