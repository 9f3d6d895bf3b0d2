//! A topic with one healthy subscriber, which wants every message, and beside it three that the publisher does not wait for, each
//! in a process of its own: one is stopped, one gives back no memory, one is slow.
//!
//! The floor is a topic of the same kind with the healthy subscriber alone.

use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use rustix::thread::CpuSet;
use slipring::broadcast::{Publisher, SubscribeOptions, SubscriberState};
use slipring::error::TryRecvError;
use slipring::{Address, Context};

use super::broadcasts::Ends;
use super::subjects::gone;
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload;
use crate::peer::end_with_parent;

/// Each kind of neighbour, as the hidden option `--neighbour KIND:NAME` names it.
const KINDS: [&str; 3] = ["stopped", "keeping", "slow"];

/// The pause of a neighbour after each message: it leaves the CPU to the others. In a stream of 64 KiB a message takes some
/// 10 µs.
const PAUSE: Duration = Duration::from_millis(1);

/// How long the neighbours may take until they are as they shall be.
const START: Duration = Duration::from_secs(10);

/// Messages of this length and longer go as tensors.
const TENSOR: usize = 1024;

/// Messages to the healthy subscriber, and its answers.
pub struct Neighbours {
    ends: Ends,
    bytes: usize,
    /// Whether each message has an answer, or the last one alone.
    answers_each: bool,
    _others: Others,
}

impl Neighbours {
    pub fn each(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, true, &KINDS)
    }

    pub fn streamed(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, false, &KINDS)
    }

    pub fn each_alone(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, true, &[])
    }

    pub fn streamed_alone(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, false, &[])
    }

    fn open(setup: &Setup, answers_each: bool, kinds: &[&str]) -> Outcome<Box<dyn Exchange>> {
        let mut others = Others(Vec::new());
        let ends = Ends::prepared(setup, 1, &SubscribeOptions::every(), |publisher, name| {
            if setup.role == Role::Leader {
                others.start(name, kinds)?;
                others.settle(publisher)?;
            }
            Ok(())
        })?;
        let bytes = setup.bytes;
        Ok(Box::new(Neighbours { ends, bytes, answers_each, _others: others }))
    }

    fn send(&mut self) -> Outcome<()> {
        let (seed, bytes) = (self.ends.next_out(), self.bytes);
        if bytes < TENSOR {
            let mut room = self.ends.publisher.reserve(bytes)?;
            payload::fill(&mut room, seed);
            return Ok(room.publish()?);
        }
        let mut tensor = self.ends.publisher.alloc::<u8>([bytes])?;
        payload::fill(&mut tensor, seed);
        Ok(self.ends.publisher.send_tensor(tensor)?)
    }

    fn receive(&mut self) -> Outcome<()> {
        let (number, seed) = self.ends.next_in();
        let sample = self.ends.subscribers[0].recv()?.ok_or_else(gone)?;
        let got = match self.bytes < TENSOR {
            true => payload::sum_in_place(sample.bytes()?),
            false => payload::sum_in_place(sample.into_tensor()?.bytes()?),
        };
        payload::check(got, payload::expected(self.bytes, seed), number)
    }

    fn answer(&mut self) -> Outcome<()> {
        Ok(self.ends.publisher.send(b"done")?)
    }

    fn hear(&mut self) -> Outcome<()> {
        self.ends.subscribers[0].recv()?.ok_or_else(gone)?;
        Ok(())
    }
}

impl Exchange for Neighbours {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.send()?;
            if self.answers_each {
                self.hear()?;
            }
        }
        if self.answers_each { Ok(()) } else { self.hear() }
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.receive()?;
            if self.answers_each {
                self.answer()?;
            }
        }
        if self.answers_each { Ok(()) } else { self.answer() }
    }
}

/// The processes of the neighbours. Dropping kills them.
struct Others(Vec<Child>);

impl Others {
    fn start(&mut self, name: &str, kinds: &[&str]) -> Outcome<()> {
        for kind in kinds {
            let child = Command::new(std::env::current_exe()?)
                .arg(format!("--follow={}", std::process::id()))
                .arg(format!("--neighbour={kind}:{name}"))
                .spawn()?;
            self.0.push(child);
        }
        Ok(())
    }

    /// Publishes until all have joined, one is stopped, and one holds what it may.
    fn settle(&self, publisher: &mut Publisher) -> Outcome<()> {
        let until = Instant::now() + START;
        while !self.0.is_empty() {
            let frame = publisher.alloc::<u8>([TENSOR])?;
            publisher.send_tensor(frame)?;
            let all = publisher.subscribers();
            let is_stopped = all.iter().any(|one| one.state() == SubscriberState::Stopped);
            if all.len() == self.0.len() && is_stopped && all.iter().any(|one| one.held() == 4) {
                break;
            }
            if Instant::now() > until {
                return Err(format!("the neighbours are not as they shall be: {all:?}").into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Fails only if the child has been reaped already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a neighbour, named as `--neighbour` does, on any CPU.
pub fn run(parent: u32, neighbour: &str) -> Outcome<()> {
    end_with_parent(parent)?;
    let mut cpus = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| cpus.set(cpu));
    rustix::thread::sched_setaffinity(None, &cpus)?;
    let (kind, name) = neighbour.split_once(':').ok_or("--neighbour takes KIND:NAME")?;
    let options = SubscribeOptions::newest(4).reconnect(false);
    let mut subscriber = Context::new()?.subscribe(Address::named(name)?, options)?;
    let mut kept = Vec::new();
    loop {
        match subscriber.try_recv() {
            Ok(Some(sample)) => kept.push(sample.into_owned()?),
            Ok(None) => return Ok(()),
            Err(TryRecvError::Empty) => {}
            Err(error) => return Err(error.into()),
        }
        match kind {
            "stopped" if !kept.is_empty() => kill_process(getpid(), Signal::STOP)?,
            // With as many as it may hold it misses all that follows.
            "stopped" | "keeping" | "slow" => {}
            other => return Err(format!("no kind of neighbour {other:?}").into()),
        }
        thread::sleep(PAUSE);
        if kind == "slow" {
            kept.clear();
        }
    }
}
