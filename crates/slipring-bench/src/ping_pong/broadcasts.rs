//! The subjects that publish: a topic each way, one topic with many subscribers, and a tensor for all of them.

use std::os::fd::AsFd;

use slipring::broadcast::{PublishOptions, Publisher, SubscribeOptions, Subscriber};
use slipring::error::TryRecvError;
use slipring::{Address, Context, Tensor};

use super::subjects::gone;
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, Turn, Turns};
use crate::payload;

/// Subscribers of a tensor.
const MANY: usize = 16;

/// This side's topic, and its subscriptions to the peer's.
pub struct Ends {
    pub publisher: Publisher,
    pub subscribers: Vec<Subscriber>,
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

impl Ends {
    fn open(setup: &Setup, count: usize, wanted: &SubscribeOptions) -> Outcome<Ends> {
        Self::prepared(setup, count, wanted, |_, _| Ok(()))
    }

    /// Opens the ends. Calls `prepare` with the publisher and the name of its topic before the peer subscribes.
    pub fn prepared(
        setup: &Setup,
        count: usize,
        wanted: &SubscribeOptions,
        prepare: impl FnOnce(&mut Publisher, &str) -> Outcome<()>,
    ) -> Outcome<Ends> {
        let context = Context::new()?;
        let (own, other) = match setup.role {
            Role::Leader => ("leader", "follower"),
            Role::Follower => ("follower", "leader"),
        };
        let name = |side: &str| format!("{}-{side}", setup.name);
        let publish = PublishOptions::default();
        let mut publisher = context.publish(Address::named(name(own))?, publish)?;
        prepare(&mut publisher, &name(own))?;
        setup.meet()?;
        let count = if setup.role == Role::Follower { count } else { 1 };
        let address = Address::named(name(other))?;
        let subscribe = |_| context.subscribe(&address, wanted.clone().reconnect(false));
        let subscribers = (0..count).map(subscribe).collect::<slipring::Result<_>>()?;
        setup.meet()?;
        Ok(Ends { publisher, subscribers, sent: 0, received: 0, salts: setup.role.salts() })
    }

    /// Returns the seed of the next message to send.
    pub fn next_out(&mut self) -> u64 {
        self.sent += 1;
        payload::seed(self.sent - 1, self.salts.0)
    }

    /// Returns the number and the seed of the next message to receive.
    pub fn next_in(&mut self) -> (u64, u64) {
        self.received += 1;
        (self.received - 1, payload::seed(self.received - 1, self.salts.1))
    }
}

/// Short messages over a topic each way, received by a subscriber that wants every one.
pub struct Echoed {
    ends: Ends,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Echoed {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::open(setup, 1, &SubscribeOptions::every())?;
        let (outgoing, incoming) = (vec![0; setup.bytes], vec![0; setup.bytes]);
        Ok(Box::new(Turns(Echoed { ends, outgoing, incoming })))
    }
}

impl Turn for Echoed {
    fn send(&mut self) -> Outcome<()> {
        payload::fill(&mut self.outgoing, self.ends.next_out());
        Ok(self.ends.publisher.send(&self.outgoing)?)
    }

    fn receive(&mut self) -> Outcome<()> {
        let (number, seed) = self.ends.next_in();
        let sample = self.ends.subscribers[0].recv()?.ok_or_else(gone)?;
        sample.copy_to(&mut self.incoming)?;
        let expected = payload::expected(self.incoming.len(), seed);
        payload::check(payload::sum(&self.incoming), expected, number)
    }
}

/// Messages one way, filled in their slots and summed, and one answer at the end.
pub struct Streamed {
    ends: Ends,
    bytes: usize,
}

impl Streamed {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::open(setup, 1, &SubscribeOptions::every())?;
        Ok(Box::new(Streamed { ends, bytes: setup.bytes }))
    }
}

impl Exchange for Streamed {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let seed = self.ends.next_out();
            let mut room = self.ends.publisher.reserve(self.bytes)?;
            payload::fill(&mut room, seed);
            room.publish()?;
        }
        self.ends.subscribers[0].recv()?.ok_or_else(gone)?;
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let (mut got, mut expected) = (0u64, 0u64);
        for _ in 0..count {
            let (_, seed) = self.ends.next_in();
            let sample = self.ends.subscribers[0].recv()?.ok_or_else(gone)?;
            got = got.wrapping_add(payload::sum_in_place(sample.bytes()?));
            expected = expected.wrapping_add(payload::expected(sample.len(), seed));
        }
        payload::check(got, expected, self.ends.received)?;
        Ok(self.ends.publisher.send(b"done")?)
    }
}

/// Messages to subscribers that sleep in an event loop, are woken by the first one, and do not come.
pub struct Ignored {
    ends: Ends,
    message: Vec<u8>,
}

impl Ignored {
    pub fn by_1(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, 1)
    }

    pub fn by_4(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, 4)
    }

    pub fn by_16(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, 16)
    }

    pub fn by_64(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, 64)
    }

    fn open(setup: &Setup, count: usize) -> Outcome<Box<dyn Exchange>> {
        let mut ends = Ends::open(setup, count, &SubscribeOptions::latest())?;
        for subscriber in &mut ends.subscribers {
            // Once its descriptor is in use, a subscriber that finds nothing arms.
            subscriber.descriptor().map(|fd| fd.as_fd().try_clone_to_owned()).transpose()?;
            match subscriber.try_recv() {
                Err(TryRecvError::Empty) => {}
                other => return Err(format!("nothing was sent: {other:?}").into()),
            }
        }
        setup.meet()?;
        Ok(Box::new(Ignored { ends, message: vec![7; setup.bytes] }))
    }
}

impl Exchange for Ignored {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.ends.publisher.send(&self.message)?;
        }
        Ok(())
    }

    fn follow(&mut self, _count: u64) -> Outcome<()> {
        Ok(())
    }
}

/// A tensor for many subscribers on one thread, untouched, and one answer.
pub struct Shown {
    ends: Ends,
    tensor: Tensor,
}

impl Shown {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let context = Context::new()?;
        let ends = Ends::open(setup, MANY, &SubscribeOptions::every())?;
        // The publisher has a pool of its own, and copies a tensor of another one.
        let bytes = if setup.role == Role::Leader { setup.bytes } else { 1 };
        let mut ends = ends;
        let tensor = match setup.role {
            Role::Leader => ends.publisher.alloc::<u8>([bytes])?.share()?,
            Role::Follower => context.alloc::<u8>([bytes])?.share()?,
        };
        Ok(Box::new(Shown { ends, tensor }))
    }
}

impl Exchange for Shown {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.ends.publisher.send_tensor(&self.tensor)?;
            self.ends.subscribers[0].recv()?.ok_or_else(gone)?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            for subscriber in &mut self.ends.subscribers {
                let sample = subscriber.recv()?.ok_or_else(gone)?;
                sample.into_tensor()?;
            }
            self.ends.publisher.send(b"done")?;
        }
        Ok(())
    }
}
