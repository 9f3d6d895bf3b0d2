//! Holds a model, and drops it where that disturbs nobody.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::repository::AnyModel;

/// The retired models that are dropped at once, each on a blocking thread. Others wait.
static DROPS: Semaphore = Semaphore::const_new(16);

/// A model. A retired one is dropped on a blocking thread, since the last execution may end on a thread of the runtime.
pub(crate) struct HeldModel {
    /// `None` only while the value is dropped.
    model: Option<AnyModel>,
    /// Outlives the model.
    alive: Arc<()>,
    is_retired: AtomicBool,
}

impl HeldModel {
    pub(crate) fn new(model: AnyModel) -> Self {
        Self { model: Some(model), alive: Arc::new(()), is_retired: AtomicBool::new(false) }
    }

    /// Marks the model as one that takes no new requests. Returns a reference that ends once the model is dropped.
    pub(crate) fn retire(&self) -> Weak<()> {
        // Relaxed: the count of the value's `Arc` orders this store before the drop.
        self.is_retired.store(true, Ordering::Relaxed);
        Arc::downgrade(&self.alive)
    }
}

impl Deref for HeldModel {
    type Target = AnyModel;

    fn deref(&self) -> &AnyModel {
        self.model.as_ref().expect("the model is there until the drop")
    }
}

impl Drop for HeldModel {
    fn drop(&mut self) {
        let (model, alive) = (self.model.take(), self.alive.clone());
        let dropping = move || {
            drop(model);
            drop(alive);
        };
        match Handle::try_current() {
            Ok(runtime) if *self.is_retired.get_mut() => drop_elsewhere(&runtime, dropping),
            _ => dropping(),
        }
    }
}

fn drop_elsewhere(runtime: &Handle, dropping: impl FnOnce() + Send + 'static) {
    let begin = move |permit: SemaphorePermit<'static>| {
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            dropping();
        });
    };
    match DROPS.try_acquire() {
        Ok(permit) => begin(permit),
        Err(_) => drop(runtime.spawn(async { DROPS.acquire().await.map(begin) })),
    }
}
