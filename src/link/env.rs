//! The environment of a context's links: options of halves, the pool, the peers' mapped segments, and the watcher.
//!
//! 1. The first link starts the watcher.
//! 2. Links share the environment and keep it alive after their context, and so do loans of GPU memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::link::link::Link;
use crate::link::watcher::Watcher;
use crate::pool::Pool;
use crate::shm::MappedSegments;
use crate::wake::Spin;

/// Options of a link's two halves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChannelOptions {
    /// The longest message that travels in the ring, in bytes.
    pub(crate) inline_max: u64,
    pub(crate) send_timeout: Duration,
    pub(crate) spin: Spin,
    /// Bytes of messages that a receiver may set aside.
    pub(crate) backlog_limit: usize,
    /// Bytes of writes that may wait for room in a reactor.
    pub(crate) write_limit: usize,
    /// How long a peer may keep its loans after this side is done with the link. `None`: until its process ends.
    pub(crate) release_grace: Option<Duration>,
}

/// The pool, the peers' mapped segments, the watcher and the options that the links of a context share.
#[derive(Debug)]
pub(crate) struct LinkEnv {
    options: ChannelOptions,
    pool: Pool,
    mapped: Arc<MappedSegments>,
    watcher: Mutex<Option<Watcher>>,
}

impl LinkEnv {
    pub(crate) fn new(options: ChannelOptions, pool: Pool) -> Self {
        Self { options, pool, mapped: Arc::default(), watcher: Mutex::new(None) }
    }

    /// Returns the options of halves.
    #[inline(always)]
    pub(crate) fn options(&self) -> &ChannelOptions {
        &self.options
    }

    /// Returns the pool that senders lend from.
    #[inline(always)]
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the segments of peers that are mapped.
    pub(crate) fn mapped(&self) -> &Arc<MappedSegments> {
        &self.mapped
    }

    /// Drops one use of the environment, of a caller that may hold locks: it waits for no thread.
    pub(crate) fn let_go(env: Arc<Self>) {
        if let Some(last) = Arc::into_inner(env)
            && let Some(watcher) = last.watcher.into_inner().unwrap_or_else(PoisonError::into_inner)
        {
            watcher.detach();
        }
    }

    /// Watches a link. The first one starts the watcher.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit): this process may open no more descriptors.
    /// - [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel refused a call.
    pub(crate) fn watch(&self, link: &Arc<Link>) -> Result<()> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        match &*watcher {
            Some(watcher) => watcher.watch(link),
            None => {
                let started = Watcher::start(self.pool.clone(), self.options.release_grace)?;
                watcher.insert(started).watch(link)
            }
        }
    }

    /// Notes that the last half of a link is dropped.
    pub(crate) fn leave(&self, link: &Arc<Link>) {
        if let Some(watcher) = &*self.watcher.lock().unwrap_or_else(PoisonError::into_inner) {
            watcher.leave(link);
        }
    }

    /// Notes that the session of a link is over.
    pub(crate) fn retire(&self, link: &Arc<Link>) {
        if let Some(watcher) = &*self.watcher.lock().unwrap_or_else(PoisonError::into_inner) {
            watcher.retire(link);
        }
    }
}
