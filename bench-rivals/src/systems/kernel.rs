//! What the kernel brings: Unix sockets, pipes, TCP over the loopback, eventfds in an epoll.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};

use rustix::pipe::PipeFlags;

use super::{Kind, System};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, receive_fd, send_fd};
use crate::floors::events;
use crate::work::connect::Connect;
use crate::work::fan_in::{FanIn, Part as FanInPart, SENDERS, Send1};
use crate::work::fan_out::{FanOut, Look, Part as FanOutPart, RECEIVERS};
use crate::work::link::End;
use crate::work::{self, Treatment, Work};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Medium {
    Unix { polled: bool },
    Pipe,
    Tcp,
    Eventfd,
}

pub struct Kernel {
    name: &'static str,
    medium: Medium,
}

pub const UNIX: Kernel = Kernel { name: "unix socket", medium: Medium::Unix { polled: false } };
pub const UNIX_POLLED: Kernel =
    Kernel { name: "unix socket, polled", medium: Medium::Unix { polled: true } };
pub const PIPE: Kernel = Kernel { name: "pipe", medium: Medium::Pipe };
pub const TCP: Kernel = Kernel { name: "tcp loopback", medium: Medium::Tcp };
pub const EVENTFD: Kernel = Kernel { name: "eventfd + epoll", medium: Medium::Eventfd };

impl System for Kernel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> Kind {
        Kind::Kernel
    }

    fn options(&self, _work: Work, _bytes: usize) -> String {
        match self.medium {
            Medium::Unix { polled: false } => "SOCK_STREAM, blocking".into(),
            Medium::Unix { polled: true } => "SOCK_STREAM, O_NONBLOCK, read again and again".into(),
            Medium::Pipe => "a pipe each way, blocking".into(),
            Medium::Tcp => "TCP_NODELAY, blocking".into(),
            Medium::Eventfd => "bytes in shared memory".into(),
        }
    }

    fn does(&self, work: Work, _bytes: usize) -> bool {
        let moves = matches!(
            work,
            Work::Trip(Treatment::Filled | Treatment::Copied) | Work::Stream | Work::Footprint
        );
        match (self.medium, work) {
            (Medium::Eventfd, work) => work == Work::Wake,
            (Medium::Unix { polled: true }, work) => moves && work != Work::Footprint,
            (_, Work::Wake | Work::Idle) => true,
            (Medium::Unix { .. } | Medium::Pipe, Work::FanIn | Work::FanOut) => true,
            (Medium::Unix { .. } | Medium::Tcp, Work::Connect) => true,
            _ => moves,
        }
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        match (self.medium, work) {
            (Medium::Eventfd, _) => events::Events::open(setup),
            (medium, Work::FanIn) => FanIn::open(setup, |setup, _| fan_in(medium, setup)),
            (medium, Work::FanOut) => {
                let part = fan_out(medium, setup)?;
                FanOut::over(part, setup)
            }
            (Medium::Tcp, Work::Connect) => connect::<TcpListener>(setup),
            (_, Work::Connect) => connect::<UnixListener>(setup),
            (Medium::Unix { polled }, _) => {
                let socket = unix(setup)?;
                socket.set_nonblocking(polled)?;
                let other = socket.try_clone()?;
                work::over(Streams { reader: socket, writer: other }, work, setup)
            }
            (Medium::Pipe, _) => {
                let (reader, writer) = pipes(setup)?;
                work::over(
                    Streams { reader: reader.into_std(), writer: writer.into_std() },
                    work,
                    setup,
                )
            }
            (Medium::Tcp, _) => {
                let socket = tcp(setup)?;
                let other = socket.try_clone()?;
                work::over(Streams { reader: socket, writer: other }, work, setup)
            }
        }
    }
}

/// Two streams of bytes, in which messages have one length.
struct Streams<R, W> {
    reader: R,
    writer: W,
}

