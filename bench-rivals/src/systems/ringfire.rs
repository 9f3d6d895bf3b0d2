//! ringfire: rings of slots of one type for short messages, copied in and out; for longer ones its blobs in
//! an arena, in place.

use std::io::ErrorKind;

use ringfire::{
    BlobConsumer, BlobProducer, FlowControl, FutexWait, RingConsumer, RingProducer,
    RingProducerBuilder, RingfireError,
};

use super::sized::{by_size, slots};
use super::{Kind, System};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload;
use crate::work::connect::Connect;
use crate::work::fan_out::{FanOut, Look, Part as FanOutPart, RECEIVERS};
use crate::work::link::{End, RUN, both};
use crate::work::{self, Treatment, Wait, Work};

pub struct Ringfire;

/// Up to here messages go through slots, from there on as blobs.
const SLOTTED: usize = 1024;

impl System for Ringfire {
    fn name(&self) -> &'static str {
        "ringfire"
    }

    fn kind(&self) -> Kind {
        Kind::Rival
    }

    fn package(&self) -> Option<&'static str> {
        Some("ringfire")
    }

    fn shares_writable(&self) -> bool {
        true
    }

    fn options(&self, work: Work, bytes: usize) -> String {
        let slots = slots(work, bytes);
        match work {
            Work::Stream(_) => format!("LosslessBackpressure, {slots} slots; recv_batch polled"),
            Work::Connect => format!("{slots} slots; attach and recv_batch polled"),
            Work::Wake => format!("{slots} slots; FutexWait without spinning"),
            Work::Idle => format!("{slots} slots; FutexWait"),
            _ if bytes <= SLOTTED => format!("{slots} slots; recv_batch of 1 polled"),
            _ => format!("blobs, arena of {} KiB; view polled", arena(bytes) >> 10),
        }
    }

    fn does(&self, work: Work, bytes: usize) -> bool {
        match work {
            Work::Trip(Treatment::Untouched) => bytes > SLOTTED,
            Work::Trip(_) => true,
            // Blobs are overwritten when their reader is late, and the queue of many writers too.
            Work::Stream(_) => bytes <= SLOTTED,
            Work::FanIn | Work::Reactor(_) => false,
            Work::FanOut | Work::Connect | Work::Wake | Work::Idle | Work::Footprint => true,
        }
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        if work == Work::FanOut {
            let part = fan_out(setup)?;
            return FanOut::over(part, setup);
        }
        if work == Work::Connect {
            return Connect::open(setup, connect);
        }
        if setup.bytes > SLOTTED {
            let (producer, consumer) = both(
                setup,
                |name| Ok(BlobProducer::create(path(name), BLOBS, arena(setup.bytes))?),
                |name| Ok(BlobConsumer::attach(path(name))?),
            )?;
            return work::over(Blobs { producer, consumer }, work, setup);
        }
        by_size!(setup.bytes, [8, 64, 1024], open(work, setup))
    }
}

fn path(name: &str) -> String {
    format!("/dev/shm/{name}")
}

/// Descriptors of blobs in a ring.
const BLOBS: u64 = 64;

/// Four of them, 1 MiB at least.
fn arena(bytes: usize) -> usize {
    (bytes * 4).max(1 << 20).next_power_of_two()
}

fn open<const BYTES: usize>(work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    let (producer, consumer) = both(setup, |name| create(name, work), attach)?;
    work::over(Rings::<BYTES>::new(producer, consumer, work.waits()), work, setup)
}

/// A ring each way, of which the leader's is there first. Nobody is told of a ring: one looks for it.
fn connect(setup: &Setup) -> Outcome<Rings<8>> {
    let (out, back) = (format!("{}-out", setup.name), format!("{}-back", setup.name));
    let (producer, consumer) = match setup.role {
        Role::Leader => (create(&out, Work::Connect)?, attach(&back)?),
        Role::Follower => {
            let consumer = attach(&out)?;
            (create(&back, Work::Connect)?, consumer)
        }
    };
    Ok(Rings::new(producer, consumer, Work::Connect.waits()))
}

fn create<const BYTES: usize>(name: &str, work: Work) -> Outcome<RingProducer<[u8; BYTES]>> {
    let mut builder = RingProducerBuilder::new(slots(work, BYTES) as u64);
    if matches!(work, Work::Stream(_)) {
        builder = builder.flow_control(FlowControl::LosslessBackpressure);
    }
    Ok(RingProducer::create_with_options(path(name), builder)?)
}

/// Looks for a ring until it is there.
fn attach<const BYTES: usize>(name: &str) -> Outcome<RingConsumer<[u8; BYTES]>> {
    let path = path(name);
    loop {
        match RingConsumer::attach(&path) {
            Err(RingfireError::Io(error)) if error.kind() == ErrorKind::NotFound => {}
            // Its file has no length yet, or no header.
            Err(RingfireError::CorruptLayout(_) | RingfireError::InvalidMagic { .. }) => {}
            attached => return Ok(attached?),
        }
    }
}

