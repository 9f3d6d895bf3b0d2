//! Fences, orderings, atomics and locks: those of the standard library, or of loom when the models run.
//!
//! 1. Every ordering on which other code relies, between processes or threads, has a name here: [`Edge`].
//! 2. In a build with `--cfg slipring_loom` a test can weaken one edge at run time, and shows that a model fails
//!    without it. In every other build an edge is a constant.

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

/// An ordering on which other code relies. `docs/memory-model.md` has the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    /// The writer's store of a record's header makes the record visible.
    Publish,
    /// The reader's fence after it loaded a header.
    Peek,
    /// The reader's store of its position releases the bytes before it.
    Release,
    /// The writer's fence after it loaded the reader's position.
    Reuse,
    /// The sleeper's barrier between the store of its state and its last look.
    Park,
    /// The waker's barrier between making something visible and the load of the state.
    Wake,
    /// The interrupt of the waker's CPU by a hot sleeper.
    Interrupt,
    /// The sender's store of the written bytes of a long message.
    Fill,
    /// The reader's fence after it loaded the written bytes.
    Follow,
    /// The borrower's store of a loan's generation gives the block back.
    Return,
    /// The lender's fence after it loaded a returned generation.
    Reclaim,
    /// The lender's fence after it took a block out of its pool, before it writes there.
    Retake,
    /// A thread drops a part of a held message, and another one drops the last part.
    Part,
    /// The borrower's fence between its loads of a block and its look whether the lender has taken it back.
    Recheck,
    /// The publisher's fence between the mark of a slot that it writes and the bytes of the slot.
    Overwrite,
    /// The subscriber's fence between its loads of a slot and its second look at the slot's state.
    Overrun,
    /// The publisher's barrier between the withdrawal of a message and its look for subscribers that hold it.
    Withdraw,
    /// The subscriber's barrier between the store of a hold and its second look at the slot's state.
    Hold,
    /// A thread's store of a link's health.
    End,
    /// A half's load of a link's health.
    Ended,
    /// A half loads the health, and then checks what has come.
    LastLook,
    /// A thread stores the reason of a failure before the health says that the link failed.
    Reason,
    /// A thread notes the end of a session, and then counts its loans.
    Retire,
    /// A loan counts as returned by its own generation only.
    Generation,
    /// A handle puts a command into the queue, and then notifies the loop.
    Post,
    /// The loop clears the notification, and then takes the queue.
    Take,
    /// A loop checks whether handles are left, and then whether they left commands.
    Abandon,
}

impl Edge {
    /// Returns the ordering of this edge's store.
    #[inline(always)]
    pub(crate) fn store(self) -> Ordering {
        if self.weakened() { Ordering::Relaxed } else { Ordering::Release }
    }

    /// Returns the ordering of this edge's load and store in one.
    #[inline(always)]
    pub(crate) fn both(self) -> Ordering {
        if self.weakened() { Ordering::Relaxed } else { Ordering::AcqRel }
    }

    /// Issues the fence of this edge, after a relaxed load. Read-only mappings define no stronger load.
    #[inline(always)]
    pub(crate) fn acquire(self) {
        if !self.weakened() {
            fence(Ordering::Acquire);
        }
    }

    /// Issues the fence of this edge, before relaxed stores.
    #[inline(always)]
    pub(crate) fn release(self) {
        if !self.weakened() {
            fence(Ordering::Release);
        }
    }

    /// Issues the full barrier of this edge.
    #[inline(always)]
    pub(crate) fn barrier(self) {
        if !self.weakened() {
            fence(Ordering::SeqCst);
        }
    }

    /// Returns the ordering of this edge's load.
    #[inline(always)]
    pub(crate) fn load(self) -> Ordering {
        if self.weakened() { Ordering::Relaxed } else { Ordering::Acquire }
    }

    /// Runs `first`, then `second`. A weakened edge runs them in the other order.
    #[inline(always)]
    pub(crate) fn sequence<A, B>(
        self,
        first: impl FnOnce() -> A,
        second: impl FnOnce() -> B,
    ) -> (A, B) {
        if self.weakened() {
            let late = second();
            // Code without loom's atomics lets no other thread run.
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

    /// Returns whether a check holds. A weakened edge does not check.
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

/// Runs `model` with `edge` weakened, which must make it fail. Returns the message of its panic.
#[cfg(all(test, slipring_loom))]
pub(crate) fn failure_without(edge: Edge, model: fn()) -> String {
    WEAKENED.set(Some(edge));
    let failure = failure(model);
    WEAKENED.set(None);
    failure.unwrap_or_else(|| panic!("the model holds without {edge:?}"))
}

/// Runs `model`. Returns the message of its panic, if it fails.
#[cfg(all(test, slipring_loom))]
pub(crate) fn failure(model: impl FnOnce() + std::panic::UnwindSafe) -> Option<String> {
    let panic = std::panic::catch_unwind(model).err()?;
    Some(match panic.downcast::<String>() {
        Ok(said) => *said,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
    })
}
