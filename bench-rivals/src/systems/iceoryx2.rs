//! iceoryx2: publish-subscribe of slices, in place; its WaitSet where a side sleeps.

#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::mem::MaybeUninit;
use std::rc::Rc;

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::sample::Sample;
use iceoryx2::sample_mut_uninit::SampleMutUninit;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use iceoryx2::waitset::WaitSetGuard;

use super::{Kind, System, Writable};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload;
use crate::work::connect::{Connect, Connects};
use crate::work::fan_in::{FanIn, Maker, Part as FanInPart, SENDERS, Send1};
use crate::work::fan_out::{FanOut, Look, Part as FanOutPart, RECEIVERS};
use crate::work::link::End;
use crate::work::{self, CHOSEN, LONG, Queue, Wait, Work};

pub struct Iceoryx2;

/// Messages that a subscriber may leave unread before a publisher waits, where that is not left at its default of 2.
fn buffer(work: Work, bytes: usize) -> Option<usize> {
    match work {
        Work::Stream(Queue::Long) => Some(LONG / bytes),
        Work::FanIn => Some(CHOSEN / bytes),
        _ => None,
    }
}

impl System for Iceoryx2 {
    fn name(&self) -> &'static str {
        "iceoryx2"
    }

    fn kind(&self) -> Kind {
        Kind::Rival
    }

    fn package(&self) -> Option<&'static str> {
        Some("iceoryx2")
    }

    /// A subscriber maps the segment of the samples read-only, and the queues of their offsets with its publisher's writable.
    fn writable(&self) -> Writable {
        Writable::Control
    }

    fn options(&self, work: Work, bytes: usize) -> String {
        match work {
            Work::Stream(_) | Work::FanIn => match buffer(work, bytes) {
                Some(buffer) => format!("no overflow, buffer of {buffer}; receive() polled"),
                None => "no overflow, the default buffer of 2; receive() polled".into(),
            },
            Work::Wake | Work::Idle => "defaults; WaitSet and an event service each way".into(),
            Work::FanOut => format!("max_subscribers {RECEIVERS}; receive() polled"),
            _ => "defaults; receive() polled".into(),
        }
    }

    fn does(&self, work: Work, _bytes: usize) -> bool {
        !matches!(work, Work::Reactor(_))
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        set_log_level(LogLevel::Error);
        match work {
            Work::FanIn => FanIn::open(setup, |setup, _| fan_in(setup)),
            Work::FanOut => {
                let part = fan_out(setup)?;
                FanOut::over(part, setup)
            }
            Work::Connect => Connect::open(setup, Fresh { node: node()? }),
            _ => {
                let node = if work == Work::Footprint { shared()? } else { node()? };
                let (publisher, subscriber) =
                    ports(setup, |name| service(&node, name, work, setup.bytes))?;
                let bell = match work.waits() {
                    Wait::Poll => None,
                    Wait::Sleep | Wait::Default => Some(Bell::open(&node, setup)?),
                };
                notice(&subscriber, setup)?;
                let writer = Writer::new(publisher);
                work::over(Slices { bell, writer, subscriber, _node: node }, work, setup)
            }
        }
    }
}

type Node1 = Rc<Node<ipc::Service>>;
type Factory = PortFactory<ipc::Service, [u8], ()>;
type Out = Publisher<ipc::Service, [u8], ()>;
type In = Subscriber<ipc::Service, [u8], ()>;

fn node() -> Outcome<Node1> {
    // The process keeps its own handling of signals.
    let builder = NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled);
    Ok(Rc::new(builder.create()?))
}

/// The one of this process, for links whose footprint is looked at.
fn shared() -> Outcome<Node1> {
    thread_local!(static NODE: OnceCell<Node1> = const { OnceCell::new() });
    NODE.with(|shared| {
        if shared.get().is_none() {
            let _ = shared.set(node()?);
        }
        shared.get().cloned().ok_or_else(|| "no node".into())
    })
}

fn service(node: &Node1, name: &str, work: Work, bytes: usize) -> Outcome<Factory> {
    let mut builder = node.service_builder(&name.try_into()?).publish_subscribe::<[u8]>();
    if let Work::Stream(_) = work {
        builder = builder.enable_safe_overflow(false);
        if let Some(buffer) = buffer(work, bytes) {
            // A publisher has memory for the buffers of as many subscribers as there may be.
            builder = builder.subscriber_max_buffer_size(buffer).max_subscribers(1);
        }
    }
    Ok(builder.open_or_create()?)
}

