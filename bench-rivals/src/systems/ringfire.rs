//! ringfire: rings of slots of one type for short messages, copied in and out; for longer ones its blobs in
//! an arena, in place.

use ringfire::{
    BlobConsumer, BlobProducer, FlowControl, FutexWait, RingConsumer, RingMultiplexer,
    RingProducer, RingProducerBuilder,
};

use super::sized::{by_size, slots};
use super::{Kind, System, Writable};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload;
use crate::work::connect::{Connect, Connects};
use crate::work::fan_in::{BYTES, FanIn, Maker, Part as FanInPart, SENDERS, Send1};
use crate::work::fan_out::{FanOut, Look, Part as FanOutPart, RECEIVERS};
use crate::work::link::{End, RUN, both, names};
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

    fn writable(&self) -> Writable {
        Writable::All
    }

    fn options(&self, work: Work, bytes: usize) -> String {
        let slots = slots(work, bytes);
        match work {
            Work::Stream(_) => format!("LosslessBackpressure, {slots} slots; recv_batch polled"),
            Work::FanIn => {
                format!(
                    "LosslessBackpressure, a ring of {slots} slots each; RingMultiplexer, recv_batch polled"
                )
            }
            Work::Connect => format!("{slots} slots; recv_batch of 1 polled"),
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
            // Blobs are overwritten when their reader is late.
            Work::Stream(_) => bytes <= SLOTTED,
            Work::Reactor(_) => false,
            Work::FanIn
            | Work::FanOut
            | Work::Connect
            | Work::Wake
            | Work::Idle
            | Work::Footprint => true,
        }
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        if work == Work::FanOut {
            let part = fan_out(setup)?;
            return FanOut::over(part, setup);
        }
        if work == Work::FanIn {
            return FanIn::open(setup, |setup, _| fan_in(setup));
        }
        if work == Work::Connect {
            return Connect::open(setup, Fresh);
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
    let (producer, consumer) =
        both(setup, |name| create(name, work), |name| Ok(RingConsumer::attach(path(name))?))?;
    work::over(Rings::<BYTES>::new(producer, consumer, work.waits()), work, setup)
}

/// A link that is connected for the first message: each side has made its ring, and attaches to the other's.
struct Fresh;

impl Connects for Fresh {
    type Own = RingProducer<[u8; 8]>;
    type End = Rings<8>;

    fn prepare(&mut self, setup: &Setup) -> Outcome<Self::Own> {
        create(&names(setup).0, Work::Connect)
    }

    fn connect(&mut self, setup: &Setup, own: Self::Own) -> Outcome<Rings<8>> {
        let consumer = RingConsumer::attach(path(&names(setup).1))?;
        Ok(Rings::new(own, consumer, Work::Connect.waits()))
    }
}

/// A ring for each sender, and a multiplexer of the receiver.
fn fan_in(setup: &Setup) -> Outcome<FanInPart> {
    let name = |sender: usize| path(&format!("{}-{sender}", setup.name));
    if setup.role == Role::Leader {
        setup.meet()?;
        let mut rings = RingMultiplexer::<[u8; BYTES]>::new();
        for sender in 0..SENDERS {
            rings.attach(name(sender))?;
        }
        setup.meet()?;
        let mut run = vec![[0; BYTES]; RUN];
        return Ok(FanInPart::Receiver(Box::new(move |tally| {
            while !tally.is_done() {
                for ring in 0..rings.len() {
                    let ring = rings.consumer_mut(ring).ok_or("no such ring")?;
                    let count = ring.recv_batch(&mut run);
                    run[..count].iter().for_each(|message| tally.take(message));
                }
            }
            Ok(())
        })));
    }
    let maker = |sender| {
        let slots = slots(Work::FanIn, BYTES) as u64;
        let builder =
            RingProducerBuilder::new(slots).flow_control(FlowControl::LosslessBackpressure);
        let mut ring = RingProducer::<[u8; BYTES]>::create_with_options(name(sender), builder)?;
        let make = move || -> Outcome<Send1> {
            Ok(Box::new(move |message| {
                ring.push(message);
                Ok(())
            }))
        };
        Ok(Box::new(make) as Maker)
    };
    let makers = (0..SENDERS).map(maker).collect::<Outcome<_>>()?;
    setup.meet()?;
    // The receiver attaches before a sender could lap it.
    setup.meet()?;
    Ok(FanInPart::Senders(makers))
}

fn create<const BYTES: usize>(name: &str, work: Work) -> Outcome<RingProducer<[u8; BYTES]>> {
    let mut builder = RingProducerBuilder::new(slots(work, BYTES) as u64);
    if matches!(work, Work::Stream(_)) {
        builder = builder.flow_control(FlowControl::LosslessBackpressure);
    }
    Ok(RingProducer::create_with_options(path(name), builder)?)
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
