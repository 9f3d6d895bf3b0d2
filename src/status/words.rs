//! The words of a row that have a few values: one enum for the process that stores them and the tool that reads them.

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// An address that the process listens on.
    Listener = 1,
    /// One side of a link.
    Link = 2,
    /// A publisher.
    Topic = 3,
    /// The memory of a context.
    Pool = 4,
}

/// The role of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Role {
    /// A topic and a pool have none.
    None = 0,
    /// The side that connected.
    Connected = 1,
    /// The side that accepted, or a listener for such.
    Accepted = 2,
    /// The publisher's side of a subscription, or the listener of a topic.
    Publishes = 3,
    /// The subscriber's side.
    Subscribes = 4,
}

/// How a half passes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It runs its user's code, or nobody uses it.
    Running = 0,
    /// It polls for what it waits for.
    Polling = 1,
    /// It sleeps on a futex.
    Parked = 2,
    /// A thread sleeps on a descriptor for it.
    Armed = 3,
    /// It is dropped.
    Gone = 4,
}

/// The thing that a half waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// A message.
    Message = 1,
    /// Room in the ring, or in the slots of a topic.
    Room = 2,
    /// Memory of the pool, or the return of a loan.
    Memory = 3,
    /// That the peer reads the packets of its socket.
    Packets = 4,
}

/// The health of a link, which only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The link is alive.
    Alive = 0,
    /// The peer's end of the socket is closed.
    HungUp = 1,
    /// The peer's process has ended.
    Dead = 2,
    /// This side ended the link, because of a fault of the peer or what this process lacks.
    Failed = 3,
}

impl Kind {
    /// Returns the kind in the low 8 bits of a stamp.
    pub(super) fn of(word: u64) -> Option<Self> {
        let all = [Self::Listener, Self::Link, Self::Topic, Self::Pool];
        all.into_iter().find(|kind| *kind as u64 == word & 0xff)
    }
}

impl Role {
    /// Returns the role in the low 8 bits of a word.
    pub(super) fn of(word: u64) -> Option<Self> {
        let all = [Self::None, Self::Connected, Self::Accepted, Self::Publishes, Self::Subscribes];
        all.into_iter().find(|role| *role as u64 == word & 0xff)
    }
}

impl State {
    /// Returns the state in the low 8 bits of a word.
    pub(super) fn of(word: u64) -> Option<Self> {
        let all = [Self::Running, Self::Polling, Self::Parked, Self::Armed, Self::Gone];
        all.into_iter().find(|state| *state as u64 == word & 0xff)
    }

    /// Returns whether a half in this state waits for something.
    pub fn waits(self) -> bool {
        matches!(self, Self::Polling | Self::Parked | Self::Armed)
    }
}

impl Awaited {
    /// Returns what bits 8 to 15 of a half's state name.
    pub(super) fn of(word: u64) -> Option<Self> {
        let all = [Self::Message, Self::Room, Self::Memory, Self::Packets];
        all.into_iter().find(|awaited| *awaited as u64 == word >> 8 & 0xff)
    }
}

impl Health {
    /// Returns the health of a whole word.
    pub(super) fn of(word: u64) -> Option<Self> {
        let all = [Self::Alive, Self::HungUp, Self::Dead, Self::Failed];
        all.into_iter().find(|health| *health as u64 == word)
    }
}
