//! shaq: queues of slots of one type in a shared file, in place.

#![allow(unsafe_code)]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::MemfdFlags;
#[cfg(not(feature = "shaq5"))]
use shaq::{broadcast, mpmc, spsc};
#[cfg(feature = "shaq5")]
use shaq5::{broadcast, mpmc, spsc};

use super::sized::{Slot, by_size, slots};
use super::{Kind, System, Writable};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, receive_fd, receive_fds, send_fd, send_fds};
use crate::payload;
use crate::work::connect::{Connect, Connects};
use crate::work::fan_in::{self, FanIn, Maker, Part as FanInPart, SENDERS, Send1};
use crate::work::fan_out::{FanOut, Look, Part as FanOutPart, RECEIVERS};
use crate::work::link::{End, RUN};
use crate::work::{self, Wait, Work};

pub struct Shaq {
    name: &'static str,
    /// Whether each of many senders has a queue of its own, in place of one that all write.
    each: bool,
}

pub const SHAQ: Shaq = Shaq { name: "shaq", each: false };
/// For many senders only.
pub const EACH: Shaq = Shaq { name: "shaq, spsc each", each: true };

impl System for Shaq {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> Kind {
        Kind::Rival
    }

    fn package(&self) -> Option<&'static str> {
        Some(if cfg!(feature = "shaq5") { "shaq 5" } else { "shaq 4" })
    }

    fn writable(&self) -> Writable {
        Writable::All
    }

    fn options(&self, work: Work, bytes: usize) -> String {
        let slots = slots(work, bytes);
        match work {
            Work::FanIn if self.each => {
                format!("an spsc of {slots} slots each; batches polled, a full sender yields")
            }
            Work::FanIn => {
                let slots = slots * SENDERS;
                format!("one mpmc of {slots} slots; polled, a full sender yields")
            }
            Work::FanOut => format!("broadcast, {slots} slots; polled"),
            Work::Wake | Work::Idle => format!("spsc, {slots} slots; reserve_read_batch_timeout"),
            Work::Stream(_) => format!("spsc, {slots} slots of {bytes} B; read batches polled"),
            _ => format!("spsc, {slots} slots of {bytes} B; polled"),
        }
    }

    fn does(&self, work: Work, _bytes: usize) -> bool {
        !matches!(work, Work::Reactor(_)) && (!self.each || work == Work::FanIn)
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        match work {
            Work::FanIn if self.each => return FanIn::open(setup, |setup, _| fan_in_each(setup)),
            Work::FanIn => return FanIn::open(setup, |setup, _| fan_in(setup)),
            Work::FanOut => {
                let part = by_size!(setup.bytes, [1048576], fan_out(setup))?;
                return FanOut::over(part, setup);
            }
            Work::Connect => return Connect::open(setup, Fresh),
            _ => {}
        }
        by_size!(setup.bytes, [8, 64, 1024, 8192, 65536, 1048576, 16777216], open(work, setup))
    }
}

/// A file of `len` bytes.
fn file(len: usize) -> Outcome<File> {
    let file = File::from(rustix::fs::memfd_create("shaq", MemfdFlags::CLOEXEC)?);
    file.set_len(len as u64)?;
    Ok(file)
}

fn open<const BYTES: usize>(work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    work::over(queues::<BYTES>(setup, work)?, work, setup)
}

/// A queue each way, of which the leader has the one end of both.
type Both<const BYTES: usize> =
    ([File; 2], spsc::Producer<Slot<BYTES>>, spsc::Consumer<Slot<BYTES>>);

/// A queue each way. The leader makes both.
fn queues<const BYTES: usize>(setup: &Setup, work: Work) -> Outcome<Queues<BYTES>> {
    let made = (setup.role == Role::Leader).then(|| make(work));
    link(setup, work.waits(), made.transpose()?)
}

fn make<const BYTES: usize>(work: Work) -> Outcome<Both<BYTES>> {
    let len = spsc::minimum_file_size::<Slot<BYTES>>(slots(work, BYTES));
    let (out, back) = (file(len)?, file(len)?);
    // SAFETY: a fresh file, of which this is the one that initializes it and the one producer; slots are
    // plain bytes on both sides.
    let producer = unsafe { spsc::Producer::create(&out, len)? };
    // SAFETY: as above, with the one consumer.
    let consumer = unsafe { spsc::Consumer::create(&back, len)? };
    Ok(([out, back], producer, consumer))
}

fn link<const BYTES: usize>(
    setup: &Setup,
    wait: Wait,
    made: Option<Both<BYTES>>,
) -> Outcome<Queues<BYTES>> {
    if let Some(([out, back], producer, consumer)) = made {
        send_fds(setup.socket, 0, &[out.as_fd(), back.as_fd()])?;
        return Ok(Queues { producer, consumer, wait });
    }
    let [out, back] = receive_fds(setup.socket)?.1.map(File::from);
    // SAFETY: the peer has made it with the same type, and this is its one producer.
    let producer = unsafe { spsc::Producer::join(&back)? };
    // SAFETY: as above, and this is its one consumer.
    let consumer = unsafe { spsc::Consumer::join(&out)? };
    Ok(Queues { producer, consumer, wait })
}

