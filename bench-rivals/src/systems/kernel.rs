//! What the kernel brings: Unix sockets, pipes, TCP over the loopback, eventfds in an epoll.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::net::sockopt;
use rustix::pipe::PipeFlags;

use super::{Kind, System, Writable};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, receive_fd, send_fd};
use crate::floors::events;
use crate::payload;
use crate::work::connect::{Connect, Connects};
use crate::work::fan_in::{BYTES, FanIn, Maker, Part as FanInPart, SENDERS, Send1, Serve, Tally};
use crate::work::fan_out::{FanOut, Look, Part as FanOutPart, RECEIVERS};
use crate::work::link::End;
use crate::work::{self, CHOSEN, LONG, Queue, Treatment, Work};

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

    /// The bytes beside an eventfd.
    fn writable(&self) -> Writable {
        if self.medium == Medium::Eventfd { Writable::All } else { Writable::Nothing }
    }

    fn options(&self, work: Work, bytes: usize) -> String {
        let how = match (self.medium, work) {
            (Medium::Unix { .. }, Work::FanIn) => "16 of SOCK_STREAM in an epoll".into(),
            (Medium::Pipe, Work::FanIn) => "one pipe".into(),
            (Medium::Unix { polled: false }, _) => "SOCK_STREAM, blocking".into(),
            (Medium::Unix { polled: true }, _) => {
                "SOCK_STREAM, O_NONBLOCK, read again and again".into()
            }
            (Medium::Pipe, _) => "a pipe each way, blocking".into(),
            (Medium::Tcp, _) => "TCP_NODELAY, blocking".into(),
            (Medium::Eventfd, _) => String::from("bytes in shared memory"),
        };
        let reads = match work {
            Work::FanIn => format!("; reads of {} KiB", READ >> 10),
            Work::Stream(_) if bytes < READ => format!("; reads of {} KiB", READ >> 10),
            _ => String::new(),
        };
        let queue = match work {
            Work::Stream(_) | Work::FanIn => format!("; {}", self.medium.queue(work)),
            _ => String::new(),
        };
        how + &reads + &queue
    }

    fn does(&self, work: Work, _bytes: usize) -> bool {
        let moves = matches!(
            work,
            Work::Trip(Treatment::Filled | Treatment::Copied) | Work::Stream(_) | Work::Footprint
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
            (Medium::Tcp, Work::Connect) => Connect::open(setup, Fresh::<TcpListener>::new(setup)?),
            (_, Work::Connect) => Connect::open(setup, Fresh::<UnixListener>::new(setup)?),
            (Medium::Unix { polled }, _) => {
                let socket = unix(setup)?;
                socket.set_nonblocking(polled)?;
                self.medium.lengthen(work, socket.as_fd())?;
                let other = socket.try_clone()?;
                work::over(Streams::new(socket, other), work, setup)
            }
            (Medium::Pipe, _) => {
                let (reader, writer) = pipes(setup)?;
                self.medium.lengthen(work, writer.0.as_fd())?;
                work::over(Streams::new(reader.into_std(), writer.into_std()), work, setup)
            }
            (Medium::Tcp, _) => {
                let socket = tcp(setup)?;
                self.medium.lengthen(work, socket.as_fd())?;
                let other = socket.try_clone()?;
                work::over(Streams::new(socket, other), work, setup)
            }
        }
    }
}

/// Bytes that a stream of shorter messages is read by at once.
const READ: usize = 64 << 10;

impl Medium {
    /// Bytes of a queue that is not left at its default: in a stream with long ones, and with many senders, of whom each has
    /// as much as elsewhere.
    fn asked(self, work: Work) -> Option<usize> {
        match (self, work) {
            (_, Work::Stream(Queue::Long)) => Some(LONG),
            (Medium::Pipe, Work::FanIn) => Some(SENDERS * CHOSEN),
            (_, Work::FanIn) => Some(CHOSEN),
            _ => None,
        }
    }

