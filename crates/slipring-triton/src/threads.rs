//! The blocking threads that models occupy.
//!
//! A call occupies the own thread of its model, or one of those that all models share. Slow models can occupy every shared
//! thread, and still never the own thread of another one. So each model goes on, whatever the others do, and all together
//! leave the rest of the runtime's threads to other work.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::refusal::Refusal;

/// The threads that the calls of one model may occupy.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

impl Threads {
    /// Returns a thread for one model, beside those that it shares.
    pub(crate) fn new(shared: &Arc<Semaphore>) -> Self {
        Self { own: Arc::new(Semaphore::new(1)), shared: shared.clone() }
    }

    /// Returns a thread if one is free and nobody waits for it.
    pub(crate) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        let [own, shared] = [&self.own, &self.shared].map(Arc::clone);
        own.try_acquire_owned().or_else(|_| shared.try_acquire_owned()).ok()
    }

    /// Waits for a free thread.
    pub(crate) async fn acquire(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let [own, shared] = [&self.own, &self.shared].map(Arc::clone);
        let permit = tokio::select! {
            biased;
            permit = own.acquire_owned() => permit,
            permit = shared.acquire_owned() => permit,
        };
        permit.map_err(|_| Refusal::stopped())
    }
}
