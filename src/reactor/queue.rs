//! What handles on any thread have asked of one loop, in order. No I/O.
//!
//! | handle | loop |
//! |---|---|
//! | push under the lock | clear the flag |
//! | set the flag; where it was clear, ring | take all under the lock |
//!
//! 1. Whoever finds the flag set relies on a loop that has yet to clear it, and takes the queue after that.
//! 2. What is pushed was taken, or is left when the loop stops, or comes back: nothing is lost.
//! 3. A loop that finds no handle and then no flag has done all that the handles asked for.

use std::sync::PoisonError;

use crate::sync::{AtomicBool, Edge, Mutex, Ordering};

#[derive(Debug)]
pub(super) struct Queue<T> {
    posted: Mutex<Posted<T>>,
    /// There may be something.
    pending: AtomicBool,
}

#[derive(Debug)]
struct Posted<T> {
    waiting: Vec<T>,
    /// The loop is gone.
    stopped: bool,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        let posted = Posted { waiting: Vec::new(), stopped: false };
        Self { posted: Mutex::new(posted), pending: AtomicBool::new(false) }
    }

    /// Adds something to do. True: the loop may not know, and must be rung. A loop that is gone gives it
    /// back.
    pub(super) fn push(&self, command: T) -> Result<bool, T> {
        let push = || {
            let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
            if posted.stopped {
                return Err(command);
            }
            posted.waiting.push(command);
            Ok(())
        };
        // Pairs with `take`: whoever finds the flag set relies on a loop that has yet to clear it.
        let tell = || self.pending.swap(true, Ordering::SeqCst);
        let (pushed, told) = Edge::Post.sequence(push, tell);
        pushed.map(|()| !told)
    }

    /// Whether there may be something.
    #[inline(always)]
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Everything that was pushed.
    pub(super) fn take(&self) -> Vec<T> {
        // Cleared first: what is pushed after the queue was taken sets it again.
        let clear = || self.pending.swap(false, Ordering::SeqCst);
        let take = || {
            let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut posted.waiting)
        };
        Edge::Take.sequence(clear, take).1
    }

    /// Whether nobody is left who could ask for something, and nothing is left that was asked for. The
    /// last handle may have pushed something right before it went.
    pub(super) fn is_abandoned(&self, nobody: impl FnOnce() -> bool) -> bool {
        let flag = || {
            // Pairs with the end of the last handle: what it pushed is visible.
            Edge::Abandon.acquire();
            !self.is_pending()
        };
        let (nobody, nothing) = Edge::Abandon.sequence(nobody, flag);
        nobody && nothing
    }

    /// The loop is gone; gives what was left.
    pub(super) fn stop(&self) -> Vec<T> {
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        posted.stopped = true;
        std::mem::take(&mut posted.waiting)
    }
}
