//! One mio loop for links, TCP connections and a timer: what either says in a line goes back to it.
//!
//! ```text
//! cargo run --release --features mio --example event_loop -- serve parrot             # prints its TCP port
//! cargo run --release --features mio --example event_loop -- client parrot hello you  # over slipring
//! nc 127.0.0.1 PORT                                                                   # over TCP
//! ```
//!
//! Expect from the server a line for each client that comes and goes, and once a second, where that
//! has changed, how many lines it has sent back.

use std::collections::HashMap;
use std::error::Error;
use std::io::{ErrorKind, Read, Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slipring::error::{TryRecvError, TrySendError};
use slipring::{Connection, Context};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LINKS: Token = Token(0);
const TCP: Token = Token(1);
const TICK: Duration = Duration::from_secs(1);

/// The longest line. A client that sends a longer one, or reads none of ours, is dropped.
const LONGEST: usize = 64 << 10;

/// Whoever talks to the server. What waits for room is kept, a message or bytes at a time.
enum Client {
    Link(Box<Connection>, Option<Vec<u8>>),
    Tcp(TcpStream, Vec<u8>),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", name] => serve(name),
        ["client", name, ref lines @ ..] => say(name, lines),
        _ => Err("usage: event_loop serve NAME | client NAME LINE...".into()),
    };
    match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("event_loop: {error:#}"),
    }
    ExitCode::FAILURE
}

fn serve(name: &str) -> Result<()> {
    let context = Context::new()?;
    let mut links = context.listen(name)?;
    let mut tcp = TcpListener::bind("127.0.0.1:0".parse()?)?;
    let mut poll = Poll::new()?;
    poll.registry().register(&mut links, LINKS, Interest::READABLE)?;
    poll.registry().register(&mut tcp, TCP, Interest::READABLE)?;
    writeln!(stdout(), "listening on {name} and {}", tcp.local_addr()?)?;
    let mut clients = HashMap::new();
    let (mut next, mut lines, mut told) = (2, 0, 0);
    let mut events = Events::with_capacity(64);
    let mut tick = Instant::now() + TICK;
    loop {
        match poll.poll(&mut events, Some(tick.saturating_duration_since(Instant::now()))) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        let mut ready: Vec<Token> = events.iter().map(|event| event.token()).collect();
        let mut came = Vec::new();
        if Instant::now() >= tick {
            if lines != told {
                writeln!(stdout(), "{lines} lines, {} clients", clients.len())?;
            }
            (told, tick) = (lines, Instant::now() + TICK);
            ready.push(LINKS); // now and then besides: who connects and stays silent is dropped
        }
        if ready.contains(&LINKS) {
            // What fails here fails one client.
            while let Some(link) =
                links.try_accept().inspect_err(|e| eprintln!("{e}")).unwrap_or(None)
            {
                came.push(Client::Link(Box::new(link), None));
            }
        }
        if ready.contains(&TCP) {
            while let Ok((stream, _)) = tcp.accept() {
                came.push(Client::Tcp(stream, Vec::new()));
            }
        }
        for mut client in came {
            let token = Token(next);
            next += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(client.source(), token, interest)?;
            writeln!(stdout(), "client {} came by {}", token.0, client.way())?;
            clients.insert(token, client);
            ready.push(token); // what it sent before it was registered is found by looking
        }
        for token in ready {
            let Some(client) = clients.get_mut(&token) else { continue };
            let end = match client.serve(&mut lines) {
                Ok(true) => continue,
                Ok(false) => "left".into(),
                Err(error) => format!("{error:#}"),
            };
            poll.registry().deregister(client.source())?;
            clients.remove(&token);
            writeln!(stdout(), "client {}: {end}", token.0)?;
        }
    }
}

impl Client {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Link(link, _) => &mut **link,
            Self::Tcp(stream, _) => stream,
        }
    }

    fn way(&self) -> &str {
        if matches!(self, Self::Link(..)) { "slipring" } else { "TCP" }
    }

    /// Sends back what there is, until nothing is left or there is no room. `false`: it has left.
    fn serve(&mut self, lines: &mut u64) -> Result<bool> {
        match self {
            Self::Link(link, waiting) => loop {
                if let Some(line) = waiting {
                    match link.sender().try_send(line) {
                        Ok(()) => (*waiting, *lines) = (None, *lines + 1),
                        Err(TrySendError::Full { .. }) => return Ok(true),
                        Err(error) => return Err(error.into()),
                    }
                }
                match link.receiver().try_recv() {
                    Ok(Some(line)) => *waiting = Some(line),
                    Ok(None) => return Ok(false),
                    Err(TryRecvError::Empty) => return Ok(true),
                    Err(error) => return Err(error.into()),
                }
            },
            Self::Tcp(stream, waiting) => loop {
                let whole = waiting.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let mut bytes = [0; 4096];
                let moved = if whole > 0 {
                    stream.write(&waiting[..whole]).inspect(|count| {
                        *lines +=
                            waiting.drain(..count).filter(|byte| *byte == b'\n').count() as u64;
                    })
                } else {
                    stream.read(&mut bytes).inspect(|count| waiting.extend(&bytes[..*count]))
                };
                match moved {
                    Ok(0) => return Ok(false),
                    Ok(_) if waiting.len() > LONGEST => return Err("the line is too long".into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                    Err(error) => return Err(error.into()),
                }
            },
        }
    }
}

fn say(name: &str, lines: &[&str]) -> Result<()> {
    let mut link = Context::new()?.connect(name)?;
    for line in lines {
        link.send(line.as_bytes())?;
        let echo = link.recv()?.ok_or("the server closed the connection")?;
        writeln!(stdout(), "{}", String::from_utf8_lossy(&echo))?;
    }
    Ok(link.close()?)
}
