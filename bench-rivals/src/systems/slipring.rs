//! slipring: its messages, and its tensors.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::message::Bytes;
use slipring::options::Spin;
use slipring::{Address, Connection, Context, EventLoop, Link, Listener, Options, Tensor};

use super::{Kind, System};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload;
use crate::reactors::Reactors;
use crate::work::connect::{Connect, Connects};
use crate::work::fan_in::{BYTES, FanIn, Maker, Part as FanInPart, SENDERS, Send1, Tally};
use crate::work::fan_out::{FanOut, Look, Part as FanOutPart, RECEIVERS};
use crate::work::link::{End, RUN};
use crate::work::{self, LONG, Queue, Treatment, Wait, Work};

pub struct Slipring {
    name: &'static str,
    tensors: bool,
    /// Whether messages lie in the slots of a topic.
    slots: bool,
    /// Whether it never sleeps, as those do that are polled.
    polled: bool,
}

pub const MESSAGES: Slipring =
    Slipring { name: "slipring", tensors: false, slots: false, polled: false };
pub const TENSORS: Slipring = Slipring { name: "slipring tensors", tensors: true, ..MESSAGES };
/// For a message to many receivers only.
pub const LONG_SLOTS: Slipring = Slipring { name: "slipring long slots", slots: true, ..MESSAGES };
/// For messages that take longer than a watch only.
pub const POLLED: Slipring = Slipring { name: POLLED_NAME, polled: true, ..MESSAGES };
pub const POLLED_NAME: &str = "slipring, polled";

impl System for Slipring {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> Kind {
        Kind::Slipring
    }

    fn package(&self) -> Option<&'static str> {
        Some("slipring")
    }

    fn options(&self, work: Work, _bytes: usize) -> String {
        if self.slots {
            return "4 slots of 2 MiB; reserve, every()".into();
        }
        if self.polled {
            return "Spin::Forever; reserve, peek".into();
        }
        let way = match (work, self.tensors) {
            (Work::Wake, _) => "Spin::Never",
            (Work::FanIn | Work::Reactor(_), _) => "defaults; reactor",
            (Work::Stream(Queue::Default), false) => "defaults: a ring of 1 MiB; reserve, drain",
            (Work::Stream(Queue::Long), false) => "ring_capacity 4 MiB; reserve, drain",
            (Work::Trip(Treatment::Filled), false) => "defaults; reserve, peek",
            (Work::Trip(Treatment::Untouched), false) => "defaults; reserve, peek",
            (Work::FanOut, false) => "defaults; broadcast, every()",
            (Work::FanOut, true) => "defaults; a link each",
            (_, false) => "defaults",
            (_, true) => "defaults; a fresh tensor each time",
        };
        way.into()
    }

    fn does(&self, work: Work, bytes: usize) -> bool {
        match work {
            _ if self.slots => work == Work::FanOut,
            _ if self.polled => work == Work::Trip(Treatment::Filled) && bytes >= 1 << 20,
            Work::Trip(Treatment::Copied) => !self.tensors,
            Work::Trip(_) => !self.tensors || bytes >= 64,
            Work::FanOut => !self.polled,
            _ => !self.tensors,
        }
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        match work {
            Work::Reactor(links) => Reactors::messages(setup, links),
            Work::Connect => Connect::open(setup, Fresh::new(setup)?),
            Work::FanIn => FanIn::open(setup, fan_in),
            Work::FanOut => {
                let part = match (self.tensors, self.slots) {
                    (true, _) => fan_out(setup)?,
                    (false, true) => broadcast_in_slots(setup)?,
                    (false, false) => broadcast(setup)?,
                };
                FanOut::over(part, setup)
            }
            _ => {
                let mut options = Options::new();
                if work.waits() == Wait::Sleep {
                    options = options.spin(Spin::Never);
                }
                if self.polled {
                    options = options.spin(Spin::Forever);
                }
                if work == Work::Stream(Queue::Long) {
                    options = options.ring_capacity(LONG as u64);
                }
                let context = match work {
                    Work::Footprint => shared()?.clone(),
                    _ => Context::with_options(options)?,
                };
                let link = meet(setup, &context, 1)?.swap_remove(0);
                if self.tensors {
                    work::over(Tensors { link, context }, work, setup)
                } else {
                    work::over(Messages { link }, work, setup)
                }
            }
        }
    }
}

/// The one of this process, for links whose footprint is looked at.
fn shared() -> Outcome<&'static Context> {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    if CONTEXT.get().is_none() {
        let _ = CONTEXT.set(Context::new()?);
    }
    Ok(CONTEXT.get().ok_or("no context")?)
}

/// So many links, the leader's in the order of the follower's.
fn meet(setup: &Setup, context: &Context, links: usize) -> Outcome<Vec<Connection>> {
    match setup.role {
        Role::Follower => {
            let mut listener = context.listen(setup.name)?;
            setup.meet()?;
            (0..links).map(|_| Ok(listener.accept()?)).collect()
        }
        Role::Leader => {
            setup.meet()?;
            (0..links).map(|_| Ok(context.connect(setup.name)?)).collect()
        }
    }
}

