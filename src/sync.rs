//! Fences and orderings: those of `core`, or of loom when the models run.
//!
//! Every ordering that carries a promise between two processes has a name here ([`Edge`]). In a
//! build with `--cfg slipring_loom` an edge can be weakened at run time, so that each model is seen
//! to fail without it; in every other build an edge is a constant.

#[cfg(not(slipring_loom))]
use core::sync::atomic::fence;
pub(crate) use core::sync::atomic::{Ordering, compiler_fence};
#[cfg(slipring_loom)]
use loom::sync::atomic::fence;

/// An ordering that some other process relies on. The table of pairs is in `docs/memory-model.md`.
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
    /// The borrower's store of a loan's generation gives the block back.
    Return,
    /// The lender's fence after it saw a returned generation.
    Reclaim,
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
