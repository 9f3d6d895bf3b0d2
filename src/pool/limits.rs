//! How much a pool may hold, and what it answers when that is not enough.

use crate::error::{Error, ErrorKind};
use crate::shm::Backing;

/// How much a pool may hold, and how its blocks rotate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolOptions {
    /// The most bytes of all segments together.
    pub(crate) quota: u64,
    /// Bytes of each size class that rotate while peers are near.
    pub(crate) footprint: u64,
    /// Bytes of each size class that rotate while peers are far.
    pub(crate) far_footprint: u64,
    pub(crate) backing: Backing,
}

/// The quota has no room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted {
    pub(crate) needed: u64,
    pub(crate) used: u64,
    pub(crate) quota: u64,
}

impl From<Exhausted> for Error {
    fn from(exhausted: Exhausted) -> Self {
        let Exhausted { needed, used, quota } = exhausted;
        ErrorKind::PoolExhausted { needed, used, quota }.into()
    }
}

/// Why the pool has no block for a borrower now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// All slots of the borrower are on loan.
    Slot,
    Memory(Exhausted),
}
