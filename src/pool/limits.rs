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
    pub(crate) loans: LoanLimit,
    pub(crate) backing: Backing,
}

/// How much of a pool one borrower may hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoanLimit {
    pub(crate) blocks: u32,
    /// Bytes of the blocks. A borrower that holds nothing gets one block of any length.
    pub(crate) bytes: u64,
    /// Whether a borrower's process may hold so many bytes, whatever others hold.
    pub(crate) is_right: bool,
}

impl LoanLimit {
    /// The most loans of one borrower, whatever the limit: the pool checks each of them under its lock when it takes
    /// blocks back.
    pub(crate) const MOST: u32 = 1024;

    /// By default one borrower may hold the bytes of one in so many parts of the quota.
    pub(crate) const PART: u64 = 4;

    /// Returns the limit of a pool whose borrowers share nothing fairly.
    #[cfg(any(test, fuzzing))]
    pub(crate) const NONE: Self = Self { blocks: Self::MOST, bytes: u64::MAX, is_right: true };
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
    /// The borrower holds as many blocks or bytes as it may, or its account is closed.
    Share,
    Memory(Exhausted),
}