/// A service each way.
fn ports(setup: &Setup, open: impl Fn(&str) -> Outcome<Factory>) -> Outcome<(Out, In)> {
    let (to, from) = names(setup);
    let publisher = open(&to)?.publisher_builder().initial_max_slice_len(setup.bytes).create()?;
    let subscriber = open(&from)?.subscriber_builder().create()?;
    Ok((publisher, subscriber))
}

/// The services that this side publishes to, and subscribes to.
fn names(setup: &Setup) -> (String, String) {
    let (out, back) = (format!("{}/out", setup.name), format!("{}/back", setup.name));
    match setup.role {
        Role::Leader => (out, back),
        Role::Follower => (back, out),
    }
}

/// Has the subscriber take notice of the publisher, when both are there. What does not fit into the buffer of
/// a subscriber that has not done so is lost, no overflow or not.
fn notice(subscriber: &In, setup: &Setup) -> Outcome<()> {
    setup.meet()?;
    subscriber.has_samples()?;
    setup.meet()
}

struct Slices {
    bell: Option<Bell>,
    writer: Writer,
    subscriber: In,
    _node: Node1,
}

impl Slices {
    fn publish(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Outcome<()> {
        self.writer.publish(len, write)?;
        match &self.bell {
            Some(bell) => bell.ring(),
            None => Ok(()),
        }
    }

    fn next(&self) -> Outcome<Sample<ipc::Service, [u8], ()>> {
        loop {
            if let Some(sample) = self.subscriber.receive()? {
                return Ok(sample);
            }
            if let Some(bell) = &self.bell {
                bell.sleep()?;
            }
        }
    }
}

/// A publisher, and the sample that it has loaned for the next message, as iceoryx2's own benchmarks do.
struct Writer {
    // Dropped before its publisher.
    ahead: Option<SampleMutUninit<ipc::Service, [MaybeUninit<u8>], ()>>,
    publisher: Out,
}

impl Writer {
    fn new(publisher: Out) -> Writer {
        Writer { ahead: None, publisher }
    }

    fn publish(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Outcome<()> {
        let mut sample = match self.ahead.take() {
            Some(sample) if sample.payload().len() == len => sample,
            _ => self.publisher.loan_slice_uninit(len)?,
        };
        let bytes = sample.payload_mut();
        // SAFETY: as long as the slice that it is made of, and borrowed like it; `u8` has no invalid values, and
        // what `write` leaves alone is old shared memory.
        write(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<u8>(), len) });
        // SAFETY: initialized above.
        unsafe { sample.assume_init() }.send()?;
        // Where none is free now, the next message loans its own.
        self.ahead = self.publisher.loan_slice_uninit(len).ok();
        Ok(())
    }
}

impl End for Slices {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.publish(message.len(), |bytes| bytes.copy_from_slice(message))
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        message.copy_from_slice(self.next()?.payload());
        Ok(())
    }

    fn fill(&mut self, private: &mut [u8], seed: u64) -> Outcome<()> {
        self.publish(private.len(), |bytes| payload::fill(bytes, seed))
    }

    fn sum(&mut self, _private: &mut Vec<u8>) -> Outcome<u64> {
        Ok(payload::sum(self.next()?.payload()))
    }

    fn hand(&mut self, len: usize) -> Outcome<()> {
        self.publish(len, |_| {})
    }

    fn take(&mut self, len: usize) -> Outcome<()> {
        let got = self.next()?.payload().len();
        if got == len { Ok(()) } else { Err(format!("a sample of {got} bytes").into()) }
    }
}

/// What one sleeps on, and what wakes the other side.
struct Bell {
    // Dropped in this order: the guard borrows from both boxes.
    _guard: WaitSetGuard<'static, 'static, ipc::Service>,
    set: Box<WaitSet<ipc::Service>>,
    listener: Box<Listener<ipc::Service>>,
    notifier: Notifier<ipc::Service>,
}

