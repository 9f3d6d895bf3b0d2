//! What a service allows, and what it counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What a [`Server`](crate::commit::Server) allows each of its clients, and with how many threads it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerOptions {
    pub(super) workers: usize,
    pub(super) models: usize,
    pub(super) commits: usize,
    pub(super) regions: usize,
    pub(super) bytes: u64,
    pub(super) unsealed: bool,
}

/// Regions that are mapped for all clients of a server together at most: a quarter of what the kernel grants a
/// process by default (`vm.max_map_count`).
pub(super) const ALL_REGIONS: usize = 16384;

/// Requests other than executions that one client may have waiting.
pub(super) const REQUESTS: usize = 16;

impl ServerOptions {
    /// The defaults: as many workers as processors; for each client 64 models, 1024 commits, 8192 regions and 64 GiB;
    /// sealed memory and dmabufs only.
    pub fn new() -> Self {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        Self { workers, models: 64, commits: 1024, regions: 8192, bytes: 64 << 30, unsealed: false }
    }

    /// Executions that may run at once, 1 at least.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Models that one client may have loaded.
    pub fn models(mut self, models: usize) -> Self {
        self.models = models;
        self
    }

    /// Sessions that one client may have committed.
    pub fn commits(mut self, commits: usize) -> Self {
        self.commits = commits;
        self
    }

    /// Regions that one client may have committed.
    pub fn regions(mut self, regions: usize) -> Self {
        self.regions = regions;
        self
    }

    /// Bytes of committed memory of one client.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Takes memory that its owner could make shorter, too. Handlers copy it, or touch it
    /// [in place](crate::commit::View::in_place) under the [guard](crate::region::SigbusGuard).
    pub fn allow_unsealed(mut self, allow: bool) -> Self {
        self.unsealed = allow;
        self
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What a server has, and what it has done.
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
    /// Descriptors of clients' memory that are held: of dmabufs and unsealed memory.
    pub descriptors: usize,
    /// Executions that went well.
    pub executions: u64,
    /// Executions that failed.
    pub failures: u64,
}

/// The same, while it changes. Relaxed throughout: these are told, and nothing else is read because of them.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) clients: AtomicUsize,
    pub(super) models: AtomicUsize,
    pub(super) commits: AtomicUsize,
    pub(super) mappings: AtomicUsize,
    pub(super) descriptors: AtomicUsize,
    pub(super) executions: AtomicU64,
    pub(super) failures: AtomicU64,
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
}

/// One more, until it is dropped.
pub(super) struct One<'a>(&'a AtomicUsize);

impl<'a> One<'a> {
    pub(super) fn more(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }

    /// It stays counted: whoever says so counts it back.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