/// A link that is connected for the first message.
struct Fresh;

impl Connects for Fresh {
    type Own = Option<Both<8>>;
    type End = Queues<8>;

    fn prepare(&mut self, setup: &Setup) -> Outcome<Self::Own> {
        (setup.role == Role::Leader).then(|| make(Work::Connect)).transpose()
    }

    fn connect(&mut self, setup: &Setup, own: Self::Own) -> Outcome<Queues<8>> {
        link(setup, Work::Connect.waits(), own)
    }
}

struct Queues<const BYTES: usize> {
    producer: spsc::Producer<Slot<BYTES>>,
    consumer: spsc::Consumer<Slot<BYTES>>,
    wait: Wait,
}

impl<const BYTES: usize> Queues<BYTES> {
    #[inline]
    fn write(&mut self, write: impl FnOnce(&mut [u8])) {
        loop {
            let mut batch = self.producer.write_batch();
            // SAFETY: initialized below; any bytes are a slot, those of the mapping too.
            if let Some(slot) = unsafe { batch.try_as_mut() } {
                let slot = slot.as_mut_ptr().cast::<u8>();
                // SAFETY: a slot has so many bytes, and is this producer's alone until the batch is dropped.
                write(unsafe { std::slice::from_raw_parts_mut(slot, BYTES) });
                return;
            }
        }
    }

    #[inline]
    fn read<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Outcome<R> {
        self.read_batch(NonZeroUsize::MIN, |batch| {
            Ok(read(&batch.get(0).ok_or("an empty batch")?.0))
        })
    }

    #[inline]
    fn read_batch<R>(
        &mut self,
        most: NonZeroUsize,
        read: impl FnOnce(&spsc::ReadBatch<'_, Slot<BYTES>>) -> R,
    ) -> R {
        loop {
            let batch = match self.wait {
                Wait::Poll => self.consumer.try_reserve_read_batch(most),
                Wait::Default | Wait::Sleep => {
                    let patience = Duration::from_secs(10);
                    self.consumer.reserve_read_batch_timeout(most, patience).ok()
                }
            };
            if let Some(batch) = batch {
                return read(&batch);
            }
        }
    }
}

impl<const BYTES: usize> End for Queues<BYTES> {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.write(|bytes| bytes.copy_from_slice(message));
        Ok(())
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        self.read(|bytes| message.copy_from_slice(bytes))
    }

    fn fill(&mut self, _private: &mut [u8], seed: u64) -> Outcome<()> {
        self.write(|bytes| payload::fill(bytes, seed));
        Ok(())
    }

    fn sum(&mut self, _private: &mut Vec<u8>) -> Outcome<u64> {
        self.read(payload::sum)
    }

    fn sum_run(&mut self, _private: &mut Vec<u8>, most: u64) -> Outcome<(u64, u64)> {
        let most = NonZeroUsize::new(RUN.min(most as usize)).ok_or("no message is wanted")?;
        Ok(self.read_batch(most, |batch| {
            let sum = |sum: u64, slot: &Slot<BYTES>| sum.wrapping_add(payload::sum(&slot.0));
            (batch.len() as u64, batch.iter().fold(0, sum))
        }))
    }

    fn hand(&mut self, _len: usize) -> Outcome<()> {
        self.write(|_| {});
        Ok(())
    }

    fn take(&mut self, _len: usize) -> Outcome<()> {
        self.read(|_| {})
    }
}

type Message = Slot<{ fan_in::BYTES }>;

/// A queue for each sender.
fn fan_in_each(setup: &Setup) -> Outcome<FanInPart> {
    if setup.role == Role::Leader {
        let len = spsc::minimum_file_size::<Message>(slots(Work::FanIn, fan_in::BYTES));
        let mut consumers = Vec::new();
        for _ in 0..SENDERS {
            let file = file(len)?;
            // SAFETY: a fresh file, of which this is the one that initializes it and the one consumer; slots are plain
            // bytes on both sides.
            consumers.push(unsafe { spsc::Consumer::<Message>::create(&file, len)? });
            send_fd(setup.socket, 0, file.as_fd())?;
        }
        let most = NonZeroUsize::new(RUN).ok_or("no message is wanted")?;
        return Ok(FanInPart::Receiver(Box::new(move |tally| {
            while !tally.is_done() {
                for consumer in &mut consumers {
                    if let Some(batch) = consumer.try_reserve_read_batch(most) {
                        batch.iter().for_each(|slot| tally.take(&slot.0));
                    }
                }
            }
            Ok(())
        })));
    }
    let maker = |_| {
        let file = File::from(receive_fd(setup.socket)?.1);
        // SAFETY: the peer has made it with the same type, and this is its one producer.
        let mut producer = unsafe { spsc::Producer::<Message>::join(&file)? };
        let make = move || -> Outcome<Send1> {
            Ok(Box::new(move |message| {
                while producer.try_write(Slot(*message)).is_err() {
                    std::thread::yield_now();
                }
                Ok(())
            }))
        };
        Ok(Box::new(make) as Maker)
    };
    Ok(FanInPart::Senders((0..SENDERS).map(maker).collect::<Outcome<_>>()?))
}

