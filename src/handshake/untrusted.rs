//! What a peer has a hand in and this process closes: its socket, and the descriptors that it sent.
//!
//! The last `close` of a descriptor can wait as long as somebody else likes: of a TCP socket with
//! `SO_LINGER` for a reader, of a file for the server of its filesystem. A socket's last `close` closes what
//! lies unread in its queue, and so on. A listener must not wait there, nor a thread that serves other links.
//! So nothing of the kind is closed where it is met: a few threads [do](discard), which nobody waits for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::fs::FileType;

use crate::shm::fork::Generation;

/// Threads that close at a time.
const THREADS: usize = 4;

/// The largest memory whose last `close` is no matter, in bytes: freeing a GiB takes half a second.
const SMALL: u64 = 16 << 20;

/// What came along with a packet: descriptors of whatever the peer likes.
#[derive(Debug, Default)]
pub(crate) struct UntrustedFds(Vec<OwnedFd>);

impl UntrustedFds {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn push(&mut self, fd: OwnedFd) {
        self.0.push(fd);
    }

    pub(crate) fn pop(&mut self) -> Option<UntrustedFd> {
        self.0.pop().map(|fd| UntrustedFd(Some(fd)))
    }
}

impl Drop for UntrustedFds {
    fn drop(&mut self) {
        // All at once: a packet can bring 253.
        self.0.retain(|fd| !is_tame(fd));
        discard(std::mem::take(&mut self.0));
    }
}

/// One of them.
#[derive(Debug)]
pub struct UntrustedFd(Option<OwnedFd>);

impl AsFd for UntrustedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("there until it is taken").as_fd()
    }
}

impl From<UntrustedFd> for OwnedFd {
    fn from(mut foreign: UntrustedFd) -> Self {
        foreign.0.take().expect("there until it is taken")
    }
}

impl Drop for UntrustedFd {
    fn drop(&mut self) {
        drop(UntrustedFds(self.0.take().into_iter().collect()));
    }
}

/// Whether its last `close` takes no time: a small memfd.
fn is_tame(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
        && rustix::fs::fstat(fd)
            .is_ok_and(|stat| stat.st_blocks.unsigned_abs().saturating_mul(512) <= SMALL)
}

/// What waits to be closed, and how many threads are at it.
struct Closing {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// The process that these threads are of.
    generation: Option<u64>,
}

/// The threads that close.
struct Closers(Mutex<Closing>);

static CLOSERS: Closers = Closers::new();

/// Closes descriptors on threads that nobody waits for.
pub(super) fn discard(fds: Vec<OwnedFd>) {
    if !fds.is_empty() {
        CLOSERS.take(fds);
    }
}

impl Closers {
    const fn new() -> Self {
        Self(Mutex::new(Closing { waiting: VecDeque::new(), threads: 0, generation: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Closing> {
        // A panic under the lock would be a bug of ours, and every step leaves the queue whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue, in this process. `None`: a thread of a parent's had it at a fork, and has it for ever.
    fn lock_if_alive(&self) -> Option<MutexGuard<'_, Closing>> {
        for _ in 0..1000 {
            match self.0.try_lock() {
                Ok(closing) => return Some(closing),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Takes over descriptors.
    ///
    /// Of those that wait there are a quarter at most of the descriptors that this process may open. Where peers
    /// keep all threads waiting and have filled that, or there can be no thread, the caller closes the rest.
    fn take(&'static self, fds: Vec<OwnedFd>) {
        fds.iter().for_each(calm);
        let (Some(mut closing), Ok(now)) = (self.lock_if_alive(), Generation::current()) else {
            return;
        };
        if closing.generation != Some(now.number()) {
            // A parent's threads are not here, and what waited for them is the parent's to close, too.
            closing.threads = 0;
            closing.generation = Some(now.number());
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let room = usize::try_from(limit.unwrap_or(u64::MAX) / 4).unwrap_or(usize::MAX);
        let mut fds = fds.into_iter();
        while closing.waiting.len() < room
            && let Some(fd) = fds.next()
        {
            closing.waiting.push_back(fd);
        }
        let is_short = closing.threads < THREADS;
        closing.threads += usize::from(is_short);
        drop(closing);
        if is_short {
            self.start();
        }
    }

    /// Starts a thread, which is counted already.
    fn start(&'static self) {
        let thread = std::thread::Builder::new().name("slipring-close".into()).stack_size(64 << 10);
        if thread.spawn(|| self.close()).is_ok() {
            return;
        }
        let mut closing = self.lock();
        closing.threads -= 1;
        let nobody = closing.threads == 0;
        let rest = if nobody { std::mem::take(&mut closing.waiting) } else { VecDeque::new() };
        drop(closing);
        drop(rest);
    }

    /// The life of a thread: it ends when nothing is left.
    fn close(&self) {
        loop {
            // Whoever started this thread had the lock in this process.
            let mut closing = self.lock();
            let Some(fd) = closing.waiting.pop_front() else {
                closing.threads -= 1;
                return;
            };
            drop(closing);
            drop(fd);
        }
    }
}

/// A socket does not linger.
fn calm(fd: &OwnedFd) {
    let is_socket = |fd: &OwnedFd| {
        rustix::fs::fstat(fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
    };
    if is_socket(fd) {
        let _ = rustix::net::sockopt::set_socket_linger(fd, None);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_that_wait_long_for_their_turn_close_all_the_same() {
        let closers: &'static Closers = Box::leak(Box::new(Closers::new()));
        let mut ends = Vec::new();
        let mut closing = closers.lock();
        for _ in 0..THREADS {
            let (here, there) = UnixStream::pair().unwrap();
            ends.push(here);
            closing.waiting.push_back(there.into());
            closing.threads += 1;
            closers.start();
        }
        // Longer than anybody tries who does not wait.
        std::thread::sleep(Duration::from_millis(50));
        drop(closing);
        for mut end in ends {
            end.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert_eq!(end.read(&mut [0; 1]).unwrap(), 0);
        }
        while closers.lock().threads > 0 {
            std::thread::yield_now();
        }
    }
}
