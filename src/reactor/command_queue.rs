//! The commands of the handles to one loop, in order. No I/O.
//!
//! | handle | loop |
//! |---|---|
//! | pushes under the lock | clears the flag |
//! | sets the flag; if it was clear, rings | takes all commands under the lock |
//!
//! 1. A handle that finds the flag set relies on a loop that has yet to clear it and takes the queue after that.
//! 2. Each pushed command is taken once, remains for [`stop`](CommandQueue::stop), or returns to its handle.
//! 3. A loop that finds no handle, and then no flag, has taken every command.

use std::sync::PoisonError;

use crate::sync::{AtomicBool, Edge, Mutex, Ordering};

#[derive(Debug)]
pub(super) struct CommandQueue<C> {
    posted: Mutex<Posted<C>>,
    /// Whether the queue may hold a command. The handles set it, the loop clears it.
    pending: AtomicBool,
}

#[derive(Debug)]
struct Posted<C> {
    waiting: Vec<C>,
    /// Whether the loop has ended.
    stopped: bool,
}

impl<C> CommandQueue<C> {
    pub(super) fn new() -> Self {
        let posted = Posted { waiting: Vec::new(), stopped: false };
        Self { posted: Mutex::new(posted), pending: AtomicBool::new(false) }
    }

    /// Adds a command. Returns whether the caller must ring the loop, or the command if the loop has ended.
    pub(super) fn push(&self, command: C) -> Result<bool, C> {
        let push = || {
            let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
            if posted.stopped {
                return Err(command);
            }
            posted.waiting.push(command);
            Ok(())
        };
        // Pairs with `take`: a handle that finds the flag set relies on a loop that has yet to clear it.
        let tell = || self.pending.swap(true, Ordering::SeqCst);
        let (pushed, told) = Edge::Post.sequence(push, tell);
        pushed.map(|()| !told)
    }

    /// Returns whether the queue may hold a command.
    #[inline(always)]
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Takes every pushed command.
    pub(super) fn take(&self) -> Vec<C> {
        // The flag is cleared first: a push that follows the take sets it once more.
        let clear = || self.pending.swap(false, Ordering::SeqCst);
        let take = || {
            let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut posted.waiting)
        };
        Edge::Take.sequence(clear, take).1
    }

    /// Returns whether no handle is left, as `nobody` says, and no command either. The last handle may push a command
    /// right before it goes.
    pub(super) fn is_abandoned(&self, nobody: impl FnOnce() -> bool) -> bool {
        let flag = || {
            // Pairs with the end of the last handle: its commands are visible.
            Edge::Abandon.acquire();
            !self.is_pending()
        };
        let (nobody, nothing) = Edge::Abandon.sequence(nobody, flag);
        nobody && nothing
    }

    /// Ends the queue: it admits no further command. Returns the commands that it held.
    pub(super) fn stop(&self) -> Vec<C> {
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        posted.stopped = true;
        std::mem::take(&mut posted.waiting)
    }
}
