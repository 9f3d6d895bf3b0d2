//! What a server counts: clients, models, commits, mappings, descriptors, executions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::commit::memory::Memory;
use crate::commit::server::options::ServerOptions;
use crate::error::CommitFault;

/// Counts of a [`Server`](crate::commit::Server), at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Clients that are connected.
    pub clients: usize,
    /// Models that are loaded.
    pub models: usize,
    /// Sessions that are committed.
    pub commits: usize,
    /// Regions that are mapped.
    pub mappings: usize,
    /// Descriptors of clients' memory that the server holds: of dmabufs and of unsealed memory.
    pub descriptors: usize,
    /// Executions that went well.
    pub executions: u64,
    /// Executions that failed.
    pub failures: u64,
}

/// The counts while they change. All accesses are relaxed: the counts are reported, and guard nothing.
#[derive(Debug, Default)]
pub(super) struct Tally {
    clients: AtomicUsize,
    models: AtomicUsize,
    commits: AtomicUsize,
    mappings: AtomicUsize,
    descriptors: AtomicUsize,
    executions: AtomicU64,
    failures: AtomicU64,
}

impl Tally {
    pub(super) fn read(&self) -> ServerStats {
        ServerStats {
            clients: self.clients.load(Ordering::Relaxed),
            models: self.models.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
            mappings: self.mappings.load(Ordering::Relaxed),
            descriptors: self.descriptors.load(Ordering::Relaxed),
            executions: self.executions.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }

    /// Counts a client until the guard is dropped.
    pub(super) fn client(self: &Arc<Self>) -> Counted {
        Counted::new(self, |tally| &tally.clients)
    }

    /// Counts a model until the guard is dropped.
    pub(super) fn model(self: &Arc<Self>) -> Counted {
        Counted::new(self, |tally| &tally.models)
    }

    /// Counts a commit until the guard is dropped.
    pub(super) fn commit(self: &Arc<Self>) -> Counted {
        Counted::new(self, |tally| &tally.commits)
    }

    /// Counts an execution that has ended.
    pub(super) fn executed(&self, well: bool) {
        let count = if well { &self.executions } else { &self.failures };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts regions as mapped.
    ///
    /// # Errors
    ///
    /// [`CommitFault::Resources`]: too many are mapped. None of these is counted.
    pub(super) fn map(
        &self,
        options: &ServerOptions,
        regions: &[Arc<Memory>],
    ) -> Result<(), CommitFault> {
        let (mappings, descriptors) = count(regions);
        let used = self.mappings.fetch_add(mappings, Ordering::Relaxed);
        if let Err(fault) = options.check_mappings(used, mappings) {
            self.mappings.fetch_sub(mappings, Ordering::Relaxed);
            return Err(fault);
        }
        self.descriptors.fetch_add(descriptors, Ordering::Relaxed);
        Ok(())
    }

    /// Counts regions as unmapped.
    pub(super) fn unmap(&self, regions: &[Arc<Memory>]) {
        let (mappings, descriptors) = count(regions);
        self.mappings.fetch_sub(mappings, Ordering::Relaxed);
        self.descriptors.fetch_sub(descriptors, Ordering::Relaxed);
    }
}

/// Returns how many regions these are, and how many of them hold a descriptor.
fn count(regions: &[Arc<Memory>]) -> (usize, usize) {
    (regions.len(), regions.iter().filter(|memory| memory.holds_descriptor()).count())
}

/// Something that is counted as long as this lives.
pub(super) struct Counted {
    tally: Arc<Tally>,
    which: fn(&Tally) -> &AtomicUsize,
}

impl Counted {
    fn new(tally: &Arc<Tally>, which: fn(&Tally) -> &AtomicUsize) -> Self {
        which(tally).fetch_add(1, Ordering::Relaxed);
        Self { tally: tally.clone(), which }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.which)(&self.tally).fetch_sub(1, Ordering::Relaxed);
    }
}