    /// Lengthens a queue to the bytes that the work asks for. Without privileges the kernel gives a pipe 1 MiB at most.
    fn lengthen(self, work: Work, end: BorrowedFd<'_>) -> Outcome<()> {
        let Some(bytes) = self.asked(work) else { return Ok(()) };
        if self == Medium::Pipe {
            let longer = rustix::pipe::fcntl_setpipe_size(end, bytes);
            longer.or_else(|_| rustix::pipe::fcntl_setpipe_size(end, 1 << 20))?;
            return Ok(());
        }
        if sockopt::set_socket_send_buffer_size_force(end, bytes).is_err() {
            sockopt::set_socket_send_buffer_size(end, bytes)?;
        }
        if self == Medium::Tcp && sockopt::set_socket_recv_buffer_size_force(end, bytes).is_err() {
            sockopt::set_socket_recv_buffer_size(end, bytes)?;
        }
        Ok(())
    }

    /// What the kernel gives a queue that asks for its bytes.
    fn queue(self, work: Work) -> String {
        let Some(bytes) = self.asked(work) else { return "the default queue".into() };
        let given = || -> Outcome<usize> {
            if self == Medium::Pipe {
                let (_reader, writer) = rustix::pipe::pipe()?;
                self.lengthen(work, writer.as_fd())?;
                return Ok(rustix::pipe::fcntl_getpipe_size(&writer)?);
            }
            let (socket, _other) = UnixStream::pair()?;
            self.lengthen(work, socket.as_fd())?;
            // The kernel doubles what it is told, for what it needs beside the bytes.
            Ok(sockopt::socket_send_buffer_size(&socket)? / 2)
        };
        let given = given().unwrap_or(0);
        let option = if self == Medium::Pipe { "F_SETPIPE_SZ" } else { "SO_SNDBUF" };
        let short = if given < bytes { " of the 4 MiB" } else { "" };
        format!("{option} {} KiB{short}", given >> 10)
    }
}

/// Two streams of bytes, in which messages have one length.
struct Streams<R, W> {
    reader: R,
    writer: W,
    /// What has been read ahead, in streams of short messages.
    read: Ahead,
}

impl<R: Read, W: Write> Streams<R, W> {
    fn new(reader: R, writer: W) -> Self {
        Streams { reader, writer, read: Ahead::new() }
    }
}

/// Bytes of a stream, read many at once and split into messages.
struct Ahead {
    bytes: Box<[u8]>,
    /// Those of them that are no message yet.
    left: usize,
}

impl Ahead {
    fn new() -> Ahead {
        Ahead { bytes: vec![0; READ].into(), left: 0 }
    }

