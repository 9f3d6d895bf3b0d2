//! ipc-channel: its channels of bytes.

use std::path::Path;

use ipc_channel::ipc::{
    IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcSender, bytes_channel,
};
use rustix::net::{RecvFlags, SendFlags};

use super::{Kind, System};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::work::connect::{Connect, Connects};
use crate::work::fan_in::{FanIn, Maker, Part as FanInPart, SENDERS, Send1};
use crate::work::link::End;
use crate::work::{self, Queue, Treatment, Work};

pub struct IpcChannel;

/// Where a one-shot server makes a directory for its socket. By default that is the temporary directory: on a disk
/// (ext4), removing it again took 3.7 of the 4.0 ms of a connect.
const MEMORY: &str = "/dev/shm";

impl System for IpcChannel {
    fn name(&self) -> &'static str {
        "ipc-channel"
    }

    fn kind(&self) -> Kind {
        Kind::Rival
    }

    fn package(&self) -> Option<&'static str> {
        Some("ipc-channel")
    }

    fn options(&self, work: Work, _bytes: usize) -> String {
        match work {
            Work::Connect => format!("IpcOneShotServer in {MEMORY}; recv blocks"),
            Work::Stream(_) => {
                "IpcBytesSender, recv blocks; the default queue of its socket".into()
            }
            _ => "IpcBytesSender, recv blocks".into(),
        }
    }

    fn does(&self, work: Work, _bytes: usize) -> bool {
        // Nobody can say how long the queue of its socket is.
        !matches!(
            work,
            Work::Trip(Treatment::Untouched)
                | Work::Stream(Queue::Long)
                | Work::Reactor(_)
                | Work::FanOut
        )
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        match work {
            Work::FanIn => FanIn::open(setup, |setup, _| fan_in(setup)),
            Work::Connect => {
                // Fails from the second time on, when it is set.
                let _ = tempfile::env::override_temp_dir(Path::new(MEMORY));
                Connect::open(setup, Fresh)
            }
            _ => work::over(Channels::open(setup)?, work, setup),
        }
    }
}

type Ends = (IpcBytesSender, IpcBytesReceiver);

/// What a side makes alone.
enum Own {
    /// Both channels. The leader has two of their ends, and the others are for the follower.
    Channels {
        mine: Ends,
        theirs: Ends,
        server: String,
    },
    Server(IpcOneShotServer<Ends>),
}

/// The follower makes a server, whose name the leader gets, and the leader a channel each way.
fn prepare(setup: &Setup) -> Outcome<Own> {
    if setup.role == Role::Follower {
        let (server, name) = IpcOneShotServer::<Ends>::new()?;
        rustix::net::send(setup.socket, name.as_bytes(), SendFlags::NOSIGNAL)?;
        return Ok(Own::Server(server));
    }
    let mut name = [0; 512];
    let (got, _) = rustix::net::recv(setup.socket, &mut name, RecvFlags::empty())?;
    let server = str::from_utf8(&name[..got])?.to_owned();
    let (to_leader, at_leader) = bytes_channel()?;
    let (to_follower, at_follower) = bytes_channel()?;
    let (mine, theirs) = ((to_follower, at_leader), (to_leader, at_follower));
    Ok(Own::Channels { mine, theirs, server })
}

fn connect(own: Own) -> Outcome<Ends> {
    match own {
        Own::Channels { mine, theirs, server } => {
            IpcSender::<Ends>::connect(server)?.send(theirs)?;
            Ok(mine)
        }
        Own::Server(server) => Ok(server.accept()?.1),
    }
}

/// A channel each way.
fn channels(setup: &Setup) -> Outcome<Ends> {
    connect(prepare(setup)?)
}

/// A link that is connected for the first message.
struct Fresh;

impl Connects for Fresh {
    type Own = Own;
    type End = Channels;

    fn prepare(&mut self, setup: &Setup) -> Outcome<Own> {
        prepare(setup)
    }

    fn connect(&mut self, _setup: &Setup, own: Own) -> Outcome<Channels> {
        let (sender, receiver) = connect(own)?;
        Ok(Channels { sender, receiver })
    }
}

struct Channels {
    sender: IpcBytesSender,
    receiver: IpcBytesReceiver,
}

impl Channels {
    fn open(setup: &Setup) -> Outcome<Channels> {
        let (sender, receiver) = channels(setup)?;
        Ok(Channels { sender, receiver })
    }
}

impl End for Channels {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        Ok(self.sender.send(message)?)
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        *message = self.receiver.recv()?;
        Ok(())
    }
}

/// One channel, its sender cloned.
fn fan_in(setup: &Setup) -> Outcome<FanInPart> {
    let (sender, receiver) = channels(setup)?;
    if setup.role == Role::Leader {
        return Ok(FanInPart::Receiver(Box::new(move |tally| {
            while !tally.is_done() {
                tally.take(receiver.recv()?.as_slice().try_into()?);
            }
            Ok(())
        })));
    }
    let maker = |_| {
        let sender = sender.clone();
        let make =
            move || -> Outcome<Send1> { Ok(Box::new(move |message| Ok(sender.send(message)?))) };
        Box::new(make) as Maker
    };
    Ok(FanInPart::Senders((0..SENDERS).map(maker).collect()))
}
