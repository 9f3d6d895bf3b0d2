//! The peer process: it sends each message back, and tells what it uses.

use std::fs;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use slipring::{Address, Reactor};

use super::{Options, floor};
use crate::Outcome;

/// How long the peer may take to start.
const START: Duration = Duration::from_secs(10);

/// Requests of the first process, over the socket that is the peer's standard input.
pub const CPU: u8 = b'c';
const HELD: u8 = b'h';
const FLOOR: u8 = b'f';

/// The peer process. Dropping kills it.
pub struct Peer {
    child: Child,
    pub socket: UnixStream,
    pub address: Address,
}

/// The memory and descriptors of the peer process.
pub struct Held {
    /// KiB of resident memory.
    pub resident: u64,
    pub descriptors: u64,
}

impl Peer {
    /// Starts the process and waits until it listens.
    pub fn start(options: &Options) -> Outcome<Self> {
        let address = Address::fresh();
        let name = address.to_string();
        let (socket, theirs) = UnixStream::pair()?;
        let child = Command::new(std::env::current_exe()?)
            .args(["--serve", name.trim_start_matches('@'), "--links", &options.links.to_string()])
            .args(["--spin", if options.spin { "yes" } else { "no" }])
            .args(["--topic", if options.topic { "yes" } else { "no" }])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let peer = Self { child, socket, address };
        peer.socket.set_read_timeout(Some(START))?;
        peer.cpu()?;
        Ok(peer)
    }

    /// Returns the CPU time that the process has used.
    pub fn cpu(&self) -> Outcome<Duration> {
        let [nanos] = self.ask(CPU)?;
        Ok(Duration::from_nanos(nanos))
    }

    /// Returns the memory and descriptors of the process.
    pub fn held(&self) -> Outcome<Held> {
        let [resident, descriptors] = self.ask(HELD)?;
        Ok(Held { resident, descriptors })
    }

    /// Asks for some words.
    pub fn ask<const N: usize>(&self, what: u8) -> Outcome<[u64; N]> {
        (&self.socket).write_all(&[what])?;
        let mut words = [[0; 8]; N];
        (&self.socket).read_exact(words.as_flattened_mut())?;
        Ok(words.map(u64::from_le_bytes))
    }

    /// Announces the descriptors of the floor.
    pub fn start_floor(&self) -> Outcome<()> {
        Ok((&self.socket).write_all(&[FLOOR])?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the peer process until the first process ends.
pub fn serve(name: &str, options: &Options) -> Outcome<()> {
    let context = options.context()?;
    let reactor = Reactor::spawn(&context)?;
    let serving = reactor.clone();
    reactor.accept_with(context.listen(name)?, move |accepted| {
        match accepted.and_then(|connection| serving.adopt(connection)) {
            Ok(link) => link.on_message(|link, message| link.write(message.to_vec())),
            Err(error) => eprintln!("many_links, the peer: {error:#}"),
        }
        ControlFlow::Continue(())
    })?;
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut asked = [0];
    while socket.read(&mut asked)? > 0 {
        match asked[0] {
            FLOOR => floor::serve(&socket, options.links)?,
            HELD => socket.write_all(held()?.as_flattened())?,
            _ => socket.write_all(&cpu().to_le_bytes())?,
        }
    }
    Ok(())
}

/// Returns the nanoseconds of CPU time that this process has used.
pub fn cpu() -> u64 {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}

fn held() -> Outcome<[[u8; 8]; 2]> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let resident = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let resident = resident.and_then(|line| line.trim().split(' ').next()).ok_or("no Rss")?;
    let descriptors = fs::read_dir("/proc/self/fd")?.count() as u64;
    Ok([resident.parse()?, descriptors].map(u64::to_le_bytes))
}
