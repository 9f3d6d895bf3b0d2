//! The limits that a server sets, and its number of threads.

use std::time::Duration;

use crate::error::CommitFault;

/// Regions that a server maps at most, of all clients together: a quarter of what the kernel grants a process by
/// default (`vm.max_map_count`, 65530).
const ALL_REGIONS: usize = 16384;

/// Loads, commits and updates that one client may have waiting: 16 bound what a client can make the server remember, and no client of this library sends a second one before the first is answered.
pub(crate) const REQUESTS: usize = 16;

/// Bytes of long requests that one client may have waiting, beside the first one, which may have any length.
pub(crate) const REQUEST_BYTES: usize = 64 << 20;

/// Options of a [`Server`](crate::commit::Server): its number of worker threads, and what each client may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerOptions {
    workers: usize,
    models: usize,
    commits: usize,
    regions: usize,
    bytes: u64,
    unsealed: bool,
    shutdown_timeout: Duration,
}

impl ServerOptions {
    /// Returns the defaults: as many workers as processors; for each client 64 models, 1024 commits, 8192 regions and
    /// 64 GiB; sealed memory and dmabufs only; 20 s for a shutdown.
    pub fn new() -> Self {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            workers,
            models: 64,
            commits: 1024,
            regions: 8192,
            bytes: 64 << 30,
            unsealed: false,
            shutdown_timeout: Duration::from_secs(20),
        }
    }

    /// Sets the number of worker threads, at least 1: so many handlers that are not
    /// [inline](crate::commit::Service::runs_inline) run at a time.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets how many models one client may have loaded.
    pub fn models(mut self, models: usize) -> Self {
        self.models = models;
        self
    }

    /// Sets how many sessions one client may have committed.
    pub fn commits(mut self, commits: usize) -> Self {
        self.commits = commits;
        self
    }

    /// Sets how many regions one client may have committed.
    pub fn regions(mut self, regions: usize) -> Self {
        self.regions = regions;
        self
    }

    /// Sets how many bytes of memory one client may have committed.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Allows memory that its owner can shrink. Handlers copy such memory, or touch it
    /// [in place](crate::commit::View::in_place) under the [guard](crate::region::SigbusGuard).
    pub fn allow_unsealed(mut self, allow: bool) -> Self {
        self.unsealed = allow;
        self
    }

    /// Sets how long a server that is dropped lets requests go on, and lets clients take their answers, before it closes the
    /// links of its clients: 20 s by default. A client that does not read its answers makes it as long.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    pub(super) fn shutdown_limit(&self) -> Duration {
        self.shutdown_timeout
    }

    pub(super) fn worker_count(&self) -> usize {
        self.workers
    }

    /// Returns whether memory that its owner can shrink is allowed.
    pub(super) fn allows_unsealed(&self) -> bool {
        self.unsealed
    }

    /// Checks that a client which has `used` models may load one more.
    pub(super) fn check_models(&self, used: usize) -> Result<(), CommitFault> {
        within("models", used as u64, 1, self.models as u64)
    }

    /// Checks that a client which has `used` commits may make one more.
    pub(super) fn check_commits(&self, used: usize) -> Result<(), CommitFault> {
        within("commits", used as u64, 1, self.commits as u64)
    }

    /// Checks that a client which has `used` regions committed may commit `needed` more.
    pub(super) fn check_regions(&self, used: usize, needed: usize) -> Result<(), CommitFault> {
        within("regions", used as u64, needed as u64, self.regions as u64)
    }

    /// Checks that a client which has `used` bytes committed may commit `needed` more.
    pub(super) fn check_bytes(&self, used: u64, needed: u64) -> Result<(), CommitFault> {
        within("bytes", used, needed, self.bytes)
    }

    /// Checks that a client which has `used` requests waiting may make one more.
    pub(super) fn check_requests(&self, used: usize) -> Result<(), CommitFault> {
        within("requests", used as u64, 1, REQUESTS as u64)
    }

    /// Checks that a client which has `used` bytes of long requests waiting may make one more, of `len` bytes.
    pub(super) fn check_long_request(&self, used: usize, len: usize) -> Result<(), CommitFault> {
        if used == 0 {
            return Ok(());
        }
        within("bytes of requests", used as u64, len as u64, REQUEST_BYTES as u64)
    }

    /// Checks that a server which has `used` regions mapped may map `needed` more.
    pub(super) fn check_mappings(&self, used: usize, needed: usize) -> Result<(), CommitFault> {
        if used + needed > ALL_REGIONS {
            let why = format!(
                "{used} regions are mapped, {needed} more are needed, {ALL_REGIONS} may be"
            );
            return Err(CommitFault::Resources { why });
        }
        Ok(())
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self::new()
    }
}

fn within(what: &'static str, used: u64, needed: u64, limit: u64) -> Result<(), CommitFault> {
    if used.saturating_add(needed) > limit {
        return Err(CommitFault::Quota { what, used, needed, limit });
    }
    Ok(())
}
