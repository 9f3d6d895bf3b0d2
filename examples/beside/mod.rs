//! What the examples share that time slipring beside a Unix socket: the peer process, the addresses,
//! slices that alternate, and the line that says what came of them.

use std::error::Error;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use slipring::Address;

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The peer process, this program with a name as its argument. Killed when dropped.
pub struct Peer(Child);

impl Peer {
    pub fn start(name: &str) -> Result<Self> {
        Ok(Self(Command::new(std::env::current_exe()?).args(["--serve", name]).spawn()?))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Slices of each kind (`--slices`), or the name to serve under (`--serve`, hidden).
pub enum Part {
    Measure(usize),
    Serve(String),
}

/// What the command line asks for, in a process whose heap keeps its pages.
pub fn part() -> Result<Part> {
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

/// Has glibc keep what is freed, by starting this program again. Else both ways spend most of the time
/// of a long body on pages that are given back and taken anew.
fn keep_pages() -> Result<()> {
    const KEEP: [&str; 3] = ["MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"];
    if std::env::var_os(KEEP[0]).is_some() {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe()?);
    again.args(std::env::args_os().skip(1)).envs(KEEP.map(|name| (name, "268435456")));
    Err(again.exec().into()) // only where it fails
}

/// A name for both addresses that nobody else has.
pub fn fresh_name() -> String {
    Address::fresh().to_string().trim_start_matches('@').to_owned()
}

/// The Unix socket's abstract address beside the link's.
fn socket_address(name: &str) -> Result<SocketAddr> {
    Ok(SocketAddr::from_abstract_name(format!("{name}-socket"))?)
}

pub fn listen(name: &str) -> Result<tokio::net::UnixListener> {
    let socket = std::os::unix::net::UnixListener::bind_addr(&socket_address(name)?)?;
    socket.set_nonblocking(true)?;
    Ok(tokio::net::UnixListener::from_std(socket)?)
}

pub fn connect(name: &str) -> Result<tokio::net::UnixStream> {
    let socket = std::os::unix::net::UnixStream::connect_addr(&socket_address(name)?)?;
    socket.set_nonblocking(true)?;
    Ok(tokio::net::UnixStream::from_std(socket)?)
}

/// Waits until the peer serves, which it does on both addresses at once.
pub async fn wait_for(name: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while connect(name).is_err() {
        if Instant::now() > deadline {
            return Err("the peer does not start".into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Times `slices` slices of `rounds` rounds over each, in turn, and prints the medians of a round and
/// of the pairs' ratios.
pub async fn compare<T>(
    what: &str,
    (slices, rounds): (usize, u32),
    mut ours: T,
    mut theirs: T,
    mut round: impl AsyncFnMut(&mut T) -> Result<()>,
) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    // One pair more: the first is thrown away.
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
    let ratios = times[0].iter().zip(&times[1]).map(|(ours, theirs)| ours / theirs).collect();
    let [ours, theirs] = times.map(median);
    let ratio = median(ratios);
    println!("{what}: slipring {ours:.1} µs, Unix socket {theirs:.1} µs, ratio {ratio:.2}");
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
