//! Connect and first echo over a bare abstract `SOCK_SEQPACKET` socket, with one descriptor passed each way. All calls
//! block, and each round trip makes a fresh connection.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, receive_fd, send_fd};
use crate::memory::{Mapping, PAGE};
use crate::payload::{self, FROM_LEADER};

/// One side.
pub struct Uds {
    address: SocketAddrUnix,
    listener: Option<OwnedFd>,
    /// The descriptor that is passed.
    token: OwnedFd,
    number: u64,
}

fn socket() -> Outcome<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

impl Uds {
    /// Opens a side.
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let address = SocketAddrUnix::new_abstract_name(setup.name.as_bytes())?;
        let listener = match setup.role {
            Role::Leader => None,
            Role::Follower => {
                let listener = socket()?;
                rustix::net::bind(&listener, &address)?;
                rustix::net::listen(&listener, 16)?;
                Some(listener)
            }
        };
        setup.meet()?;
        let (_, token) = Mapping::create(PAGE, false)?;
        Ok(Box::new(Uds { address, listener, token, number: 0 }))
    }
}

impl Exchange for Uds {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let connection = socket()?;
            rustix::net::connect(&connection, &self.address)?;
            let word = payload::seed(self.number, FROM_LEADER);
            send_fd(connection.as_fd(), word, self.token.as_fd())?;
            let (echo, _) = receive_fd(connection.as_fd())?;
            payload::check(echo, word, self.number)?;
            self.number += 1;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let listener = self.listener.as_ref().ok_or("only the follower listens")?;
        for _ in 0..count {
            let connection = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?;
            let (word, _) = receive_fd(connection.as_fd())?;
            send_fd(connection.as_fd(), word, self.token.as_fd())?;
        }
        Ok(())
    }
}
