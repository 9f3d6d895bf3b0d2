//! Tachyon: a ring in shared memory, in place. Compiled with the feature `tachyon`.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use tachyon_ipc::{Bus, RxGuard};

use super::{Kind, System, Writable};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload;
use crate::work::link::{End, RUN};
use crate::work::{self, LONG, Queue, Wait, Work};

pub struct Tachyon;

/// It stalls for good in a ring of fewer than 33 messages, so rings have room for 64 of them, also where a stream's queue is
/// shorter.
fn capacity(work: Work, bytes: usize) -> usize {
    let ring = if let Work::Stream(queue) = work { queue.bytes() } else { 1 << 20 };
    (bytes * 64).max(ring).next_power_of_two()
}

/// Looks before its receiver sleeps.
fn looks(wait: Wait) -> u32 {
    match wait {
        Wait::Poll => u32::MAX,
        // What its README uses.
        Wait::Default => 10_000,
        Wait::Sleep => 1,
    }
}

impl System for Tachyon {
    fn name(&self) -> &'static str {
        "tachyon"
    }

    fn kind(&self) -> Kind {
        Kind::Rival
    }

    fn package(&self) -> Option<&'static str> {
        Some("tachyon-ipc")
    }

    fn writable(&self) -> Writable {
        Writable::All
    }

    fn options(&self, work: Work, bytes: usize) -> String {
        let spin = looks(work.waits());
        let receive = if matches!(work, Work::Stream(_)) { "drain_batch" } else { "acquire_rx" };
        format!("ring of {} KiB; {receive}({spin})", capacity(work, bytes) >> 10)
    }

    fn does(&self, work: Work, bytes: usize) -> bool {
        // A queue of 4 MiB is too short for messages of 1 MiB.
        let fits = work != Work::Stream(Queue::Long) || capacity(work, bytes) == LONG;
        fits && bytes <= 1 << 20
            && !matches!(work, Work::Reactor(_) | Work::Connect | Work::FanIn | Work::FanOut)
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let path = |way: &str| format!("/tmp/{}-{way}.sock", setup.name);
        let bytes = setup.bytes;
        let listen = |way: &str| -> Outcome<Bus> {
            let bus = Bus::listen(&path(way), capacity(work, bytes))?;
            let _ = std::fs::remove_file(path(way));
            Ok(bus)
        };
        let (sender, receiver) = match setup.role {
            Role::Leader => {
                let sender = listen("out")?;
                (sender, connect(&path("back"))?)
            }
            Role::Follower => {
                let receiver = connect(&path("out"))?;
                (listen("back")?, receiver)
            }
        };
        work::over(Buses { sender, receiver, looks: looks(work.waits()) }, work, setup)
    }
}

/// Whoever connects is told nothing of when the other listens.
fn connect(path: &str) -> Outcome<Bus> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match Bus::connect(path) {
            Ok(bus) => return Ok(bus),
            Err(error) if Instant::now() > deadline => return Err(error.to_string().into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

struct Buses {
    sender: Bus,
    receiver: Bus,
    looks: u32,
}

impl Buses {
    #[inline]
    fn write(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Outcome<()> {
        loop {
            match self.sender.acquire_tx(len) {
                Ok(mut room) => {
                    // SAFETY: the slot is this sender's alone until it is committed.
                    write(unsafe { room.as_mut_slice() });
                    return Ok(room.commit(len, 1)?);
                }
                Err(tachyon_ipc::TachyonError::BufferFull) => {}
                Err(error) => return Err(error.to_string().into()),
            }
        }
    }

    #[inline]
    fn next(&self) -> Outcome<RxGuard<'_>> {
        Ok(self.receiver.acquire_rx(self.looks)?)
    }
}

impl End for Buses {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.write(message.len(), |bytes| bytes[..message.len()].copy_from_slice(message))
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        let got = self.next()?;
        message.copy_from_slice(got.data());
        Ok(got.commit()?)
    }

    fn fill(&mut self, private: &mut [u8], seed: u64) -> Outcome<()> {
        let len = private.len();
        self.write(len, |bytes| payload::fill(&mut bytes[..len], seed))
    }

    fn sum(&mut self, _private: &mut Vec<u8>) -> Outcome<u64> {
        let got = self.next()?;
        let sum = payload::sum(got.data());
        got.commit()?;
        Ok(sum)
    }

    fn sum_run(&mut self, _private: &mut Vec<u8>, most: u64) -> Outcome<(u64, u64)> {
        let most = RUN.min(most as usize);
        let batch = self.receiver.drain_batch(most, self.looks)?;
        let sum = batch
            .iter()
            .fold(0, |sum: u64, message| sum.wrapping_add(payload::sum(message.data())));
        let count = batch.len() as u64;
        batch.commit()?;
        Ok((count, sum))
    }

    fn hand(&mut self, len: usize) -> Outcome<()> {
        self.write(len, |_| {})
    }

    fn take(&mut self, _len: usize) -> Outcome<()> {
        Ok(self.next()?.commit()?)
    }
}
