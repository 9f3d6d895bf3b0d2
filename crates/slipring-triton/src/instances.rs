//! The instances of a model: at most so many calls at once, and a bounded queue before them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metadata::ModelMetadata;
use crate::refusal::Refusal;

/// The instances of one model. Each model has its own, so requests to a slow one never wait before those of another.
#[derive(Debug)]
pub(crate) struct Instances {
    free: Arc<Semaphore>,
    /// The requests that wait.
    waiting: AtomicUsize,
    max_queue_size: usize,
}

impl Instances {
    /// Returns the instances of a model whose metadata may leave their number to `default`.
    pub(crate) fn new(metadata: &ModelMetadata, default: usize) -> Self {
        let instances = metadata.instances.unwrap_or(default).min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(instances)),
            waiting: AtomicUsize::new(0),
            max_queue_size: metadata.max_queue_size,
        }
    }

    /// Returns how many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits for a free instance, first come, first served. The permit is its own for as long as it lives.
    pub(crate) async fn acquire(&self, model: &str) -> Result<OwnedSemaphorePermit, Refusal> {
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let _waiting = Waiting::join(self, model)?;
        let permit = self.free.clone().acquire_owned().await;
        permit.map_err(|_| Refusal::stopped())
    }
}

/// A request in the queue. It leaves on drop.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn join(instances: &'a Instances, model: &str) -> Result<Self, Refusal> {
        let most = instances.max_queue_size;
        let waiting = Self(&instances.waiting);
        match waiting.0.fetch_add(1, Ordering::Relaxed) < most {
            true => Ok(waiting),
            false => Err(Refusal::queue_full(model, most)),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
