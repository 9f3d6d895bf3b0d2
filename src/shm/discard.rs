//! Drops of large memory, on a thread of their own.
//!
//! The kernel frees a GiB in some 200 ms if nobody else holds it, in the time of the thread that unmaps it. A peer decides
//! how large its segments are, and when the last one that holds them lets go. So a thread that serves several peers never
//! unmaps a large segment.
//!
//! 1. [`discard`] takes an item at once. It drops the item itself only if no thread can be had.
//! 2. One thread drops the items, and ends when none is left.
//! 3. What an item counts for stays counted until the thread has dropped it. So the accounts that limit mapped memory limit
//!    the queue, too.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::shm::fork::{Generation, PerProcess};

/// The largest memory, in bytes, that any thread may free: the kernel takes some 0.2 ms. A handover takes up to 30 µs.
pub(crate) const LARGE: usize = 1 << 20;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Box<dyn Send>>,
    has_thread: bool,
}

static QUEUE: PerProcess<Mutex<Queue>> = PerProcess::new();

/// Drops a value that holds large memory, which process `made_in` has made, on another thread.
pub(crate) fn discard(item: impl Send + 'static, made_in: &Generation) {
    // A child has no mapping of its parent's, so the parent's queue is nothing to inherit.
    let Some(queue) = QUEUE.get(Mutex::default, |_, _| ()).ok().filter(|_| made_in.is_current())
    else {
        return;
    };
    let mut state = lock(queue);
    state.waiting.push_back(Box::new(item));
    let starts = !std::mem::replace(&mut state.has_thread, true);
    drop(state);
    if starts {
        let thread = std::thread::Builder::new().name("slipring-free".into()).stack_size(64 << 10);
        if thread.spawn(|| drop_all(queue)).is_err() {
            drop_all(queue);
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops items until none is left.
fn drop_all(queue: &Mutex<Queue>) {
    loop {
        let mut state = lock(queue);
        let Some(item) = state.waiting.pop_front() else {
            state.has_thread = false;
            return;
        };
        drop(state);
        drop(item);
    }
}
