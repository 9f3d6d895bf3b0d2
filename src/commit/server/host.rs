//! What all sessions of a server share: the service, its limits, the counts, and the workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::commit::server::options::ServerOptions;
use crate::commit::server::service::{Refused, Service};
use crate::commit::server::tally::Tally;
use crate::commit::server::unsent::Unsent;
use crate::commit::server::workers::WorkerPool;
use crate::error::CommitFault;

/// A service, and what the server adds to it.
pub(super) struct Host<S: Service> {
    service: S,
    options: ServerOptions,
    tally: Arc<Tally>,
    workers: WorkerPool,
    /// The next number.
    numbers: AtomicU64,
    /// The server ends: it begins nothing that clients ask for.
    ending: AtomicBool,
    /// The server closes its clients' links.
    closing: AtomicBool,
    unsent: Unsent,
}

impl<S: Service> Host<S> {
    pub(super) fn new(service: S, options: ServerOptions, tally: Arc<Tally>) -> Self {
        let (workers, numbers) = (WorkerPool::default(), AtomicU64::new(1));
        let (ending, closing) = (AtomicBool::new(false), AtomicBool::new(false));
        let unsent = Unsent::default();
        Self { service, options, tally, workers, numbers, ending, closing, unsent }
    }

    pub(super) fn service(&self) -> &S {
        &self.service
    }

    pub(super) fn options(&self) -> &ServerOptions {
        &self.options
    }

    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    pub(super) fn workers(&self) -> &WorkerPool {
        &self.workers
    }

    pub(super) fn unsent(&self) -> &Unsent {
        &self.unsent
    }

    /// Ignores what clients ask for from now on. What waits for a worker goes on.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Returns whether the server ends.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Begins nothing that waits for a worker, and answers nothing from now on.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Returns whether the server closes its clients' links.
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Returns a number, not 0, that this server has never returned before.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

/// Runs code of the service. A panic becomes [`CommitFault::Panicked`].
pub(super) fn guarded<T>(run: impl FnOnce() -> Result<T, Refused>) -> Result<T, CommitFault> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(answer) => answer.map_err(CommitFault::from),
        Err(panic) => {
            // Dropping the payload runs code of the service, which may panic, too.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
            Err(CommitFault::Panicked)
        }
    }
}
