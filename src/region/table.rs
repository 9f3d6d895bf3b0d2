//! The table of guarded mappings, which the guard's signal handler reads.
//!
//! The table has a fixed size, because a handler can neither allocate nor lock. The version of an entry says
//! whether its fields are valid:
//!
//! ```text
//!   version % 4    0 free ──claim──▶ 1 being filled ──▶ 2 taken ──release──▶ 3 being cleared ──▶ 4 = free
//! ```
//!
//! 1. An entry is claimed after its pages are mapped and before the first access. It is released after the
//!    last access and before the pages are unmapped.
//! 2. The handler believes the fields only if it reads the same version, one of a taken entry, before and
//!    after them. The entry of the faulting mapping is taken throughout, so the handler finds it.
//!
//! Every access is `SeqCst`, because none is on the hot path: the handler sees one moment of a total order.
//! Pairs: `claim` and `release` store the version, `find` loads it; `Found::mark` stores `faulted`,
//! `Slot::faulted` loads it.

use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

use crate::error::RegionFault;

/// Two registries of 1024 regions, the default, with a mapping to read and one to write for each.
pub(crate) const ENTRIES: usize = 4096;

struct GuardEntry {
    version: AtomicU64,
    /// The process that mapped the pages: a forked child inherits the table and not the pages.
    process: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    writable: AtomicBool,
    /// Set by the handler before it maps zeros over the pages.
    faulted: AtomicBool,
}

impl GuardEntry {
    const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            process: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            faulted: AtomicBool::new(false),
        }
    }
}

static TABLE: [GuardEntry; ENTRIES] = [const { GuardEntry::new() }; ENTRIES];
/// Entries from this index on were never taken.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A claimed entry, released on drop.
#[derive(Debug)]
pub(super) struct Slot {
    entry: &'static GuardEntry,
    version: u64,
}

impl Slot {
    /// Claims an entry for whole pages that this process has mapped.
    pub(super) fn claim(
        pages: Range<usize>,
        writable: bool,
        process: u64,
    ) -> Result<Self, RegionFault> {
        for (index, entry) in TABLE.iter().enumerate() {
            let free = entry.version.load(SeqCst);
            let filling = free + 1;
            if !free.is_multiple_of(4)
                || entry.version.compare_exchange(free, filling, SeqCst, SeqCst).is_err()
            {
                continue;
            }
            USED.fetch_max(index + 1, SeqCst);
            entry.process.store(process, SeqCst);
            entry.start.store(pages.start, SeqCst);
            entry.end.store(pages.end, SeqCst);
            entry.writable.store(writable, SeqCst);
            entry.faulted.store(false, SeqCst);
            entry.version.store(free + 2, SeqCst);
            return Ok(Self { entry, version: free + 2 });
        }
        Err(RegionFault::GuardFull { limit: ENTRIES })
    }

    /// Returns whether the handler has mapped zeros over the pages. The caller asks after an access.
    pub(super) fn faulted(&self) -> bool {
        // The earlier accesses are relaxed and may be stores. The fence keeps them before this load. The
        // handler marks before it maps zeros, so an access that met zeros sees the mark.
        fence(SeqCst);
        self.entry.faulted.load(SeqCst)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.entry.version.store(self.version + 1, SeqCst);
        self.entry.start.store(0, SeqCst);
        self.entry.end.store(0, SeqCst);
        self.entry.version.store(self.version + 2, SeqCst);
    }
}

impl core::fmt::Debug for GuardEntry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GuardEntry").field("version", &self.version).finish_non_exhaustive()
    }
}

/// A guarded mapping that holds an address.
pub(super) struct Found {
    pub(super) pages: Range<usize>,
    pub(super) writable: bool,
    entry: &'static GuardEntry,
}

impl Found {
    /// Tells all accesses to the mapping that they failed.
    pub(super) fn mark(&self) {
        self.entry.faulted.store(true, SeqCst);
    }
}

/// Returns the guarded mapping of process `process` that holds `address`. It only loads, for the handler.
pub(super) fn find(address: usize, process: u64) -> Option<Found> {
    TABLE[..USED.load(SeqCst).min(ENTRIES)].iter().find_map(|entry| {
        let before = entry.version.load(SeqCst);
        let owner = entry.process.load(SeqCst);
        let pages = entry.start.load(SeqCst)..entry.end.load(SeqCst);
        let writable = entry.writable.load(SeqCst);
        let settled = before % 4 == 2 && entry.version.load(SeqCst) == before;
        (settled && owner == process && pages.contains(&address)).then_some(Found {
            pages,
            writable,
            entry,
        })
    })
}

#[cfg(test)]
mod tests;