fn gone() -> &'static str {
    "the peer has closed"
}

struct Messages {
    link: Connection,
}

impl End for Messages {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        Ok(self.link.send(message)?)
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        let len = message.len();
        let got = self.link.receiver().recv_into(message)?.ok_or_else(gone)?;
        if got == len { Ok(()) } else { Err(format!("a message of {got} bytes").into()) }
    }

    fn fill(&mut self, private: &mut [u8], seed: u64) -> Outcome<()> {
        let mut room = self.link.sender().reserve(private.len())?;
        payload::fill(&mut room, seed);
        Ok(room.publish()?)
    }

    fn sum(&mut self, _private: &mut Vec<u8>) -> Outcome<u64> {
        let received = self.link.receiver().peek()?.ok_or_else(gone)?;
        let got = payload::sum_in_place(received.bytes());
        received.release()?;
        Ok(got)
    }

    fn sum_run(&mut self, _private: &mut Vec<u8>, most: u64) -> Outcome<(u64, u64)> {
        let (late, mut got) = (Instant::now() + Duration::from_secs(10), 0u64);
        let count =
            self.link.receiver().drain_deadline(RUN.min(most as usize), late, |_, bytes| {
                got = got.wrapping_add(payload::sum_in_place(bytes));
            })?;
        if count == 0 { Err(gone().into()) } else { Ok((count as u64, got)) }
    }

    fn hand(&mut self, len: usize) -> Outcome<()> {
        Ok(self.link.sender().reserve(len)?.publish()?)
    }

    fn take(&mut self, len: usize) -> Outcome<()> {
        let received = self.link.receiver().peek()?.ok_or_else(gone)?;
        let got = received.len();
        received.release()?;
        if got == len { Ok(()) } else { Err(format!("a message of {got} bytes").into()) }
    }
}

/// A fresh tensor each time: allocated, sent, received, dropped.
struct Tensors {
    link: Connection,
    context: Context,
}

impl Tensors {
    fn receive(&mut self) -> Outcome<Tensor> {
        Ok(self.link.recv_tensor()?.ok_or_else(gone)?)
    }
}

impl End for Tensors {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        let mut tensor = self.context.alloc::<u8>([message.len()])?;
        tensor.copy_from_slice(message);
        Ok(self.link.send_tensor(tensor)?)
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        Ok(Tensors::receive(self)?.copy_to(message)?)
    }

    fn fill(&mut self, private: &mut [u8], seed: u64) -> Outcome<()> {
        let mut tensor = self.context.alloc::<u8>([private.len()])?;
        payload::fill(&mut tensor, seed);
        Ok(self.link.send_tensor(tensor)?)
    }

    fn sum(&mut self, _private: &mut Vec<u8>) -> Outcome<u64> {
        Ok(payload::sum_in_place(Tensors::receive(self)?.bytes()?))
    }

    fn hand(&mut self, len: usize) -> Outcome<()> {
        Ok(self.link.send_tensor(self.context.alloc::<u8>([len])?)?)
    }

    fn take(&mut self, len: usize) -> Outcome<()> {
        let got = Tensors::receive(self)?.byte_len();
        if got == len { Ok(()) } else { Err(format!("a tensor of {got} bytes").into()) }
    }
}

/// A reactor with 16 links; a thread with a connection each.
fn fan_in(setup: &Setup, tally: &std::sync::Arc<Tally>) -> Outcome<FanInPart> {
    let context = Context::new()?;
    if setup.role == Role::Follower {
        // The leader listens here: it is the one that receives.
        setup.meet()?;
        let maker = |_| {
            let mut link = context.connect(setup.name)?;
            let make =
                move || -> Outcome<Send1> { Ok(Box::new(move |message| Ok(link.send(message)?))) };
            Ok(Box::new(make) as Maker)
        };
        return Ok(FanInPart::Senders((0..SENDERS).map(maker).collect::<Outcome<_>>()?));
    }
    let mut listener = context.listen(setup.name)?;
    setup.meet()?;
    let mut events = EventLoop::new(&context)?;
    let reactor = events.reactor();
    let mut links: Vec<Link> = Vec::new();
    for _ in 0..SENDERS {
        let link = reactor.adopt(listener.accept()?)?;
        let tally = tally.clone();
        link.on_message(move |_, message| {
            let mut bytes = [0; BYTES];
            message.bytes().copy_to(&mut bytes);
            tally.take(&bytes);
        });
        links.push(link);
    }
    Ok(FanInPart::Receiver(Box::new(move |tally| {
        let _open = &links;
        Ok(events.run_until(|| tally.is_done())?)
    })))
}

