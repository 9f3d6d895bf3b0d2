//! ringfire: rings of slots of one type for short messages, copied in and out; for longer ones its blobs in
//! an arena, in place.

use std::io::ErrorKind;

use ringfire::{
    BlobConsumer, BlobProducer, FlowControl, FutexWait, RingConsumer, RingProducer,
    RingProducerBuilder, RingfireError,
};

use super::sized::{Slot, by_size, slots};
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
        match work {
            Work::Stream => {
                format!("LosslessBackpressure, {} slots; recv_batch polled", slots(bytes))
            }
            Work::Connect => format!("{} slots; attach and try_recv polled", slots(bytes)),
            Work::Wake => format!("{} slots; FutexWait without spinning", slots(bytes)),
            Work::Idle => format!("{} slots; FutexWait", slots(bytes)),
            _ if bytes <= SLOTTED => format!("{} slots; try_recv polled", slots(bytes)),
            _ => format!("blobs, arena of {} KiB; view polled", arena(bytes) >> 10),
        }
    }

    fn does(&self, work: Work, bytes: usize) -> bool {
        match work {
            Work::Trip(Treatment::Untouched) => bytes > SLOTTED,
            Work::Trip(_) => true,
            // Blobs are overwritten when their reader is late, and the queue of many writers too.
            Work::Stream => bytes <= SLOTTED,
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

fn create<const BYTES: usize>(name: &str, work: Work) -> Outcome<RingProducer<Slot<BYTES>>> {
    let mut builder = RingProducerBuilder::new(slots(BYTES) as u64);
    if work == Work::Stream {
        builder = builder.flow_control(FlowControl::LosslessBackpressure);
    }
    Ok(RingProducer::create_with_options(path(name), builder)?)
}

/// Looks for a ring until it is there.
fn attach<const BYTES: usize>(name: &str) -> Outcome<RingConsumer<Slot<BYTES>>> {
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

struct Rings<const BYTES: usize> {
    producer: RingProducer<Slot<BYTES>>,
    consumer: RingConsumer<Slot<BYTES>>,
    wait: Option<FutexWait>,
    slot: Box<Slot<BYTES>>,
    /// Of a run.
    run: Vec<Slot<BYTES>>,
}

impl<const BYTES: usize> Rings<BYTES> {
    fn new(
        producer: RingProducer<Slot<BYTES>>,
        consumer: RingConsumer<Slot<BYTES>>,
        wait: Wait,
    ) -> Self {
        let wait = match wait {
            Wait::Poll => None,
            Wait::Default => Some(FutexWait::default()),
            Wait::Sleep => Some(FutexWait::new(0, None)),
        };
        Rings { producer, consumer, wait, slot: Slot::boxed(), run: Vec::new() }
    }

    #[inline]
    fn next(&mut self) -> Slot<BYTES> {
        if let Some(wait) = &mut self.wait {
            return self.consumer.recv_blocking(wait);
        }
        loop {
            if let Some(slot) = self.consumer.try_recv() {
                return slot;
            }
        }
    }
}

impl<const BYTES: usize> End for Rings<BYTES> {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.slot.0.copy_from_slice(message);
        self.producer.push(&self.slot);
        Ok(())
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        message.copy_from_slice(&self.next().0);
        Ok(())
    }

    fn fill(&mut self, _private: &mut [u8], seed: u64) -> Outcome<()> {
        payload::fill(&mut self.slot.0, seed);
        self.producer.push(&self.slot);
        Ok(())
    }

    fn sum(&mut self, _private: &mut Vec<u8>) -> Outcome<u64> {
        Ok(payload::sum(&self.next().0))
    }

    fn sum_run(&mut self, _private: &mut Vec<u8>, most: u64) -> Outcome<(u64, u64)> {
        let most = RUN.min(most as usize);
        if self.run.is_empty() {
            self.run = vec![Slot([0; BYTES]); RUN];
        }
        loop {
            let count = self.consumer.recv_batch(&mut self.run[..most]);
            if count > 0 {
                let sum = |sum: u64, slot: &Slot<BYTES>| sum.wrapping_add(payload::sum(&slot.0));
                return Ok((count as u64, self.run[..count].iter().fold(0, sum)));
            }
        }
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
