//! Cloudtoid Interprocess: queues of bytes in a shared file, copied in and out.

use std::time::Duration;

use cloudtoid_interprocess::{Error, Options, Publisher, Subscriber};

use super::{Kind, System, Writable};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::work::connect::{Connect, Connects};
use crate::work::fan_in::{self, FanIn, Maker, Part as FanInPart, SENDERS, Send1};
use crate::work::link::{End, both, names};
use crate::work::{self, CHOSEN, Treatment, Wait, Work};

pub struct Cloudtoid;

/// Bytes of a queue: a stream's, or 1 MiB, and room for four messages with their headers at least.
fn capacity(work: Work, bytes: usize) -> usize {
    let queue = match work {
        Work::Stream(queue) => queue.bytes(),
        Work::FanIn => SENDERS * CHOSEN,
        _ => 1 << 20,
    };
    queue.max(4 * (bytes + 16))
}

/// Returns the options of a queue whose file lies in memory.
fn options(name: &str, capacity: usize) -> Options {
    Options::new(name, capacity).with_path("/dev/shm")
}

impl System for Cloudtoid {
    fn name(&self) -> &'static str {
        "cloudtoid"
    }

    fn kind(&self) -> Kind {
        Kind::Rival
    }

    fn package(&self) -> Option<&'static str> {
        Some("cloudtoid-interprocess")
    }

    fn writable(&self) -> Writable {
        Writable::All
    }

    fn options(&self, work: Work, bytes: usize) -> String {
        let queue = capacity(work, bytes) >> 10;
        let waits = match work.waits() {
            Wait::Poll => "try_recv_into polled",
            Wait::Default | Wait::Sleep => "recv_timeout, which looks every 5 ms",
        };
        format!("queue of {queue} KiB in /dev/shm; {waits}")
    }

    fn does(&self, work: Work, _bytes: usize) -> bool {
        !matches!(work, Work::Trip(Treatment::Untouched) | Work::FanOut | Work::Reactor(_))
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let capacity = capacity(work, setup.bytes);
        match work {
            Work::FanIn => FanIn::open(setup, |setup, _| fan_in(setup, capacity)),
            Work::Connect => Connect::open(setup, Fresh),
            _ => {
                let (publisher, subscriber) = both(
                    setup,
                    |name| Ok(Publisher::open(&options(name, capacity))?),
                    |name| Ok(Subscriber::open(&options(name, capacity))?),
                )?;
                let polled = work.waits() == Wait::Poll;
                work::over(Queues { publisher, subscriber, polled }, work, setup)
            }
        }
    }
}

struct Queues {
    publisher: Publisher,
    subscriber: Subscriber,
    polled: bool,
}

impl End for Queues {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        loop {
            match self.publisher.try_send(message) {
                Err(Error::Full) => {}
                sent => return Ok(sent?),
            }
        }
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        let got = loop {
            if self.polled {
                if let Some(got) = self.subscriber.try_recv_into(message)? {
                    break got;
                }
            } else if let Some(got) = self.subscriber.recv_timeout(Duration::from_secs(10))? {
                *message = got;
                return Ok(());
            }
        };
        if got == message.len() { Ok(()) } else { Err(format!("a message of {got} bytes").into()) }
    }
}

/// A link that is connected for the first message: each side has opened its publisher, and subscribes to the other's.
struct Fresh;

impl Connects for Fresh {
    type Own = Publisher;
    type End = Queues;

    fn prepare(&mut self, setup: &Setup) -> Outcome<Publisher> {
        let capacity = capacity(Work::Connect, setup.bytes);
        Ok(Publisher::open(&options(&names(setup).0, capacity))?)
    }

    fn connect(&mut self, setup: &Setup, publisher: Publisher) -> Outcome<Queues> {
        let capacity = capacity(Work::Connect, setup.bytes);
        let subscriber = Subscriber::open(&options(&names(setup).1, capacity))?;
        Ok(Queues { publisher, subscriber, polled: true })
    }
}

/// One queue with many publishers.
fn fan_in(setup: &Setup, capacity: usize) -> Outcome<FanInPart> {
    let options = options(setup.name, capacity);
    if setup.role == Role::Leader {
        let subscriber = Subscriber::open(&options)?;
        setup.meet()?;
        let mut message = [0; fan_in::BYTES];
        return Ok(FanInPart::Receiver(Box::new(move |tally| {
            while !tally.is_done() {
                if subscriber.try_recv_into(&mut message)?.is_some() {
                    tally.take(&message);
                }
            }
            Ok(())
        })));
    }
    setup.meet()?;
    let maker = |_| {
        let publisher = Publisher::open(&options)?;
        let make = move || -> Outcome<Send1> {
            Ok(Box::new(move |message| {
                loop {
                    match publisher.try_send(message) {
                        Err(Error::Full) => std::thread::yield_now(),
                        sent => return Ok(sent?),
                    }
                }
            }))
        };
        Ok(Box::new(make) as Maker)
    };
    Ok(FanInPart::Senders((0..SENDERS).map(maker).collect::<Outcome<_>>()?))
}
