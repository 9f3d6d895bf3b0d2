//! The counters of all links of a reactor.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::reactor::link::Link;
use crate::reactor::stats::ReactorStats;

/// The counters of all links of a reactor. A send counts in its link alone, and [`stats`](Self::stats) adds the links up.
#[derive(Debug, Default)]
pub(super) struct Totals {
    registered: Mutex<Registered>,
    sleeps: AtomicU64,
}

#[derive(Debug, Default)]
struct Registered {
    links: HashMap<u64, Link>,
    /// The counters of links that have ended.
    ended: ReactorStats,
}

impl Totals {
    pub(super) fn insert(&self, link: &Link) {
        self.registered().links.insert(link.key(), link.clone());
    }

    /// Removes a link that has ended, and keeps its counts.
    pub(super) fn remove(&self, link: &Link) {
        let stats = link.stats();
        let mut registered = self.registered();
        let removed = registered.links.remove(&link.key());
        if removed.is_some() {
            registered.ended.add(&stats);
        }
        // The last handle of a link drops values of the user's.
        drop(registered);
        drop(removed);
    }

    /// Counts that the loop goes to sleep. The loop alone calls it.
    pub(super) fn count_sleep(&self) {
        self.sleeps.store(self.sleeps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the sums.
    pub(super) fn stats(&self) -> ReactorStats {
        let registered = self.registered();
        let mut stats = registered.ended;
        let links: Vec<Link> = registered.links.values().cloned().collect();
        drop(registered);
        stats.links = links.len() as u64;
        stats.sleeps = self.sleeps.load(Ordering::Relaxed);
        for link in &links {
            stats.add(&link.stats());
        }
        stats
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        // Each step under the lock leaves the map whole.
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
