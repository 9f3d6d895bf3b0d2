//! Fences, orderings, and what threads share: those of the standard library, or of loom when the
//! models run.
//!
//! Every ordering that carries a promise, between two processes or between two threads of one, has a
//! name here ([`Edge`]). In a build with `--cfg slipring_loom` an edge can be weakened at run time, so
//! that each model is seen to fail without it; in every other build an edge is a constant.

#[cfg(not(slipring_loom))]
use core::sync::atomic::fence;
#[cfg(not(slipring_loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32};
pub(crate) use core::sync::atomic::{Ordering, compiler_fence};
#[cfg(slipring_loom)]
use loom::sync::atomic::fence;
#[cfg(slipring_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32};
#[cfg(slipring_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(slipring_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// An ordering that somebody else relies on. The tables of them are in `docs/memory-model.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    /// The writer's store of a record's header makes the record visible.
    Publish,
    /// The reader's fence after it saw a header.
    Peek,
    /// The reader's store of its position gives the bytes before it back.
    Release,
    /// The writer's fence after it loaded the reader's position.
    Reuse,
    /// The sleeper's barrier between saying that it sleeps and its last look.
    Park,
    /// The waker's barrier between making something visible and looking for sleepers.
    Wake,
    /// The interrupt of the waker's CPU by a sleeper that was hot.
    Interrupt,
    /// The sender's store of how much of a long message is there.
    Fill,
    /// The reader's fence after it loaded that.
    Follow,
    /// The borrower's store of a loan's generation gives the block back.
    Return,
    /// The lender's fence after it saw a returned generation.
    Reclaim,
    /// The watcher's store of how a link stands.
    End,
    /// A half's load of it.
    Ended,
    /// A half asks how its link stands, and then looks at what has come.
    LastLook,
    /// Why a link failed is known before it is said to have failed.
    Reason,
    /// A link whose user is gone says so, and then its loans are counted.
    Retire,
    /// A loan counts as returned by its own generation only.
    Generation,
    /// A command is in the queue, and then the loop is told.
    Post,
    /// The loop forgets that it was told, and then takes the queue.
    Take,
    /// A loop asks whether handles are left, and then whether they have asked for something.
    Abandon,
}

impl Edge {
    /// The ordering of this edge's store.
    #[inline(always)]
    pub(crate) fn store(self) -> Ordering {
        if self.weakened() { Ordering::Relaxed } else { Ordering::Release }
    }

    /// The fence of this edge, after a relaxed load. Read-only mappings define no stronger load.
    #[inline(always)]
    pub(crate) fn acquire(self) {
        if !self.weakened() {
            fence(Ordering::Acquire);
        }
    }

    /// The full barrier of this edge.
    #[inline(always)]
    pub(crate) fn barrier(self) {
        if !self.weakened() {
            fence(Ordering::SeqCst);
        }
    }

    /// The ordering of this edge's load.
    #[inline(always)]
    pub(crate) fn load(self) -> Ordering {
        if self.weakened() { Ordering::Relaxed } else { Ordering::Acquire }
    }

    /// Does one thing after the other. Weakened: the other way around.
    #[inline(always)]
    pub(crate) fn sequence<A, B>(
        self,
        first: impl FnOnce() -> A,
        second: impl FnOnce() -> B,
    ) -> (A, B) {
        if self.weakened() {
            let late = second();
            // What is no atomic of loom's gives nobody else a turn.
            #[cfg(slipring_loom)]
            loom::thread::yield_now();
            (first(), late)
        } else {
            let early = first();
            (early, second())
        }
    }

    /// Runs the call that is this edge.
    #[inline(always)]
    pub(crate) fn run(self, call: impl FnOnce()) {
        if !self.weakened() {
            call();
        }
    }

    /// Whether a check holds. Weakened: it is not made.
    #[inline(always)]
    pub(crate) fn check(self, holds: bool) -> bool {
        holds || self.weakened()
    }

    #[cfg(not(slipring_loom))]
    #[inline(always)]
    fn weakened(self) -> bool {
        false
    }

    #[cfg(slipring_loom)]
    fn weakened(self) -> bool {
        WEAKENED.with(|edge| edge.get() == Some(self))
    }
}

#[cfg(slipring_loom)]
std::thread_local! {
    /// loom runs a model's threads as coroutines of one thread, so this reaches all of them.
    static WEAKENED: core::cell::Cell<Option<Edge>> = const { core::cell::Cell::new(None) };
}

/// Runs `model` with `edge` weakened, which must make it fail, and gives what it said.
#[cfg(all(test, slipring_loom))]
pub(crate) fn failure_without(edge: Edge, model: fn()) -> String {
    WEAKENED.set(Some(edge));
    let outcome = std::panic::catch_unwind(model);
    WEAKENED.set(None);
    let Err(panic) = outcome else { panic!("the model holds without {edge:?}") };
    match panic.downcast::<String>() {
        Ok(said) => *said,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
    }
}
