//! shmem-ipc: a ring of words in a sealed memfd, in place. A message may go around the ring's end, and is
//! then written and read in two parts.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;

use shmem_ipc::sharedring::{Receiver, Sender};

use super::{Kind, System, Writable};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, receive_fds, send_fds};
use crate::payload;
use crate::work::connect::{Connect, Connects};
use crate::work::link::End;
use crate::work::{self, Wait, Work};

pub struct ShmemIpc;

const WORD: usize = 8;

/// Words in a ring: a stream's queue or 1 MiB, and four messages at least.
fn capacity(work: Work, bytes: usize) -> usize {
    let ring = if let Work::Stream(queue) = work { queue.bytes() } else { 1 << 20 };
    (bytes * 4).max(ring) / WORD
}

impl System for ShmemIpc {
    fn name(&self) -> &'static str {
        "shmem-ipc"
    }

    fn kind(&self) -> Kind {
        Kind::Rival
    }

    fn package(&self) -> Option<&'static str> {
        Some("shmem-ipc")
    }

    fn writable(&self) -> Writable {
        Writable::All
    }

    fn options(&self, work: Work, bytes: usize) -> String {
        let ring = (capacity(work, bytes) * WORD) >> 10;
        match work.waits() {
            Wait::Poll => format!("ring of {ring} KiB; polled, no signals"),
            Wait::Default | Wait::Sleep => format!("ring of {ring} KiB; block_until_readable"),
        }
    }

    fn does(&self, work: Work, _bytes: usize) -> bool {
        !matches!(work, Work::Reactor(_) | Work::FanIn | Work::FanOut)
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        if work == Work::Connect {
            return Connect::open(setup, Fresh);
        }
        work::over(rings(setup, work)?, work, setup)
    }
}

/// A link that is connected for the first message.
struct Fresh;

impl Connects for Fresh {
    /// Both rings, which the leader has made.
    type Own = Option<(Sender<u64>, Receiver<u64>)>;
    type End = Ring;

    fn prepare(&mut self, setup: &Setup) -> Outcome<Self::Own> {
        (setup.role == Role::Leader).then(|| make(capacity(Work::Connect, setup.bytes))).transpose()
    }

    fn connect(&mut self, setup: &Setup, own: Self::Own) -> Outcome<Ring> {
        link(setup, Work::Connect, own)
    }
}

/// A ring each way. The leader makes both.
fn rings(setup: &Setup, work: Work) -> Outcome<Ring> {
    let made = (setup.role == Role::Leader).then(|| make(capacity(work, setup.bytes)));
    link(setup, work, made.transpose()?)
}

fn make(capacity: usize) -> Outcome<(Sender<u64>, Receiver<u64>)> {
    Ok((Sender::new(capacity)?, Receiver::new(capacity)?))
}

fn link(setup: &Setup, work: Work, made: Option<(Sender<u64>, Receiver<u64>)>) -> Outcome<Ring> {
    let (capacity, sleeps) = (capacity(work, setup.bytes), work.waits() != Wait::Poll);
    let Some((sender, receiver)) = made else {
        let fds = receive_fds(setup.socket)?.1.map(File::from);
        let [out, out_empty, out_full, back, back_empty, back_full] = fds;
        let receiver = Receiver::open(capacity, out, out_empty, out_full)?;
        let sender = Sender::open(capacity, back, back_empty, back_full)?;
        return Ok(Ring { sender, receiver, sleeps });
    };
    let fds = [
        sender.memfd().as_file(),
        sender.empty_signal(),
        sender.full_signal(),
        receiver.memfd().as_file(),
        receiver.empty_signal(),
        receiver.full_signal(),
    ];
    send_fds(setup.socket, 0, &fds.map(File::as_fd))?;
    Ok(Ring { sender, receiver, sleeps })
}

struct Ring {
    sender: Sender<u64>,
    receiver: Receiver<u64>,
    sleeps: bool,
}

impl Ring {
    /// `write` is given parts of the message, and where each begins.
    #[inline]
    fn write(&mut self, len: usize, mut write: impl FnMut(&mut [u8], usize)) -> Outcome<()> {
        let mut done = 0;
        while done < len {
            let part = |words: *mut u64, count: usize| {
                let bytes = (len - done).min(count * WORD);
                // SAFETY: so many words are this sender's until the closure returns.
                write(unsafe { std::slice::from_raw_parts_mut(words.cast(), bytes) }, done);
                done += bytes;
                bytes / WORD
            };
            if self.sleeps {
                self.sender.send_raw(part)?;
            } else {
                self.sender.sender_mut().send(part)?;
            }
        }
        Ok(())
    }

    /// `read` is shown parts of the message, and where each begins.
    #[inline]
    fn read(&mut self, len: usize, mut read: impl FnMut(&[u8], usize)) -> Outcome<()> {
        let mut done = 0;
        while done < len {
            let part = |words: *const u64, count: usize| {
                let bytes = (len - done).min(count * WORD);
                // SAFETY: so many words are this receiver's until the closure returns.
                read(unsafe { std::slice::from_raw_parts(words.cast(), bytes) }, done);
                done += bytes;
                bytes / WORD
            };
            if self.sleeps {
                self.receiver.block_until_readable()?;
                self.receiver.receive_raw(part)?;
            } else {
                self.receiver.receiver_mut().recv(part)?;
            }
        }
        Ok(())
    }
}

impl End for Ring {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.write(message.len(), |part, at| part.copy_from_slice(&message[at..at + part.len()]))
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        self.read(message.len(), |part, at| message[at..at + part.len()].copy_from_slice(part))
    }

    fn fill(&mut self, private: &mut [u8], seed: u64) -> Outcome<()> {
        let word = |at: usize| seed.wrapping_add((at / WORD) as u64);
        self.write(private.len(), |part, at| payload::fill(part, word(at)))
    }

    fn sum(&mut self, private: &mut Vec<u8>) -> Outcome<u64> {
        let mut sum = 0u64;
        self.read(private.len(), |part, _| sum = sum.wrapping_add(payload::sum(part)))?;
        Ok(sum)
    }

    fn hand(&mut self, len: usize) -> Outcome<()> {
        self.write(len, |_, _| {})
    }

    fn take(&mut self, len: usize) -> Outcome<()> {
        self.read(len, |_, _| {})
    }
}