    /// Reads once, and shows all messages of `len` bytes that are there then. Returns how many there were.
    fn messages(
        &mut self,
        reader: &mut impl Read,
        len: usize,
        mut show: impl FnMut(&[u8]),
    ) -> Outcome<u64> {
        match reader.read(&mut self.bytes[self.left..]) {
            Ok(0) => return Err("the peer has closed".into()),
            Ok(more) => self.left += more,
            Err(error) if passes(&error) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
        let messages = self.bytes[..self.left].chunks_exact(len);
        let (count, rest) = (messages.len(), messages.remainder().len());
        messages.for_each(&mut show);
        self.bytes.copy_within(count * len..self.left, 0);
        self.left = rest;
        Ok(count as u64)
    }
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

    /// The sender waits for an answer after the last message of a run, so what is read ahead is of this run.
    fn sum_run(&mut self, private: &mut Vec<u8>, _most: u64) -> Outcome<(u64, u64)> {
        let len = private.len();
        if len >= READ {
            return Ok((1, self.sum(private)?));
        }
        loop {
            let mut sum = 0u64;
            let show = |message: &[u8]| sum = sum.wrapping_add(payload::sum(message));
            let count = self.read.messages(&mut self.reader, len, show)?;
            if count > 0 {
                return Ok((count, sum));
            }
        }
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
    fn into_std(self) -> File {
        File::from(self.0)
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

/// Many to one: a socket each, in an epoll of the receiver, or one pipe, into which short writes go whole.
fn fan_in(medium: Medium, setup: &Setup) -> Outcome<FanInPart> {
    let pipe = medium == Medium::Pipe;
    if setup.role == Role::Leader {
        let mut ends = Vec::new();
        for _ in 0..if pipe { 1 } else { SENDERS } {
            let (receives, sends): (OwnedFd, OwnedFd) = if pipe {
                rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?
            } else {
                let (receives, sends) = UnixStream::pair()?;
                (receives.into(), sends.into())
            };
            medium.lengthen(Work::FanIn, sends.as_fd())?;
            send_fd(setup.socket, 0, sends.as_fd())?;
            ends.push((File::from(receives), Ahead::new()));
        }
        return Ok(FanInPart::Receiver(if pipe { one_pipe(ends) } else { many_sockets(ends)? }));
    }
    let mut ends = Vec::new();
    for _ in 0..if pipe { 1 } else { SENDERS } {
        ends.push(receive_fd(setup.socket)?.1);
    }
    let maker = |sender: usize| {
        let mut sends = File::from(ends[sender % ends.len()].try_clone()?);
        let make = move || -> Outcome<Send1> {
            Ok(Box::new(move |message| Ok(sends.write_all(message)?)))
        };
        Ok(Box::new(make) as Maker)
    };
    Ok(FanInPart::Senders((0..SENDERS).map(maker).collect::<Outcome<_>>()?))
}

/// Takes all messages that a read brings.
fn take_all((end, ahead): &mut (File, Ahead), tally: &Tally) -> Outcome<()> {
    ahead.messages(end, BYTES, |message| {
        if let Ok(message) = message.try_into() {
            tally.take(message);
        }
    })?;
    Ok(())
}

fn one_pipe(mut ends: Vec<(File, Ahead)>) -> Serve {
    Box::new(move |tally| {
        while !tally.is_done() {
            take_all(&mut ends[0], tally)?;
        }
        Ok(())
    })
}

fn many_sockets(mut ends: Vec<(File, Ahead)>) -> Outcome<Serve> {
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, (end, _)) in ends.iter().enumerate() {
        let number = epoll::EventData::new_u64(number as u64);
        epoll::add(&ready, end, number, epoll::EventFlags::IN)?;
    }
    let mut events = Vec::with_capacity(SENDERS);
    Ok(Box::new(move |tally| {
        while !tally.is_done() {
            epoll::wait(&ready, spare_capacity(&mut events), None)?;
            for event in events.drain(..) {
                take_all(&mut ends[event.data.u64() as usize], tally)?;
            }
        }
        Ok(())
    }))
}

/// One to many: the message is written once for each.
fn fan_out(medium: Medium, setup: &Setup) -> Outcome<FanOutPart> {
    let bytes = setup.bytes;
    let stream = |_| -> Outcome<File> {
        Ok(match (medium, setup.role) {
            (Medium::Pipe, _) => {
                let (reader, writer) = pipes(setup)?;
                if setup.role == Role::Leader { writer } else { reader }.into_std()
            }
            _ => File::from(OwnedFd::from(unix(setup)?)),
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
    let receiver = |mut stream: File| {
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

/// A listener that is there before the leader connects, and where it listens.
struct Fresh<D> {
    door: Option<D>,
    port: u64,
    name: String,
}

impl<D: Door> Fresh<D> {
    fn new(setup: &Setup) -> Outcome<Self> {
        let (door, port) = match setup.role {
            Role::Follower => (Some(D::listen(setup)?), 0),
            Role::Leader => (None, hear(setup)?),
        };
        Ok(Fresh { door, port, name: setup.name.to_owned() })
    }
}

impl<D: Door> Connects for Fresh<D> {
    type Own = ();
    type End = Socket<D::Stream>;

    fn prepare(&mut self, _setup: &Setup) -> Outcome<()> {
        Ok(())
    }

    fn connect(&mut self, _setup: &Setup, (): ()) -> Outcome<Self::End> {
        Ok(Socket(match &self.door {
            Some(door) => door.accept()?,
            None => D::connect(self.port, &self.name)?,
        }))
    }
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
