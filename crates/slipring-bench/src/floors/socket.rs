//! Messages each way over a Unix stream socket, with blocking reads.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, Turn, Turns};
use crate::floors::futex;
use crate::payload;

/// One side.
pub struct Socket {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Whether each side idles before it sends, so that the other sleeps.
    idles: bool,
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

impl Socket {
    /// Opens a side that idles before it sends, as the floor [`futex`] does.
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::with(setup, true)
    }

    /// Opens a side that answers at once.
    pub fn prompt(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::with(setup, false)
    }

    fn with(setup: &Setup, idles: bool) -> Outcome<Box<dyn Exchange>> {
        let address = SocketAddr::from_abstract_name(setup.name)?;
        let stream = match setup.role {
            Role::Follower => {
                let listener = UnixListener::bind_addr(&address)?;
                setup.meet()?;
                listener.accept()?.0
            }
            Role::Leader => {
                setup.meet()?;
                UnixStream::connect_addr(&address)?
            }
        };
        let (buffer, salts) = (vec![0; setup.bytes], setup.role.salts());
        Ok(Box::new(Turns(Socket { stream, buffer, idles, sent: 0, received: 0, salts })))
    }
}

impl Turn for Socket {
    fn send(&mut self) -> Outcome<()> {
        if self.idles {
            futex::idle();
        }
        payload::fill(&mut self.buffer, payload::seed(self.sent, self.salts.0));
        self.sent += 1;
        Ok(self.stream.write_all(&self.buffer)?)
    }

    fn receive(&mut self) -> Outcome<()> {
        self.stream.read_exact(&mut self.buffer)?;
        let seed = payload::seed(self.received, self.salts.1);
        let expected = payload::expected(self.buffer.len(), seed);
        payload::check(payload::sum(&self.buffer), expected, self.received)?;
        self.received += 1;
        Ok(())
    }
}
