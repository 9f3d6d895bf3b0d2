//! The threads on which handlers run that are not declared inline.
//!
//! ```text
//!   push(client, job) ──▶ client 1: job job job ┐
//!                         client 2: job         ├─ one job of each client in turn ──▶ run(), on N threads
//!                         client 3: job job     ┘
//! ```
//!
//! 1. Jobs of one client start in the order in which they were pushed.
//! 2. Between two jobs of one client every other client that has a job waiting gets one started.
//! 3. After [`stop`](WorkerPool::stop) the threads run what is queued, and then end.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something for one worker thread to run.
type Job = Box<dyn FnOnce() + Send>;

/// A queue of jobs, and the threads that [run](Self::run) them.
#[derive(Default)]
pub(super) struct WorkerPool {
    queue: Mutex<Queue>,
    /// Notified when a job comes or the pool stops.
    changed: Condvar,
    /// Notified when nothing is queued and nothing runs.
    finished: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Clients that have jobs, each once: the first one is next.
    turns: VecDeque<u64>,
    /// By client. No entry is empty.
    jobs: HashMap<u64, VecDeque<Job>>,
    /// Threads that wait for a job.
    idle: usize,
    /// Jobs that run.
    running: usize,
    stopping: bool,
}

impl Queue {
    fn push(&mut self, client: u64, job: Job) {
        match self.jobs.entry(client) {
            Entry::Occupied(mut waiting) => waiting.get_mut().push_back(job),
            Entry::Vacant(vacant) => {
                vacant.insert(VecDeque::from([job]));
                self.turns.push_back(client);
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.running == 0 && self.turns.is_empty()
    }

    fn pop(&mut self) -> Option<Job> {
        let client = self.turns.pop_front()?;
        let Entry::Occupied(mut waiting) = self.jobs.entry(client) else { return None };
        let job = waiting.get_mut().pop_front();
        if waiting.get().is_empty() {
            waiting.remove();
        } else {
            self.turns.push_back(client);
        }
        job
    }
}

impl WorkerPool {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Jobs run without the lock, and every step under it leaves the queue whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a job of a client, and wakes a thread for it if one sleeps.
    pub(super) fn push(&self, client: u64, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.queue();
        queue.push(client, Box::new(job));
        let sleeps = queue.idle > 0;
        drop(queue);
        if sleeps {
            self.changed.notify_one();
        }
    }

    /// Runs jobs on this thread until the pool stops and its queue is empty.
    pub(super) fn run(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.pop() {
                queue.running += 1;
                drop(queue);
                job();
                queue = self.queue();
                queue.running -= 1;
                if queue.is_finished() {
                    self.finished.notify_all();
                }
            } else if queue.stopping {
                return;
            } else {
                queue.idle += 1;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }

    /// Waits until nothing is queued and nothing runs, for so long at most.
    pub(super) fn finish(&self, timeout: Duration) {
        let (queue, unfinished) = (self.queue(), |queue: &mut Queue| !queue.is_finished());
        drop(self.finished.wait_timeout_while(queue, timeout, unfinished));
    }

    /// Ends every thread that runs jobs, as soon as the queue is empty.
    pub(super) fn stop(&self) {
        self.queue().stopping = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
