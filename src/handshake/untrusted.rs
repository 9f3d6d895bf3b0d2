//! Descriptors that a peer controls: its socket, and those that it sent. This process closes them on threads of their
//! own.
//!
//! The last `close` of a descriptor can block for as long as the peer likes. A TCP socket with `SO_LINGER` waits for
//! its reader, a file for the server of its filesystem. The last `close` of a Unix socket closes the descriptors in its
//! queue.
//!
//! 1. A listener, and a thread that serves links, never closes such a descriptor. They [hand it over](discard).
//! 2. At most four threads close, and end when no descriptor is left.
//! 3. At most a quarter of the descriptors that this process may open wait for these threads.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::fs::FileType;

use crate::shm::fork::Generation;

/// Closing threads at a time.
const THREADS: usize = 4;

/// The largest memory, in bytes, that any thread may close: freeing a GiB takes half a second.
const SMALL: u64 = 16 << 20;

/// The descriptors that came with a packet. The peer chose what they are.
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
        // One call takes the queue's lock once: a packet can bring 253 descriptors.
        self.0.retain(|fd| !closes_fast(fd));
        discard(std::mem::take(&mut self.0));
    }
}

/// One descriptor that a peer sent.
///
/// # Examples
///
/// ```no_run
/// # fn read(sent: slipring::seam::UntrustedFd) -> std::io::Result<()> {
/// use std::os::fd::OwnedFd;
///
/// let file = std::fs::File::from(OwnedFd::from(sent)); // from here on the caller closes it
/// # drop(file);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UntrustedFd(Option<OwnedFd>);

impl UntrustedFd {
    /// Closes the descriptor of memory that this process has mapped. This takes no time: the mapping keeps the memory.
    pub(crate) fn close_mapped(self) {
        drop(OwnedFd::from(self));
    }
}

impl AsFd for UntrustedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("present until it is taken").as_fd()
    }
}

impl From<UntrustedFd> for OwnedFd {
    fn from(mut untrusted: UntrustedFd) -> Self {
        untrusted.0.take().expect("present until it is taken")
    }
}

impl Drop for UntrustedFd {
    fn drop(&mut self) {
        drop(UntrustedFds(self.0.take().into_iter().collect()));
    }
}

/// Returns whether the last `close` takes no time: the descriptor is a small memfd.
fn closes_fast(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
        && rustix::fs::fstat(fd)
            .is_ok_and(|stat| stat.st_blocks.unsigned_abs().saturating_mul(512) <= SMALL)
}

/// The queue of the closing threads.
struct Closing {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// The process that has these threads.
    generation: Option<u64>,
}

/// The closing threads.
struct Closers(Mutex<Closing>);

static CLOSERS: Closers = Closers::new();

/// Hands descriptors to the closing threads.
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
        // Only a bug of this crate panics under the lock, and each step leaves the queue whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the locked queue, or `None` if a thread of the parent process held the lock at a fork.
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

    /// Takes over descriptors. If the queue is full because peers block all threads, or no thread can start, the caller
    /// closes the rest.
    fn take(&'static self, fds: Vec<OwnedFd>) {
        fds.iter().for_each(stop_lingering);
        let (Some(mut closing), Ok(now)) = (self.lock_if_alive(), Generation::current()) else {
            return;
        };
        if closing.generation != Some(now.number()) {
            // A fork copies no threads, and the parent closes what waits for its own.
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

    /// Starts a thread, which the queue has counted.
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

    /// Runs a closing thread until no descriptor is left.
    fn close(&self) {
        loop {
            // The thread that started this one held the lock in this process, so no fork has left it locked.
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

/// Sets a socket not to linger.
fn stop_lingering(fd: &OwnedFd) {
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
        // Longer than `lock_if_alive` tries.
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
