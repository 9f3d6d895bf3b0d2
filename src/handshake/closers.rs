//! Threads that close files of peers, each of which can block its thread for ever.
//!
//! `close` calls the filesystem of a file, and a peer can serve that filesystem (FUSE). The kernel frees the number of a
//! descriptor before it blocks, so a blocked `close` costs a thread and no descriptor.
//!
//! 1. Descriptors wait by user. A user has fewer threads than it leaves to the others, so one user never has them all.
//! 2. No thread that serves links closes such a descriptor. The caller of [`take`] only queues it, unless the system
//!    refuses every closing thread.
//! 3. A user for whom too many descriptors wait [is overdrawn](is_overdrawn): the library receives no further
//!    descriptors from it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::shm::fork::PerProcess;

/// Closing threads at a time: half of them for the first user, half of the rest for a second one.
pub(crate) const THREADS: usize = 64;

/// Of the descriptors that this process may open, one in so many may wait for a thread: half of those that are left for
/// each user.
pub(crate) const WAITING: u64 = 2;

static CLOSERS: PerProcess<Closers> = PerProcess::new();

fn closers() -> Option<&'static Closers> {
    CLOSERS.get(Closers::default, Closers::inherit).ok()
}

/// Queues descriptors of a user's peer for the closing threads.
pub(super) fn take(fds: Vec<OwnedFd>, user: u32) {
    if fds.is_empty() {
        return;
    }
    match closers() {
        Some(closers) => closers.take(fds, user),
        // Without memory for a page there is no thread, either.
        None => drop(fds),
    }
}

/// Returns whether descriptors wait for closing threads.
pub(super) fn are_behind() -> bool {
    closers().is_some_and(|closers| closers.waiting.load(Ordering::Relaxed) > 0)
}

/// Returns whether more descriptors of a user's wait than half of those that it leaves to others, of a quarter of all that
/// this process may open.
pub(super) fn is_overdrawn(user: u32) -> bool {
    closers().is_some_and(|closers| closers.is_overdrawn(user))
}

/// The queue of one user, and the threads that close for it.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
}

#[derive(Default)]
struct Queues {
    users: HashMap<u32, Queue>,
    threads: usize,
}

#[derive(Default)]
struct Closers {
    queues: Mutex<Queues>,
    /// The descriptors that wait, of all users. Changed under the lock.
    waiting: AtomicUsize,
}

impl Closers {
    /// Takes over what waits in the parent process of a fork: this process has copies of the descriptors.
    fn inherit(parent: &Self, own: &Self) {
        // A thread that held the lock at the fork does not exist here. Its copies stay open.
        let Ok(mut theirs) = parent.queues.try_lock() else { return };
        for (user, queue) in theirs.users.drain() {
            own.waiting.fetch_add(queue.waiting.len(), Ordering::Relaxed);
            own.lock().queue(user).waiting.extend(queue.waiting);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // Only a bug of this crate panics under the lock, and each step leaves the queues whole.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&'static self, fds: Vec<OwnedFd>, user: u32) {
        let mut queues = self.lock();
        self.waiting.fetch_add(fds.len(), Ordering::Relaxed);
        queues.queue(user).waiting.extend(fds);
        self.start(queues, user);
    }

    /// Starts a thread for a user, if the user may have one more.
    fn start(&'static self, mut queues: MutexGuard<'_, Queues>, user: u32) {
        let free = THREADS - queues.threads;
        let queue = queues.queue(user);
        if queue.waiting.is_empty() || queue.threads >= free {
            return;
        }
        queue.threads += 1;
        queues.threads += 1;
        drop(queues);
        let thread = std::thread::Builder::new().name("slipring-close".into()).stack_size(64 << 10);
        if thread.spawn(move || self.close(user)).is_err() {
            let mut queues = self.lock();
            let mut rest = VecDeque::new();
            if queues.queue(user).threads == 1 {
                // No other thread of the user's closes them, and no further call may come.
                rest = std::mem::take(&mut queues.queue(user).waiting);
                self.waiting.fetch_sub(rest.len(), Ordering::Relaxed);
            }
            queues.end_thread(user);
            drop(queues);
            drop(rest);
        }
    }

    /// Runs a closing thread until no descriptor of its user is left. Before a close that may block, the thread starts
    /// another one for those that wait.
    fn close(&'static self, user: u32) {
        loop {
            let mut queues = self.lock();
            let Some(fd) = queues.queue(user).waiting.pop_front() else {
                queues.end_thread(user);
                return;
            };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.start(queues, user);
            // A socket waits for its reader, unless it is told not to. The call waits for the socket's lock, which a peer can
            // keep.
            let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
            drop(fd);
        }
    }

    fn is_overdrawn(&self, user: u32) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting == 0 {
            return false;
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let room = usize::try_from(limit.unwrap_or(u64::MAX) / WAITING).unwrap_or(usize::MAX);
        let own = self.lock().users.get(&user).map_or(0, |queue| queue.waiting.len());
        own > 0 && own >= room.saturating_sub(waiting)
    }
}

impl Queues {
    fn queue(&mut self, user: u32) -> &mut Queue {
        self.users.entry(user).or_default()
    }

    /// Counts a thread of a user as ended.
    fn end_thread(&mut self, user: u32) {
        self.threads -= 1;
        let queue = self.queue(user);
        queue.threads -= 1;
        if queue.threads == 0 && queue.waiting.is_empty() {
            self.users.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests;
