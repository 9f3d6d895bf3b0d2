//! The health of a link: a word that only rises, the reason of a failure, and whether its session is over.
//!
//! ```text
//!   alive ──▶ hung up ──▶ dead ──▶ failed
//! ```
//!
//! 1. Any thread may raise the word: the watcher when it sees the end of the peer, a half when it finds the peer at
//!    fault.
//! 2. This object does no I/O. The thread that raises the word wakes the threads that sleep on it.
//! 3. The first reason of a failure counts. It is known before the word says that the link failed.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::error::ErrorKind;
pub(crate) use crate::status::Health;
use crate::sync::{AtomicBool, AtomicU32, Edge, Ordering};

#[derive(Debug)]
pub(crate) struct HealthWord {
    /// The word. Threads that sleep on a bell of the peer's sleep on it too.
    health: CachePadded<AtomicU32>,
    failure: OnceLock<ErrorKind>,
    /// The session is over: only the watcher holds the link.
    retired: AtomicBool,
}

impl HealthWord {
    pub(crate) fn new() -> Self {
        Self {
            health: CachePadded::new(AtomicU32::new(Health::Alive as u32)),
            failure: OnceLock::new(),
            retired: AtomicBool::new(false),
        }
    }

    /// Returns the word to sleep on, while it is [`Health::Alive`].
    #[inline(always)]
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.health
    }

    #[inline(always)]
    pub(crate) fn is_alive(&self) -> bool {
        self.health.load(Ordering::Relaxed) == Health::Alive as u32
    }

    pub(crate) fn health(&self) -> Health {
        // Pairs with `raise`: everything that the peer published before its end is visible.
        match self.health.load(Edge::Ended.load()) {
            0 => Health::Alive,
            1 => Health::HungUp,
            2 => Health::Dead,
            _ => Health::Failed,
        }
    }

    /// Returns the health, and then what `look` finds. If the health shows the end, `look` sees everything that the
    /// peer published before its end.
    #[inline]
    pub(crate) fn before<T>(&self, look: impl FnOnce() -> T) -> (Health, T) {
        Edge::LastLook.sequence(|| self.health(), look)
    }

    /// Raises the word to `health`, if it is lower. The caller then wakes the sleepers. Returns whether the link was alive.
    pub(crate) fn raise(&self, health: Health) -> bool {
        let health = health as u32;
        let update = |now| (now < health).then_some(health);
        // Pairs with `health`.
        let before = self.health.fetch_update(Edge::End.store(), Ordering::Relaxed, update);
        before == Ok(Health::Alive as u32)
    }

    /// Notes that the link has failed. Returns the reason, which is the first one given.
    pub(crate) fn fail(&self, kind: &ErrorKind) -> &ErrorKind {
        let why = || self.failure.get_or_init(|| kind.clone());
        Edge::Reason.sequence(why, || self.raise(Health::Failed)).0
    }

    /// Returns the reason if the link failed.
    pub(crate) fn failure(&self) -> Option<&ErrorKind> {
        if self.health() == Health::Failed { self.failure.get() } else { None }
    }

    /// Notes that the session is over.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Returns whether the session is over. The pool's lock, which both threads pass in between, orders this with the
    /// account.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}