/// Slots are arrays of bytes, so that a message is copied from where it lies into its slot, and out to where it shall lie.
struct Rings<const BYTES: usize> {
    producer: RingProducer<[u8; BYTES]>,
    consumer: RingConsumer<[u8; BYTES]>,
    wait: Option<FutexWait>,
    /// Of a run.
    run: Box<[[u8; BYTES]]>,
}

impl<const BYTES: usize> Rings<BYTES> {
    fn new(
        producer: RingProducer<[u8; BYTES]>,
        consumer: RingConsumer<[u8; BYTES]>,
        wait: Wait,
    ) -> Self {
        let wait = match wait {
            Wait::Poll => None,
            Wait::Default => Some(FutexWait::default()),
            Wait::Sleep => Some(FutexWait::new(0, None)),
        };
        Rings { producer, consumer, wait, run: vec![[0; BYTES]; RUN].into() }
    }

    /// Receives messages that have come, one at least, into the first of these.
    #[inline]
    fn next(
        consumer: &mut RingConsumer<[u8; BYTES]>,
        wait: &mut Option<FutexWait>,
        messages: &mut [[u8; BYTES]],
    ) -> usize {
        if let Some(wait) = wait {
            messages[0] = consumer.recv_blocking(wait);
            return 1;
        }
        loop {
            let count = consumer.recv_batch(messages);
            if count > 0 {
                return count;
            }
        }
    }
}

impl<const BYTES: usize> End for Rings<BYTES> {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.producer.push(message.try_into()?);
        Ok(())
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        let (messages, _) = message.as_chunks_mut::<BYTES>();
        Self::next(&mut self.consumer, &mut self.wait, messages);
        Ok(())
    }

    fn sum_run(&mut self, _private: &mut Vec<u8>, most: u64) -> Outcome<(u64, u64)> {
        let run = &mut self.run[..RUN.min(most as usize)];
        let count = Self::next(&mut self.consumer, &mut self.wait, run);
        let sum = |sum: u64, slot: &[u8; BYTES]| sum.wrapping_add(payload::sum(slot));
        Ok((count as u64, run[..count].iter().fold(0, sum)))
    }
}

struct Blobs {
    producer: BlobProducer<()>,
    consumer: BlobConsumer<()>,
}

impl Blobs {
    #[inline]
    fn view<R>(&mut self, mut read: impl FnMut(&[u8]) -> R) -> Outcome<R> {
        loop {
            if let Some(result) = self.consumer.view(|(), bytes| read(bytes))? {
                return Ok(result);
            }
        }
    }
}

impl End for Blobs {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.producer.push(&(), message)?;
        Ok(())
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        loop {
            if self.consumer.recv(&mut (), message)?.is_some() {
                return Ok(());
            }
        }
    }

    fn fill(&mut self, private: &mut [u8], seed: u64) -> Outcome<()> {
        self.producer.push_with(&(), private.len(), |bytes| payload::fill(bytes, seed))?;
        Ok(())
    }

    fn sum(&mut self, _private: &mut Vec<u8>) -> Outcome<u64> {
        self.view(payload::sum)
    }

    fn hand(&mut self, len: usize) -> Outcome<()> {
        self.producer.push_with(&(), len, |_| {})?;
        Ok(())
    }

    fn take(&mut self, len: usize) -> Outcome<()> {
        let got = self.view(<[u8]>::len)?;
        if got == len { Ok(()) } else { Err(format!("a blob of {got} bytes").into()) }
    }
}

/// One producer of blobs with 16 consumers.
fn fan_out(setup: &Setup) -> Outcome<FanOutPart> {
    let (name, bytes) = (path(&format!("{}-all", setup.name)), setup.bytes);
    if setup.role == Role::Leader {
        let mut producer = BlobProducer::<()>::create(&name, BLOBS, arena(bytes))?;
        setup.meet()?;
        setup.meet()?;
        return Ok(FanOutPart::Sender(Box::new(move |fill| {
            producer.push_with(&(), bytes, &mut *fill)?;
            Ok(())
        })));
    }
    setup.meet()?;
    let receiver = |_| -> Outcome<Look> {
        let mut consumer = BlobConsumer::<()>::attach(&name)?;
        Ok(Box::new(move |look: &mut dyn FnMut(&[u8]) -> Outcome<()>| {
            loop {
                if let Some(looked) = consumer.view(|(), bytes| look(bytes))? {
                    return looked;
                }
            }
        }))
    };
    let receivers = (0..RECEIVERS).map(receiver).collect::<Outcome<_>>()?;
    setup.meet()?;
    Ok(FanOutPart::Receivers(receivers))
}
