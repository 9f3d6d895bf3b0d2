//! What the machine itself can do, without a library: the floors of `ping_pong`.

use super::{Kind, System, Writable};
use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::floors::{futex, line, relay, ring, uds};
use crate::work::{Treatment, Work};

pub struct Floor {
    name: &'static str,
    says: &'static str,
    does: fn(Work, usize) -> bool,
    open: fn(&Setup) -> Outcome<Box<dyn Exchange>>,
    variants: fn(usize) -> Vec<u64>,
}

fn one(_bytes: usize) -> Vec<u64> {
    vec![0]
}

/// A message of so many bytes fits into the line that is bounced.
const IN_A_LINE: usize = 64;

pub const LINE: Floor = Floor {
    name: "line",
    says: "one line each way, mapped writable by both",
    does: |work, bytes| match work {
        Work::Trip(Treatment::Untouched) | Work::Reactor(1) => true,
        Work::Trip(_) => bytes <= IN_A_LINE,
        _ => false,
    },
    open: line::Line::writable,
    variants: one,
};

pub const LINE_RO: Floor = Floor {
    name: "line-ro",
    says: "one line each way, mapped read-only by its reader",
    open: line::Line::sealed,
    ..LINE
};

pub const MAILBOX: Floor = Floor {
    name: "mailbox",
    says: "one plain shared buffer each way, in place",
    does: |work, _| work == Work::Trip(Treatment::Filled),
    open: relay::Rotate::writable,
    variants: |_| vec![1],
};

pub const ROTATE: Floor = Floor {
    name: "rotate",
    says: "plain shared buffers in turn, in place; the best number of them up to 64 MiB",
    variants: relay::periods,
    ..MAILBOX
};

/// What the reader's read-only mapping costs, with nothing else changed.
pub const ROTATE_RO: Floor = Floor {
    name: "rotate-ro",
    says: "as rotate, mapped read-only by its reader",
    does: |work, bytes| work == Work::Trip(Treatment::Filled) && bytes <= 64 << 10,
    open: relay::Rotate::sealed,
    ..ROTATE
};

pub const MEMCPY: Floor = Floor {
    name: "memcpy",
    says: "plain shared buffers in turn, filled and copied in, copied out and summed; the best number of them up to 64 MiB",
    does: |work, bytes| work == Work::Trip(Treatment::Copied) && bytes > IN_A_LINE,
    open: relay::Memcpy::filled,
    variants: relay::periods,
};

pub const RING: Floor = Floor {
    name: "ring",
    says: "a bare ring of plain slots, published by an index; the best number of slots",
    does: |work, _| matches!(work, Work::Stream(_)),
    open: ring::Ring::open,
    variants: ring::capacities,
};

pub const FUTEX: Floor = Floor {
    name: "futex",
    says: "a word in shared memory, FUTEX_WAIT and FUTEX_WAKE",
    does: |work, _| work == Work::Wake,
    open: futex::Futex::open,
    variants: one,
};

pub const FUTEX_LIMITED: Floor = Floor {
    name: "futex 10 ms",
    says: "as futex, but a sleep ends after 10 ms at the latest",
    open: futex::Futex::limited,
    ..FUTEX
};

pub const UDS: Floor = Floor {
    name: "uds",
    says: "a seqpacket socket, one descriptor passed each way",
    does: |work, _| work == Work::Connect,
    open: uds::Uds::open,
    variants: one,
};

impl System for Floor {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> Kind {
        Kind::Floor
    }

    fn writable(&self) -> Writable {
        match [LINE_RO.name, ROTATE_RO.name, UDS.name].contains(&self.name) {
            true => Writable::Nothing,
            false => Writable::All,
        }
    }

    fn options(&self, _work: Work, _bytes: usize) -> String {
        self.says.into()
    }

    fn does(&self, work: Work, bytes: usize) -> bool {
        (self.does)(work, bytes)
    }

    fn variants(&self, _work: Work, bytes: usize) -> Vec<u64> {
        (self.variants)(bytes)
    }

    fn open(&self, _work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        (self.open)(setup)
    }
}
