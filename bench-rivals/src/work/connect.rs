//! Connect and first echo, over a fresh link each time: each side has dropped the last one before it makes the next.
//! The leader connects, and the follower makes nothing before it is asked to. What a system leaves to its users to
//! hand over goes through the socket that is open between the two processes, or is a name made of the link's number.

use std::os::fd::{AsFd, OwnedFd};

use super::link::End;
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload::{self, FROM_LEADER};

/// A message's length.
const BYTES: usize = 8;

/// Makes one link, on both sides at once, with a name that no other link has.
type Open<E> = Box<dyn FnMut(&Setup) -> Outcome<E>>;

pub struct Connect<E> {
    open: Open<E>,
    role: Role,
    name: String,
    socket: OwnedFd,
    /// Links made before.
    number: u64,
}

impl<E: End + 'static> Connect<E> {
    pub fn open(
        setup: &Setup,
        open: impl FnMut(&Setup) -> Outcome<E> + 'static,
    ) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Connect {
            open: Box::new(open),
            role: setup.role,
            name: setup.name.to_owned(),
            socket: setup.socket.try_clone_to_owned()?,
            number: 0,
        }))
    }

    fn link(&mut self) -> Outcome<E> {
        let name = format!("{}-{}", self.name, self.number);
        self.number += 1;
        let socket = self.socket.as_fd();
        (self.open)(&Setup { role: self.role, bytes: BYTES, name: &name, socket })
    }
}

impl<E: End + 'static> Exchange for Connect<E> {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let number = self.number;
            let mut link = self.link()?;
            let word = payload::seed(number, FROM_LEADER).to_ne_bytes();
            link.send(&word)?;
            let mut echo = vec![0; BYTES];
            link.receive(&mut echo)?;
            payload::check(payload::sum(&echo), payload::sum(&word), number)?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let mut link = self.link()?;
            let mut word = vec![0; BYTES];
            link.receive(&mut word)?;
            link.send(&word)?;
        }
        Ok(())
    }
}
