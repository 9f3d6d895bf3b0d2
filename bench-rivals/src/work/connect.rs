//! Connect and first echo, over a fresh link each time.
//!
//! Before a link, each side makes what it can make alone: a listener, a queue of its own, a segment. That is in no time, and
//! neither is the end of a link. Then both sides meet, the leader connects, and the time runs from there to the echo. What a
//! system leaves to its users to hand over goes through the socket that is open between the two processes, or is a name made
//! of the link's number.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::link::End;
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload::{self, FROM_LEADER};

/// A message's length.
const BYTES: usize = 8;

/// How a system makes a link. Both sides call both functions, with a name that no other link has.
pub trait Connects {
    /// What a side makes alone.
    type Own;
    /// An end of the link.
    type End: End;

    fn prepare(&mut self, setup: &Setup) -> Outcome<Self::Own>;

    fn connect(&mut self, setup: &Setup, own: Self::Own) -> Outcome<Self::End>;

    /// Sends the first message, and returns the echo in its place.
    fn ask(&mut self, end: &mut Self::End, word: &mut Vec<u8>) -> Outcome<()> {
        end.send(word)?;
        end.receive(word)
    }

    /// Sends the first message back.
    fn echo(&mut self, end: &mut Self::End, word: &mut Vec<u8>) -> Outcome<()> {
        end.receive(word)?;
        end.send(word)
    }
}

pub struct Connect<C: Connects> {
    system: C,
    role: Role,
    name: String,
    socket: OwnedFd,
    /// Links made before.
    number: u64,
    /// The last link of the follower, which outlives the echo that it has sent.
    last: Option<C::End>,
}

impl<C: Connects + 'static> Connect<C> {
    pub fn open(setup: &Setup, system: C) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Connect {
            system,
            role: setup.role,
            name: setup.name.to_owned(),
            socket: setup.socket.try_clone_to_owned()?,
            number: 0,
            last: None,
        }))
    }

    /// Makes a link and has its first message sent and answered. Returns when the leader began to connect, and when it
    /// had the echo.
    fn link(&mut self) -> Outcome<(Instant, Instant)> {
        let name = format!("{}-{}", self.name, self.number);
        let setup =
            Setup { role: self.role, bytes: BYTES, name: &name, socket: self.socket.as_fd() };
        let own = self.system.prepare(&setup)?;
        // The leader has closed its end of the last link by now.
        setup.meet()?;
        self.last = None;
        setup.meet()?;
        let began = Instant::now();
        let mut end = self.system.connect(&setup, own)?;
        let mut word = vec![0; BYTES];
        if self.role == Role::Follower {
            self.system.echo(&mut end, &mut word)?;
            self.last = Some(end);
        } else {
            let first = payload::seed(self.number, FROM_LEADER).to_ne_bytes();
            word.copy_from_slice(&first);
            self.system.ask(&mut end, &mut word)?;
            payload::check(payload::sum(&word), payload::sum(&first), self.number)?;
        }
        let echoed = Instant::now();
        self.number += 1;
        Ok((began, echoed))
    }
}

impl<C: Connects + 'static> Exchange for Connect<C> {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        (0..count).try_for_each(|_| self.link().map(|_| ()))
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        self.lead(count)
    }

    fn lead_stamped(&mut self, count: u64, stamps: &mut Vec<u64>) -> Outcome<()> {
        for _ in 0..count {
            let (began, echoed) = self.link()?;
            stamps.push((echoed - began).as_nanos() as u64);
        }
        Ok(())
    }
}