impl Bell {
    fn open(node: &Node1, setup: &Setup) -> Outcome<Bell> {
        let (to, from) = names(setup);
        let event = |name: &str| -> Outcome<_> {
            Ok(node.service_builder(&name.try_into()?).event().open_or_create()?)
        };
        let notifier = event(&to)?.notifier_builder().create()?;
        let listener = Box::new(event(&from)?.listener_builder().create()?);
        let builder = WaitSetBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled);
        let set = Box::new(builder.create::<ipc::Service>()?);
        // SAFETY: the box is not moved out of or replaced, and outlives the guard (the order of fields).
        let listening: &'static Listener<ipc::Service> =
            unsafe { &*std::ptr::from_ref(&*listener) };
        // SAFETY: as above.
        let setting: &'static WaitSet<ipc::Service> = unsafe { &*std::ptr::from_ref(&*set) };
        let guard = setting.attach_notification(listening)?;
        Ok(Bell { _guard: guard, set, listener, notifier })
    }

    fn ring(&self) -> Outcome<()> {
        self.notifier.notify()?;
        Ok(())
    }

    fn sleep(&self) -> Outcome<()> {
        let mut failed = None;
        self.set.wait_and_process_once(|_| {
            failed = self.listener.try_wait(|_| {}).err();
            CallbackProgression::Continue
        })?;
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

/// One service with 16 publishers, each of a node and thread of its own.
fn fan_in(setup: &Setup) -> Outcome<FanInPart> {
    let (name, bytes) = (format!("{}/in", setup.name), setup.bytes);
    let open = move |node: &Node1| -> Outcome<Factory> {
        let builder = node.service_builder(&name.as_str().try_into()?).publish_subscribe::<[u8]>();
        Ok(builder
            .enable_safe_overflow(false)
            .subscriber_max_buffer_size(CHOSEN / bytes)
            .max_publishers(SENDERS)
            .max_nodes(SENDERS + 2)
            .open_or_create()?)
    };
    if setup.role == Role::Leader {
        let node = node()?;
        let subscriber = open(&node)?.subscriber_builder().create()?;
        setup.meet()?;
        return Ok(FanInPart::Receiver(Box::new(move |tally| {
            let _open = &node;
            // As `notice`.
            subscriber.has_samples()?;
            while !tally.is_done() {
                if let Some(sample) = subscriber.receive()? {
                    tally.take(sample.payload().try_into()?);
                }
            }
            Ok(())
        })));
    }
    setup.meet()?;
    let maker = |_| {
        let open = open.clone();
        let make = move || -> Outcome<Send1> {
            let node = node()?;
            let publisher =
                open(&node)?.publisher_builder().initial_max_slice_len(bytes).create()?;
            let mut writer = Writer::new(publisher);
            Ok(Box::new(move |message| {
                let _open = &node;
                writer.publish(message.len(), |bytes| bytes.copy_from_slice(message))
            }))
        };
        Box::new(make) as Maker
    };
    Ok(FanInPart::Senders((0..SENDERS).map(maker).collect()))
}

/// One publisher with 16 subscribers.
fn fan_out(setup: &Setup) -> Outcome<FanOutPart> {
    let (node, bytes) = (node()?, setup.bytes);
    let name = format!("{}/all", setup.name);
    let builder = node.service_builder(&name.as_str().try_into()?).publish_subscribe::<[u8]>();
    let service = builder.max_subscribers(RECEIVERS).open_or_create()?;
    if setup.role == Role::Leader {
        let publisher = service.publisher_builder().initial_max_slice_len(bytes).create()?;
        setup.meet()?;
        let mut writer = Writer::new(publisher);
        return Ok(FanOutPart::Sender(Box::new(move |fill| {
            let _open = &node;
            writer.publish(bytes, &mut *fill)
        })));
    }
    let receiver = |_| -> Outcome<Look> {
        let (subscriber, node) = (service.subscriber_builder().create()?, node.clone());
        Ok(Box::new(move |look: &mut dyn FnMut(&[u8]) -> Outcome<()>| {
            let _open = &node;
            loop {
                if let Some(sample) = subscriber.receive()? {
                    return look(sample.payload());
                }
            }
        }))
    };
    let receivers = (0..RECEIVERS).map(receiver).collect::<Outcome<_>>()?;
    setup.meet()?;
    Ok(FanOutPart::Receivers(receivers))
}

/// A link that is connected for the first message: each side has made its publisher, and subscribes to the other's service.
struct Fresh {
    node: Node1,
}

impl Connects for Fresh {
    type Own = Out;
    type End = Slices;

    fn prepare(&mut self, setup: &Setup) -> Outcome<Out> {
        let service = service(&self.node, &names(setup).0, Work::Connect, setup.bytes)?;
        Ok(service.publisher_builder().initial_max_slice_len(setup.bytes).create()?)
    }

    fn connect(&mut self, setup: &Setup, own: Out) -> Outcome<Slices> {
        let service = service(&self.node, &names(setup).1, Work::Connect, setup.bytes)?;
        let subscriber = service.subscriber_builder().create()?;
        let (writer, node) = (Writer::new(own), self.node.clone());
        Ok(Slices { bell: None, writer, subscriber, _node: node })
    }

    /// A subscriber that is not there yet misses what is sent, so the leader sends again until the echo comes.
    fn ask(&mut self, end: &mut Slices, word: &mut Vec<u8>) -> Outcome<()> {
        loop {
            end.send(word)?;
            if let Some(sample) = end.subscriber.receive()? {
                word.copy_from_slice(sample.payload());
                return Ok(());
            }
        }
    }
}
