//! What the systems are given to do. One file a measure.
//!
//! ```text
//! trip      round trips, in three treatments of the payload
//! stream    one way
//! wake      round trips between two sleepers
//! fan_in    16 senders, one receiver
//! fan_out   one message to 16 receivers
//! connect   connect and first echo, a fresh link each time
//! reactor   round trips over one of many live links      (slipring only)
//! idle      the CPU of a receiver to whom nobody sends
//! footprint memory and descriptors of a link             (measured from outside, in `measure`)
//! ```

pub mod connect;
pub mod fan_in;
pub mod fan_out;
pub mod finding;
pub mod footprint;
pub mod idle;
pub mod link;
pub mod stream;
pub mod trip;
pub mod wake;

use std::sync::atomic::AtomicBool;

use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::runner::Pace;
use link::End;

/// What is done with the bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Treatment {
    /// Every byte written by the sender, every byte summed by the receiver; in the shared memory where
    /// the system allows that, in private memory and copied where it does not.
    Filled,
    /// Copied in from private memory, copied out to private memory.
    Copied,
    /// Nobody looks at it.
    Untouched,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Trip(Treatment),
    Stream(Queue),
    Wake,
    FanIn,
    FanOut,
    Connect,
    /// Over one of so many links.
    Reactor(usize),
    Idle,
    Footprint,
}

/// How long the queues of a stream are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// As each system has it by default.
    Default,
    /// [`LONG`] bytes in every system.
    Long,
}

/// Bytes of a long queue.
pub const LONG: usize = 4 * MIB;

/// Bytes of a queue in systems whose users have to choose: as many as slipring's default.
pub const CHOSEN: usize = MIB;

impl Queue {
    /// Bytes of a queue in a system that has no default.
    pub fn bytes(self) -> usize {
        match self {
            Queue::Default => CHOSEN,
            Queue::Long => LONG,
        }
    }
}

/// Whether this run only sees whether everything works. In the leader's process.
pub static QUICK: AtomicBool = AtomicBool::new(false);

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All works, in the table's order.
pub const ALL: [Work; 15] = [
    Work::Trip(Treatment::Filled),
    Work::Trip(Treatment::Copied),
    Work::Trip(Treatment::Untouched),
    Work::Stream(Queue::Default),
    Work::Stream(Queue::Long),
    Work::Wake,
    Work::FanIn,
    Work::FanOut,
    Work::Connect,
    Work::Reactor(1),
    Work::Reactor(16),
    Work::Reactor(256),
    Work::Reactor(1000),
    Work::Idle,
    Work::Footprint,
];

impl Work {
    /// As `--measure` and the table call it.
    pub fn name(self) -> &'static str {
        match self {
            Work::Trip(Treatment::Filled) => "trip-filled",
            Work::Trip(Treatment::Copied) => "trip-copied",
            Work::Trip(Treatment::Untouched) => "trip-untouched",
            Work::Stream(Queue::Default) => "stream",
            Work::Stream(Queue::Long) => "stream-4m",
            Work::Wake => "wake",
            Work::FanIn => "fan-in",
            Work::FanOut => "fan-out",
            Work::Connect => "connect",
            Work::Reactor(_) => "reactor",
            Work::Idle => "idle",
            Work::Footprint => "footprint",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Work::Trip(Treatment::Filled) => {
                "round trip, filled and summed in place where that can be"
            }
            Work::Trip(Treatment::Copied) => "round trip, copied in and out",
            Work::Trip(Treatment::Untouched) => "round trip, zero touch",
            Work::Stream(Queue::Default) => "one way, filled and summed; default queues",
            Work::Stream(Queue::Long) => "one way, filled and summed; every queue has 4 MiB",
            Work::Wake => "round trip, both sides asleep",
            Work::FanIn => "16 senders to one receiver",
            Work::FanOut => "one message to 16 receivers and an answer",
            Work::Connect => "connect and first echo",
            Work::Reactor(_) => "round trip over one of many live links",
            Work::Idle => "CPU of a receiver to whom nobody sends",
            Work::Footprint => "a link's memory and descriptors, both sides together",
        }
    }

    /// Bytes of payload.
    pub fn sizes(self) -> &'static [usize] {
        match self {
            Work::Trip(_) => &[8, 64, KIB, 8 * KIB, 64 * KIB, MIB, 16 * MIB],
            Work::Stream(_) => &[64, KIB, MIB],
            Work::FanIn => &[fan_in::BYTES],
            Work::FanOut => &[MIB],
            Work::Wake | Work::Connect | Work::Reactor(_) | Work::Idle | Work::Footprint => &[8],
        }
    }

    pub fn pace(self) -> Pace {
        match self {
            Work::Trip(_) | Work::Reactor(_) | Work::FanOut | Work::Footprint => Pace::Batches,
            Work::Stream(_) | Work::FanIn => Pace::Stream,
            Work::Wake => Pace::Asleep,
            Work::Connect | Work::Idle => Pace::Each,
        }
    }

    /// Whether its ends may sleep while they wait. Elsewhere they poll, except in systems that cannot.
    pub fn waits(self) -> Wait {
        match self {
            Work::Wake => Wait::Sleep,
            Work::Idle | Work::Footprint => Wait::Default,
            _ => Wait::Poll,
        }
    }
}

/// How a receiver waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// For latency: it looks again and again, or as the system's default has it if that looks first.
    Poll,
    /// As the system has it by default.
    Default,
    /// It sleeps at once.
    Sleep,
}

/// The exchange that a pair of ends makes.
pub fn over<E: End + 'static>(end: E, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    match work {
        Work::Trip(treatment) => Ok(trip::Trips::over(end, treatment, setup)),
        Work::Footprint => Ok(trip::Trips::over(end, Treatment::Copied, setup)),
        Work::Stream(_) => stream::Stream::over(end, setup),
        Work::Wake => Ok(wake::Wakes::over(end, setup)),
        Work::Idle => idle::Idle::over(end, setup),
        _ => Err(format!("{} is not done over two ends", work.name()).into()),
    }
}
