//! The rows of `ping_pong`, and the floor of each.

use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::floors::{events, futex, line, relay, ring, socket, uds};
use crate::ping_pong::neighbours::Neighbours;
use crate::ping_pong::{registered, subjects, tensors, wakes};
use crate::rows::Rows;
use crate::runner::Pace;

/// Whether a row measures slipring or a floor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Slipring,
    Floor,
}

/// A mode: how its exchange is opened, paced, and compared.
pub struct Row {
    pub kind: Kind,
    pub mode: &'static str,
    /// Bytes of payload. For a subject of another size, a floor is measured at its first size.
    pub sizes: &'static [usize],
    pub open: fn(&Setup) -> Outcome<Box<dyn Exchange>>,
    /// Returns the variants for a size. The best of them at each distance is the row's figure.
    pub variants: fn(usize) -> Vec<u64>,
    pub pace: Pace,
    /// The mode of its floor.
    pub floor: Option<&'static str>,
    /// Whether a run without `--modes` measures a floor by itself.
    pub shown: bool,
}

/// Returns the variants of a row that has none.
pub fn one(_bytes: usize) -> Vec<u64> {
    vec![0]
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const FLOOR: Row = Row {
    kind: Kind::Floor,
    mode: "",
    sizes: &[8],
    open: line::Line::writable,
    variants: one,
    pace: Pace::Batches,
    floor: None,
    shown: true,
};

static FLOORS: &[Row] = &[
    Row { mode: "line-ro", open: line::Line::sealed, floor: Some("line"), ..FLOOR },
    Row { mode: "line", open: line::Line::writable, ..FLOOR },
    Row {
        mode: "rotate",
        sizes: &[KIB, 64 * KIB, MIB, 16 * MIB],
        open: relay::Rotate::writable,
        variants: relay::periods,
        ..FLOOR
    },
    // It differs from its floor by the reader's read-only mapping alone.
    Row {
        mode: "rotate-ro",
        sizes: &[KIB, 64 * KIB],
        open: relay::Rotate::sealed,
        variants: relay::periods,
        floor: Some("rotate"),
        ..FLOOR
    },
    Row {
        mode: "memcpy",
        sizes: &[MIB, 16 * MIB],
        open: relay::Memcpy::open,
        variants: relay::periods,
        ..FLOOR
    },
    Row {
        mode: "populate",
        sizes: &[1 << 30],
        open: tensors::Populate::open,
        pace: Pace::Each,
        shown: false,
        ..FLOOR
    },
    Row {
        mode: "descriptors",
        sizes: &[4 * KIB],
        open: registered::Descriptors::open,
        pace: Pace::Each,
        shown: false,
        ..FLOOR
    },
    Row { mode: "futex", open: futex::Futex::open, pace: Pace::Asleep, ..FLOOR },
    Row { mode: "futex-8", open: wakes::futex_last, pace: Pace::Asleep, shown: false, ..FLOOR },
    Row {
        mode: "futex-8-send",
        open: wakes::futex_send,
        pace: Pace::Asleep,
        shown: false,
        ..FLOOR
    },
    // The floors of a topic with neighbours are topics of slipring without them.
    Row {
        mode: "alone",
        sizes: &[64, 64 * KIB],
        open: Neighbours::each_alone,
        shown: false,
        ..FLOOR
    },
    Row {
        mode: "alone-stream",
        sizes: &[64, 64 * KIB],
        open: Neighbours::streamed_alone,
        pace: Pace::Stream,
        shown: false,
        ..FLOOR
    },
    Row { mode: "socket", open: socket::Socket::open, pace: Pace::Asleep, ..FLOOR },
    Row { mode: "eventfd", open: events::Events::open, pace: Pace::Asleep, ..FLOOR },
    Row {
        mode: "ring",
        sizes: &[64, 1024],
        open: ring::Ring::open,
        variants: ring::capacities,
        pace: Pace::Stream,
        ..FLOOR
    },
    #[cfg(feature = "tokio")]
    Row { mode: "tokio-uds", open: super::runtimes::socket, ..FLOOR },
    Row { mode: "uds", open: uds::Uds::open, pace: Pace::Each, ..FLOOR },
    // The floor beside itself: its ratio tells how far from 1 the method strays.
    Row {
        mode: "control",
        open: line::Line::sealed,
        floor: Some("line-ro"),
        shown: false,
        ..FLOOR
    },
];

/// Returns all rows, subjects first.
pub fn all() -> impl Iterator<Item = &'static Row> {
    subjects::ROWS.iter().chain(FLOORS)
}

/// Returns the row with this index.
pub fn row(index: usize) -> &'static Row {
    all().nth(index).expect("both processes have the same table")
}

/// Returns the index of a mode.
pub fn find(mode: &str) -> Option<usize> {
    all().position(|row| row.mode == mode)
}

/// Returns the index and the size of a row's floor: the row's size if the floor has it, else the floor's first.
pub fn floor(index: usize, bytes: usize) -> Option<(usize, usize)> {
    let floor = row(index).floor.and_then(find)?;
    let sizes = row(floor).sizes;
    Some((floor, if sizes.contains(&bytes) { bytes } else { sizes[0] }))
}

/// The rows of `ping_pong`.
pub struct PingPong;

impl Rows for PingPong {
    fn program(&self) -> &'static str {
        "ping_pong"
    }

    fn pace(&self, index: usize) -> Pace {
        row(index).pace
    }

    fn variants(&self, index: usize, bytes: usize) -> Vec<u64> {
        (row(index).variants)(bytes)
    }

    fn open(&self, index: usize, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        (row(index).open)(setup)
    }
}