/// One tensor, sent to all.
fn fan_out(setup: &Setup) -> Outcome<FanOutPart> {
    let context = Context::new()?;
    let mut links = meet(setup, &context, RECEIVERS)?;
    let bytes = setup.bytes;
    if setup.role == Role::Leader {
        return Ok(FanOutPart::Sender(Box::new(move |fill| {
            let mut tensor = context.alloc::<u8>([bytes])?;
            fill(&mut tensor);
            let tensor = tensor.share()?;
            for link in &mut links {
                link.send_tensor(&tensor)?;
            }
            Ok(())
        })));
    }
    let receiver = |mut link: Connection| {
        Box::new(move |look: &mut dyn FnMut(&[u8]) -> Outcome<()>| {
            let tensor = link.recv_tensor()?.ok_or_else(gone)?;
            look(in_place(&tensor)?)
        }) as Look
    };
    Ok(FanOutPart::Receivers(links.into_iter().map(receiver).collect()))
}

/// One tensor, published once.
fn broadcast(setup: &Setup) -> Outcome<FanOutPart> {
    let context = Context::new()?;
    let address = Address::named(setup.name)?;
    let bytes = setup.bytes;
    if setup.role == Role::Leader {
        let mut publisher = context.publish(&address, PublishOptions::default())?;
        // The follower subscribes before it returns.
        setup.meet()?;
        setup.meet()?;
        return Ok(FanOutPart::Sender(Box::new(move |fill| {
            let mut tensor = publisher.alloc::<u8>([bytes])?;
            fill(&mut tensor);
            Ok(publisher.send_tensor(tensor)?)
        })));
    }
    setup.meet()?;
    let receivers: Outcome<Vec<Look>> = (0..RECEIVERS)
        .map(|_| {
            let mut subscriber = context.subscribe(&address, SubscribeOptions::every())?;
            Ok(Box::new(move |look: &mut dyn FnMut(&[u8]) -> Outcome<()>| {
                let tensor = subscriber.recv()?.ok_or_else(gone)?.into_tensor()?;
                look(in_place(&tensor)?)
            }) as Look)
        })
        .collect();
    let receivers = receivers?;
    setup.meet()?;
    Ok(FanOutPart::Receivers(receivers))
}

/// A message in a slot, which is published once and read where it lies.
fn broadcast_in_slots(setup: &Setup) -> Outcome<FanOutPart> {
    let context = Context::new()?;
    let address = Address::named(setup.name)?;
    let bytes = setup.bytes;
    if setup.role == Role::Leader {
        let slot_len = u32::try_from(2 * bytes)?;
        let options = PublishOptions::default().slots(4).slot_len(slot_len);
        let mut publisher = context.publish(&address, options)?;
        // The follower subscribes before it returns.
        setup.meet()?;
        setup.meet()?;
        return Ok(FanOutPart::Sender(Box::new(move |fill| {
            let mut message = publisher.reserve(bytes)?;
            fill(&mut message);
            Ok(message.publish()?)
        })));
    }
    setup.meet()?;
    let receivers: Outcome<Vec<Look>> = (0..RECEIVERS)
        .map(|_| {
            let mut subscriber = context.subscribe(&address, SubscribeOptions::every())?;
            Ok(Box::new(move |look: &mut dyn FnMut(&[u8]) -> Outcome<()>| {
                let message = subscriber.recv()?.ok_or_else(gone)?;
                look(seen(message.bytes()?))
            }) as Look)
        })
        .collect();
    let receivers = receivers?;
    setup.meet()?;
    Ok(FanOutPart::Receivers(receivers))
}

/// The bytes where they lie.
#[allow(unsafe_code)]
fn seen(bytes: Bytes<'_>) -> &[u8] {
    // SAFETY: the peer is this program, which writes a message before it publishes it and overwrites it after the next receive.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
}

#[allow(unsafe_code)]
fn in_place(tensor: &Tensor) -> Outcome<&[u8]> {
    // SAFETY: the peer is this program, which writes a tensor before it sends it and never after.
    Ok(unsafe { tensor.as_slice_unchecked()? })
}

/// A listener that is there before the leader connects. It makes its segment of the next link before it waits, and a context
/// that connects makes one for the next time.
struct Fresh {
    context: Context,
    listener: Option<Listener>,
    address: Address,
}

impl Fresh {
    fn new(setup: &Setup) -> Outcome<Fresh> {
        let (context, address) = (Context::new()?, Address::named(setup.name)?);
        let listener = match setup.role {
            Role::Leader => None,
            Role::Follower => Some(context.listen(&address)?),
        };
        Ok(Fresh { context, listener, address })
    }
}

impl Connects for Fresh {
    type Own = ();
    type End = Messages;

    fn prepare(&mut self, _setup: &Setup) -> Outcome<()> {
        // A listener prepares a link before it looks for peers, of which there are none now.
        match self.listener.as_mut().map(Listener::try_accept).transpose()?.flatten() {
            None => Ok(()),
            Some(_) => Err("a peer has connected too early".into()),
        }
    }

    fn connect(&mut self, _setup: &Setup, (): ()) -> Outcome<Messages> {
        Ok(Messages {
            link: match &mut self.listener {
                Some(listener) => listener.accept()?,
                None => self.context.connect(&self.address)?,
            },
        })
    }
}