/// One queue that all write.
fn fan_in(setup: &Setup) -> Outcome<FanInPart> {
    if setup.role == Role::Leader {
        let slots = SENDERS * slots(Work::FanIn, fan_in::BYTES);
        let len = mpmc::minimum_file_size::<Message>(slots);
        let file = file(len)?;
        // SAFETY: a fresh file that nobody else initializes; slots are plain bytes on both sides.
        let consumer = unsafe { mpmc::Consumer::<Message>::create(&file, len)? };
        send_fd(setup.socket, 0, file.as_fd())?;
        // Batches of this queue are slower: a sender that the kernel has put aside amid a message holds up the whole batch.
        return Ok(FanInPart::Receiver(Box::new(move |tally| {
            while !tally.is_done() {
                if let Some(slot) = consumer.try_reserve_read() {
                    tally.take(&slot.as_ref().0);
                }
            }
            Ok(())
        })));
    }
    let file = File::from(receive_fd(setup.socket)?.1);
    // SAFETY: the peer has made it with the same type.
    let producer = unsafe { mpmc::Producer::<Message>::join(&file)? };
    let maker = |_| {
        let producer = producer.clone();
        let make = move || -> Outcome<Send1> {
            Ok(Box::new(move |message| {
                while producer.try_write(Slot(*message)).is_err() {
                    std::thread::yield_now();
                }
                Ok(())
            }))
        };
        Box::new(make) as Maker
    };
    Ok(FanInPart::Senders((0..SENDERS).map(maker).collect()))
}

/// The one producer of a queue in a fresh file.
fn broadcaster<const BYTES: usize>(
    file: &File,
    config: broadcast::BroadcastConfig,
) -> Outcome<broadcast::Producer<Slot<BYTES>>> {
    #[cfg(not(feature = "shaq5"))]
    // SAFETY: nobody else initializes it; slots are plain bytes on both sides.
    let made = unsafe { broadcast::Producer::create(file, config, broadcast::ProducerId::new(0)) };
    #[cfg(feature = "shaq5")]
    // SAFETY: as above.
    let made = unsafe { broadcast::Producer::create(file, config) };
    Ok(made?)
}

/// One producer with 16 consumers, none of which is left behind.
fn fan_out<const BYTES: usize>(setup: &Setup) -> Outcome<FanOutPart> {
    if setup.role == Role::Leader {
        // It gets its length below.
        let file = file(0)?;
        let config = broadcast::BroadcastConfig {
            capacity: slots(Work::FanOut, BYTES),
            producer_slots: 1,
            consumer_slots: RECEIVERS,
        };
        let mut producer = broadcaster::<BYTES>(&file, config)?;
        send_fd(setup.socket, 0, file.as_fd())?;
        setup.meet()?;
        return Ok(FanOutPart::Sender(Box::new(move |fill| {
            loop {
                // SAFETY: initialized below; any bytes are a slot, those of the mapping too.
                if let Some(mut slot) = unsafe { producer.try_reserve_write() } {
                    let bytes = slot.as_mut().as_mut_ptr().cast::<u8>();
                    // SAFETY: a slot has so many bytes, and is this producer's alone until the guard is
                    // dropped.
                    fill(unsafe { std::slice::from_raw_parts_mut(bytes, BYTES) });
                    // Version 4 publishes a slot that is dropped.
                    #[cfg(feature = "shaq5")]
                    slot.publish();
                    return Ok(());
                }
            }
        })));
    }
    let file = File::from(receive_fd(setup.socket)?.1);
    // SAFETY: the peer has made it with the same type.
    let queue = unsafe { broadcast::Broadcast::<Slot<BYTES>>::join(&file)? };
    let receiver = |_| -> Outcome<Look> {
        let mut consumer = queue.consumer()?;
        Ok(Box::new(move |look: &mut dyn FnMut(&[u8]) -> Outcome<()>| {
            loop {
                if let Some(slot) = consumer.try_reserve_read() {
                    return look(&slot.as_ref().0);
                }
            }
        }))
    };
    let receivers = (0..RECEIVERS).map(receiver).collect::<Outcome<_>>()?;
    setup.meet()?;
    Ok(FanOutPart::Receivers(receivers))
}
