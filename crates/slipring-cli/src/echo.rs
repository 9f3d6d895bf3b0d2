//! `slipring echo`: a listener that sends each message back.

use std::fmt;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use slipring::message::MessageKind;
use slipring::{Connection, Context, Error};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::process::Process;
use crate::quantity;

/// The arguments of `slipring echo`.
#[derive(Debug, Args)]
pub(crate) struct Echo {
    /// The address to listen on: a name, or any address of slipring
    address: String,
    /// End after the first peer
    #[arg(long)]
    once: bool,
    /// End if no peer comes for this long
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    timeout: Option<Duration>,
}

/// The listener is there.
#[derive(Debug, Serialize)]
struct Listening {
    listening: String,
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listening on {}", self.listening)
    }
}

/// The counts of one peer.
#[derive(Debug, Serialize)]
struct Served {
    peer: String,
    pid: Option<u32>,
    uid: u32,
    messages: u64,
    bytes: u64,
    /// Why the link ended, if not in order.
    error: Option<String>,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, messages, bytes, .. } = self;
        write!(f, "{peer}: {messages} messages and {bytes} bytes went back")?;
        self.error.as_ref().map_or(Ok(()), |error| write!(f, "; {error}"))
    }
}

impl Echo {
    /// Serves until the user wants the end.
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let interrupt = Interrupt::new()?;
        let mut listener = Context::new()?.listen(self.address.as_str())?;
        let address = listener.address().map_or(self.address, ToString::to_string);
        output.show(&Listening { listening: address })?;
        let mut peers: Vec<JoinHandle<Result<(), Failure>>> = Vec::new();
        let mut lonely_since = Instant::now();
        let mut ended = Ok(());
        while ended.is_ok() && !interrupt.is_set() {
            let served = peers.extract_if(.., |peer| peer.is_finished()).collect::<Vec<_>>();
            let had_peers = !served.is_empty() || !peers.is_empty();
            ended = served.into_iter().try_for_each(joined);
            match listener.accept_deadline(Interrupt::slice(None)) {
                Ok(link) => {
                    let interrupt = interrupt.clone();
                    let serve = move || output.show(&serve(link, &interrupt));
                    peers.push(thread::spawn(serve));
                    if self.once {
                        break;
                    }
                }
                Err(error) if error.is_timeout() => {}
                Err(error) => ended = Err(error.into()),
            }
            if had_peers || !peers.is_empty() {
                lonely_since = Instant::now();
            } else if self.timeout.is_some_and(|timeout| lonely_since.elapsed() >= timeout) {
                return Err(Failure::too_late(format!(
                    "no peer has come for {} ms",
                    lonely_since.elapsed().as_millis()
                )));
            }
        }
        if ended.is_err() {
            interrupt.set();
        }
        let served = peers.into_iter().try_for_each(joined);
        ended.and(served)
    }
}

fn joined(peer: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    peer.join().unwrap_or_else(|_| Err(Failure::new("a thread of a peer panicked")))
}

/// Sends each message of a peer back, until it closes the link or the user wants the end.
fn serve(mut link: Connection, interrupt: &Interrupt) -> Served {
    let process = Process::of(link.peer());
    let (pid, uid) = (process.pid(), process.uid());
    let mut served =
        Served { peer: process.to_string(), pid, uid, messages: 0, bytes: 0, error: None };
    let mut buffer = Vec::new();
    let mut until = Interrupt::slice(None);
    loop {
        match send_back(&mut link, &mut buffer, until) {
            Ok(Some(bytes)) => {
                served.messages += 1;
                served.bytes += bytes;
            }
            Ok(None) => return served,
            Err(error) if error.is_timeout() && !interrupt.is_set() => {
                until = Interrupt::slice(None);
            }
            Err(error) if error.is_timeout() => return served,
            Err(error) => {
                served.error = Some(format!("{error:#}"));
                return served;
            }
        }
    }
}

/// Sends the next message back. Returns its bytes, or `None` after the end of the link.
fn send_back(
    link: &mut Connection,
    buffer: &mut Vec<u8>,
    until: Instant,
) -> Result<Option<u64>, Error> {
    let Some(message) = link.receiver().peek_deadline(until)? else { return Ok(None) };
    let kind = message.kind();
    if let MessageKind::TensorRequest(_) = kind {
        let Some(request) = link.receiver().recv_tensor_request()? else { return Ok(None) };
        link.sender().respond_tensors(request.id, &request.tensors)?;
        return Ok(Some(bytes_of(&request.tensors)));
    }
    let metadata = message.metadata().clone();
    if kind == MessageKind::Tensors {
        let tensors = message.into_tensors()?;
        link.sender().send_tensors(&tensors)?;
        return Ok(Some(bytes_of(&tensors)));
    }
    buffer.clear();
    message.bytes().append_to(buffer);
    message.release()?;
    match kind {
        MessageKind::Request(id) => link.sender().respond_with(id, buffer, &metadata)?,
        _ => link.sender().send_with(buffer, &metadata)?,
    }
    Ok(Some(buffer.len() as u64))
}

fn bytes_of(tensors: &slipring::TensorSet) -> u64 {
    tensors.iter().map(|(_, tensor)| tensor.byte_len() as u64).sum()
}