impl<R: Read, W: Write> End for Streams<R, W> {
    fn send(&mut self, mut message: &[u8]) -> Outcome<()> {
        while !message.is_empty() {
            match self.writer.write(message) {
                Ok(written) => message = &message[written..],
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        let mut got = 0;
        while got < message.len() {
            match self.reader.read(&mut message[got..]) {
                Ok(0) => return Err("the peer has closed".into()),
                Ok(more) => got += more,
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn passes(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A connected socket.
fn unix(setup: &Setup) -> Outcome<UnixStream> {
    match setup.role {
        Role::Leader => {
            let (mine, theirs) = UnixStream::pair()?;
            send_fd(setup.socket, 0, theirs.as_fd())?;
            Ok(mine)
        }
        Role::Follower => Ok(UnixStream::from(receive_fd(setup.socket)?.1)),
    }
}

struct Fd(OwnedFd);

impl Fd {
    fn into_std(self) -> std::fs::File {
        std::fs::File::from(self.0)
    }
}

/// What this side reads, and what it writes.
fn pipes(setup: &Setup) -> Outcome<(Fd, Fd)> {
    let (reader, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    send_fd(setup.socket, 0, theirs.as_fd())?;
    let (_, writer) = receive_fd(setup.socket)?;
    Ok((Fd(reader), Fd(writer)))
}

fn tcp(setup: &Setup) -> Outcome<TcpStream> {
    let socket = match setup.role {
        Role::Follower => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            say(setup, u64::from(listener.local_addr()?.port()))?;
            listener.accept()?.0
        }
        Role::Leader => TcpStream::connect((Ipv4Addr::LOCALHOST, hear(setup)? as u16))?,
    };
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Tells the other side's `open` a number.
fn say(setup: &Setup, word: u64) -> Outcome<()> {
    rustix::net::send(setup.socket, &word.to_ne_bytes(), rustix::net::SendFlags::NOSIGNAL)?;
    Ok(())
}

fn hear(setup: &Setup) -> Outcome<u64> {
    let mut word = [0; 8];
    rustix::net::recv(setup.socket, &mut word, rustix::net::RecvFlags::empty())?;
    Ok(u64::from_ne_bytes(word))
}

/// Many to one: datagrams into one socket, or one pipe, into which short writes go whole.
fn fan_in(medium: Medium, setup: &Setup) -> Outcome<FanInPart> {
    let pipe = medium == Medium::Pipe;
    let (receives, sends): (OwnedFd, OwnedFd) = match setup.role {
        Role::Leader if pipe => {
            let (receives, sends) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            send_fd(setup.socket, 0, sends.as_fd())?;
            (receives, sends)
        }
        Role::Leader => {
            let (receives, sends) = UnixDatagram::pair()?;
            send_fd(setup.socket, 0, sends.as_fd())?;
            (receives.into(), sends.into())
        }
        Role::Follower => {
            let (_, sends) = receive_fd(setup.socket)?;
            (sends.try_clone()?, sends)
        }
    };
    if setup.role == Role::Leader {
        drop(sends);
        return Ok(FanInPart::Receiver(Box::new(move |tally| {
            let mut message = [0; work::fan_in::BYTES];
            while !tally.is_done() {
                let got = rustix::io::read(&receives, &mut message)?;
                if got != message.len() {
                    return Err(format!("a message of {got} bytes").into());
                }
                tally.take(&message);
            }
            Ok(())
        })));
    }
    let maker = |_| {
        let sends = sends.try_clone()?;
        let make = move || -> Outcome<Send1> {
            Ok(Box::new(move |message| {
                rustix::io::write(&sends, message)?;
                Ok(())
            }))
        };
        Ok(Box::new(make) as work::fan_in::Maker)
    };
    Ok(FanInPart::Senders((0..SENDERS).map(maker).collect::<Outcome<_>>()?))
}

/// One to many: the message is written once for each.
fn fan_out(medium: Medium, setup: &Setup) -> Outcome<FanOutPart> {
    let bytes = setup.bytes;
    let stream = |_| -> Outcome<std::fs::File> {
        Ok(match (medium, setup.role) {
            (Medium::Pipe, _) => {
                let (reader, writer) = pipes(setup)?;
                if setup.role == Role::Leader { writer } else { reader }.into_std()
            }
            _ => std::fs::File::from(OwnedFd::from(unix(setup)?)),
        })
    };
    let streams = (0..RECEIVERS).map(stream).collect::<Outcome<Vec<_>>>()?;
    if setup.role == Role::Leader {
        let mut streams = streams;
        let mut message = vec![0; bytes];
        return Ok(FanOutPart::Sender(Box::new(move |fill| {
            fill(&mut message);
            for stream in &mut streams {
                stream.write_all(&message)?;
            }
            Ok(())
        })));
    }
    let receiver = |mut stream: std::fs::File| {
        let mut message = vec![0; bytes];
        Box::new(move |look: &mut dyn FnMut(&[u8]) -> Outcome<()>| {
            stream.read_exact(&mut message)?;
            look(&message)
        }) as Look
    };
    Ok(FanOutPart::Receivers(streams.into_iter().map(receiver).collect()))
}

/// A listener of some kind, and how one connects to it.
trait Door: Sized {
    type Stream: Read + Write + 'static;

    fn listen(setup: &Setup) -> Outcome<Self>;
    fn accept(&self) -> Outcome<Self::Stream>;
    fn connect(number: u64, name: &str) -> Outcome<Self::Stream>;
}

impl Door for UnixListener {
    type Stream = UnixStream;

    fn listen(setup: &Setup) -> Outcome<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(setup.name)?)?;
        say(setup, 0)?;
        Ok(listener)
    }

    fn accept(&self) -> Outcome<UnixStream> {
        Ok(UnixListener::accept(self)?.0)
    }

    fn connect(_number: u64, name: &str) -> Outcome<UnixStream> {
        Ok(UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?)
    }
}

impl Door for TcpListener {
    type Stream = TcpStream;

    fn listen(setup: &Setup) -> Outcome<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        say(setup, u64::from(listener.local_addr()?.port()))?;
        Ok(listener)
    }

    fn accept(&self) -> Outcome<TcpStream> {
        let socket = TcpListener::accept(self)?.0;
        socket.set_nodelay(true)?;
        Ok(socket)
    }

    fn connect(number: u64, _name: &str) -> Outcome<TcpStream> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, number as u16))?;
        socket.set_nodelay(true)?;
        Ok(socket)
    }
}

fn connect<D: Door + 'static>(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    let (door, port) = match setup.role {
        Role::Follower => (Some(D::listen(setup)?), 0),
        Role::Leader => (None, hear(setup)?),
    };
    let name = setup.name.to_owned();
    Connect::open(setup, move |_| {
        Ok(Socket(match &door {
            Some(door) => door.accept()?,
            None => D::connect(port, &name)?,
        }))
    })
}

/// A connected socket that blocks.
struct Socket<S>(S);

impl<S: Read + Write> End for Socket<S> {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        Ok(self.0.write_all(message)?)
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        Ok(self.0.read_exact(message)?)
    }
}
