//! The mappings that the guard's signal handler knows.
//!
//! A fixed table, since a handler can neither allocate nor lock. Each place has a version, which says
//! what its fields are worth:
//!
//! ```text
//!   version % 4    0 free ──claim──▶ 1 being filled ──▶ 2 taken ──release──▶ 3 being cleared ──▶ 4 = free
//! ```
//!
//! 1. A place is taken after its pages are mapped and before anybody touches them, and released
//!    after the last access and before they are unmapped.
//! 2. The handler believes the fields only if it reads one version, a taken one, before and after
//!    them. The place of the mapping that faulted is taken throughout, so it is found.
//!
//! All of it is off the hot path, so every access is `SeqCst`: what the handler sees is some moment
//! of one order of all of them, and 2 needs no further argument. Pairs: `claim` and `release` store
//! the version, `find` loads it; `Found::mark` stores `faulted`, `Slot::faulted` loads it.

use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

use crate::error::RegionFault;

/// For two registries of as many regions as they take by default, each of which is read and written.
const PLACES: usize = 4096;

struct Place {
    version: AtomicU64,
    /// The number of the process that mapped it: a forked child inherits the table, not the pages.
    process: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    writable: AtomicBool,
    /// Set by the handler, once zeros stand in for the pages.
    faulted: AtomicBool,
}

impl Place {
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

static TABLE: [Place; PLACES] = [const { Place::new() }; PLACES];
/// Places from here on were never taken.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A place that is taken; released on drop.
#[derive(Debug)]
pub(super) struct Slot {
    place: &'static Place,
    version: u64,
}

impl Slot {
    /// Takes a place for whole pages that are mapped in this process.
    pub(super) fn claim(
        pages: Range<usize>,
        writable: bool,
        process: u64,
    ) -> Result<Self, RegionFault> {
        for (index, place) in TABLE.iter().enumerate() {
            let free = place.version.load(SeqCst);
            let filling = free + 1;
            if !free.is_multiple_of(4)
                || place.version.compare_exchange(free, filling, SeqCst, SeqCst).is_err()
            {
                continue;
            }
            USED.fetch_max(index + 1, SeqCst);
            place.process.store(process, SeqCst);
            place.start.store(pages.start, SeqCst);
            place.end.store(pages.end, SeqCst);
            place.writable.store(writable, SeqCst);
            place.faulted.store(false, SeqCst);
            place.version.store(free + 2, SeqCst);
            return Ok(Self { place, version: free + 2 });
        }
        Err(RegionFault::GuardFull { limit: PLACES })
    }

    /// Whether zeros stand in for the pages, as seen after an access.
    pub(super) fn faulted(&self) -> bool {
        // The accesses before are relaxed, and may be stores; none of them may come later than this
        // load. Whoever's access met zeros sees the mark, as the handler marks before it maps them.
        fence(SeqCst);
        self.place.faulted.load(SeqCst)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.place.version.store(self.version + 1, SeqCst);
        self.place.start.store(0, SeqCst);
        self.place.end.store(0, SeqCst);
        self.place.version.store(self.version + 2, SeqCst);
    }
}

impl core::fmt::Debug for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Place").field("version", &self.version).finish_non_exhaustive()
    }
}

/// A guarded mapping that an address lies in.
pub(super) struct Found {
    pub(super) pages: Range<usize>,
    pub(super) writable: bool,
    place: &'static Place,
}

impl Found {
    /// Tells all accesses to the mapping that they failed.
    pub(super) fn mark(&self) {
        self.place.faulted.store(true, SeqCst);
    }
}

/// The guarded mapping of this process that `address` lies in. Only loads: for the handler.
pub(super) fn find(address: usize, process: u64) -> Option<Found> {
    TABLE[..USED.load(SeqCst).min(PLACES)].iter().find_map(|place| {
        let before = place.version.load(SeqCst);
        let owner = place.process.load(SeqCst);
        let pages = place.start.load(SeqCst)..place.end.load(SeqCst);
        let writable = place.writable.load(SeqCst);
        let settled = before % 4 == 2 && place.version.load(SeqCst) == before;
        (settled && owner == process && pages.contains(&address)).then_some(Found {
            pages,
            writable,
            place,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    // Addresses that no mapping has, so that other tests' places are others.
    const BASE: usize = 0x1000;

    #[test]
    fn an_address_is_found_while_its_place_is_taken() {
        let slot = Slot::claim(BASE..BASE + 64, true, 7).unwrap();
        for (address, process, hit) in [
            (BASE, 7, true),
            (BASE + 63, 7, true),
            (BASE + 64, 7, false),
            (BASE - 1, 7, false),
            (BASE, 8, false),
        ] {
            assert_eq!(find(address, process).is_some(), hit, "{address:#x} of {process}");
        }
        assert!(!slot.faulted());
        find(BASE, 7).unwrap().mark();
        assert!(slot.faulted());
        drop(slot);
        assert!(find(BASE, 7).is_none());
        assert!(!Slot::claim(BASE..BASE + 64, true, 7).unwrap().faulted());
    }

    #[test]
    fn what_is_found_is_never_a_mixture() {
        // Start and length determine each other.
        let pages = |len: usize| {
            let start = 0x10_0000 + len * 4096;
            start..start + len
        };
        let process = 99;
        let looked = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0.. {
                    drop(Slot::claim(pages(16 * (1 + round % 7)), false, process).unwrap());
                    if looked.load(SeqCst) {
                        return;
                    }
                }
            });
            for round in 0..2_000_000 {
                let pages = pages(16 * (1 + round % 7));
                let found = find(pages.start, process);
                let mixed = found.filter(|found| found.pages != pages).map(|found| found.pages);
                let beyond = find(pages.end, process).map(|found| found.pages);
                if mixed.is_some() || beyond.is_some() {
                    looked.store(true, SeqCst);
                    panic!("{mixed:?} or {beyond:?} instead of {pages:?}");
                }
            }
            looked.store(true, SeqCst);
        });
    }
}
