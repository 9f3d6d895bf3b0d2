//! How a link stands: the word that only rises, why the link failed, and whether its user is gone.
//!
//! ```text
//!   alive ──▶ hung up ──▶ dead ──▶ failed
//! ```
//!
//! Any thread may raise it: the watcher, who sees the end of the peer; a half, which finds the peer at
//! fault. No I/O: whoever raises it wakes those who sleep on the word.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::error::ErrorKind;
use crate::sync::{AtomicBool, AtomicU32, Edge, Ordering};

/// How a link stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Alive = 0,
    /// The peer's end of the socket is closed.
    HungUp = 1,
    /// The peer's process has ended.
    Dead = 2,
    /// The link was ended from this side, because of what the peer wrote or what we lack.
    Failed = 3,
}

#[derive(Debug)]
pub(crate) struct HealthWord {
    /// Threads that sleep on a bell of the peer's sleep on this word too.
    health: CachePadded<AtomicU32>,
    failure: OnceLock<ErrorKind>,
    /// The user is gone: only the watcher holds the link.
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

    /// The word to sleep on, while it is [`Health::Alive`].
    #[inline(always)]
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.health
    }

    #[inline(always)]
    pub(crate) fn is_alive(&self) -> bool {
        self.health.load(Ordering::Relaxed) == Health::Alive as u32
    }

    pub(crate) fn health(&self) -> Health {
        // Pairs with `raise`: whatever the peer published before its end was seen is visible.
        match self.health.load(Edge::Ended.load()) {
            0 => Health::Alive,
            1 => Health::HungUp,
            2 => Health::Dead,
            _ => Health::Failed,
        }
    }

    /// How the link stands, and what a look finds after that: what was published before the end was
    /// seen is visible after it was seen.
    #[inline]
    pub(crate) fn before<T>(&self, look: impl FnOnce() -> T) -> (Health, T) {
        Edge::LastLook.sequence(|| self.health(), look)
    }

    /// The link stands so from now on, or worse. Sleepers are to be woken after it.
    pub(crate) fn raise(&self, health: Health) {
        let health = health as u32;
        let update = |now| (now < health).then_some(health);
        // Pairs with `health`.
        let _ = self.health.fetch_update(Edge::End.store(), Ordering::Relaxed, update);
    }

    /// The link has failed. Gives why: the first reason counts.
    pub(crate) fn fail(&self, kind: &ErrorKind) -> &ErrorKind {
        let why = || self.failure.get_or_init(|| kind.clone());
        Edge::Reason.sequence(why, || self.raise(Health::Failed)).0
    }

    /// Why the link failed, if it did.
    pub(crate) fn failure(&self) -> Option<&ErrorKind> {
        if self.health() == Health::Failed { self.failure.get() } else { None }
    }

    /// Says that the user is gone.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether the user is gone. The pool's lock, which both sides pass in between, orders this with
    /// the account.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}
