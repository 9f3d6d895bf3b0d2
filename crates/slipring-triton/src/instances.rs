//! The instances of a model: at most so many calls at once, and a bounded queue before them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metadata::ModelMetadata;
use crate::refusal::Refusal;
use crate::threads::Threads;

/// The instances of one model. Each model has its own, and a thread of its own, so requests to a slow one never wait before
/// those of another.
#[derive(Debug)]
pub(crate) struct Instances {
    free: Arc<Semaphore>,
    /// The requests that wait.
    waiting: AtomicUsize,
    max_queue_size: usize,
    threads: Threads,
}

impl Instances {
    /// Returns the instances of a model whose metadata may leave their number to `default`.
    pub(crate) fn new(metadata: &ModelMetadata, default: usize, threads: Threads) -> Self {
        let instances = metadata.instances.unwrap_or(default).min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(instances)),
            waiting: AtomicUsize::new(0),
            max_queue_size: metadata.max_queue_size,
            threads,
        }
    }

    /// Returns how many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits for a free instance, first come, first served. The permit is its own for as long as it lives.
    pub(crate) async fn acquire(&self, model: &str) -> Result<OwnedSemaphorePermit, Refusal> {
        if let Ok(instance) = self.free.clone().try_acquire_owned() {
            return Ok(instance);
        }
        let _waiting = Waiting::join(self, model)?;
        self.acquire_instance().await
    }

    /// Waits for a free instance and a thread for it. A request that waits for either is in the queue.
    pub(crate) async fn acquire_with_thread(
        &self,
        model: &str,
    ) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), Refusal> {
        let instance = self.free.clone().try_acquire_owned().ok();
        let thread = instance.as_ref().and_then(|_| self.threads.try_acquire());
        let instance = match (instance, thread) {
            (Some(instance), Some(thread)) => return Ok((instance, thread)),
            (instance, _) => instance,
        };
        let _waiting = Waiting::join(self, model)?;
        let instance = match instance {
            Some(instance) => instance,
            None => self.acquire_instance().await?,
        };
        Ok((instance, self.threads.acquire().await?))
    }

    async fn acquire_instance(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let instance = self.free.clone().acquire_owned().await;
        instance.map_err(|_| Refusal::stopped())
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
