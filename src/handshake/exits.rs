//! Threads that close descriptors by their own exit, where a socket does not linger.
//!
//! ```text
//!   process's table          in flight            a table of each thread's own
//!   take ── sendmsg ──▶ entrance ═══▶ exit ──▶ thread 1: receives a batch, ends: the kernel closes the batch
//!     └ closes its copies                     └ thread 2, started before: waits for the next batch
//! ```
//!
//! 1. A process closes its copy of a descriptor while another reference exists, so that close takes no time. The
//!    caller passes only descriptors whose files have no `flush`: sockets, and memory. `close` of other files calls their
//!    filesystem each time.
//! 2. A socket that an exiting thread closes does not linger (`PF_EXITING` in `inet_release`). Only a thread with a table
//!    of its own closes descriptors by its exit.
//! 3. A thread starts its successor before it receives, so no table has descriptors of two batches. The first table has
//!    the receiving end of the socket pair alone.
//! 4. The kernel copies the descriptors below that end into the first table, and those of its block of 64 numbers. Closing
//!    these copies calls the filesystems of files. So the end has the lowest number, and one thread at most waits for such a
//!    filesystem. Until it answers, [`take`] takes nothing.
//! 5. Descriptors in flight count for this process's own user. At most an eighth of `RLIMIT_NOFILE` are.
//! 6. The pair and its threads end when nothing has come for [`IDLE`].
//!
//! Where the kernel refuses a table (before Linux 5.9, or a sandbox), [`take`] takes nothing, and tries later. Where only
//! memory, descriptors or threads are lacking, it tries again soon.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::gettid;

use crate::handshake::packet::MOST;
use crate::handshake::socket::{self, Incoming};
use crate::shm::fork::PerProcess;

/// How long the pair stays without use.
const IDLE: Duration = Duration::from_millis(100);

/// The most threads whose exit the kernel has not finished. The exit frees memory, and so it can take long.
pub(crate) const EXITING: usize = 64;

/// Of the descriptors that this process may open, one in so many may be in flight.
pub(crate) const IN_FLIGHT: u64 = 8;

/// How long a thread gathers descriptors before it receives them. A thread costs some 50 µs, and an arena of `malloc`.
const GATHER: Duration = Duration::from_millis(5);

/// The pause before a thread looks once more whether it may go on.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the first thread may take to make its table before others close the descriptors.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a refusal of a table holds, unless something was lacking.
const RETRY: Duration = Duration::from_secs(10);

static EXITS: PerProcess<Exits> = PerProcess::new();

#[derive(Default)]
struct Exits {
    state: Mutex<State>,
    used: Condvar,
}

#[derive(Default)]
struct State {
    /// The sending end of the pair, if it exists.
    entrance: Option<OwnedFd>,
    /// The calls that have sent descriptors.
    uses: u64,
    /// Descriptors that no thread has received.
    in_flight: usize,
    /// The first thread waits for the filesystem of a file.
    is_stalled: bool,
    /// When a refusal of a table ends.
    refused: Option<Instant>,
    /// Threads that may not have ended.
    exiting: Vec<libc::pid_t>,
}

/// Takes descriptors of sockets and of memory, and closes them. Leaves those that it cannot take.
pub(super) fn take(fds: &mut Vec<OwnedFd>) {
    if !fds.is_empty()
        && let Ok(exits) = EXITS.get(Exits::default, Exits::inherit)
    {
        exits.take(fds);
    }
}

impl Exits {
    /// Closes the child's copy of its parent's pair. The parent's threads have the other end.
    fn inherit(parent: &Self, _own: &Self) {
        // A thread that held the lock at the fork does not exist here. The copy stays open.
        if let Ok(mut theirs) = parent.state.try_lock() {
            theirs.entrance = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only a bug of this crate panics under the lock, and each step leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&'static self, fds: &mut Vec<OwnedFd>) {
        let mut state = self.lock();
        let is_refused = state.refused.is_some_and(|end| Instant::now() < end);
        if is_refused || state.is_stalled || state.entrance.is_none() && !self.open(&mut state) {
            return;
        }
        state.uses += 1;
        self.used.notify_one();
        let Some(entrance) = &state.entrance else { return };
        let (most, mut sent) = (most_in_flight(), 0);
        while !fds.is_empty() {
            let room = most.saturating_sub(state.in_flight + sent);
            let rest = fds.len() - fds.len().min(MOST).min(room);
            let batch: Vec<_> = fds[rest..].iter().map(|fd| fd.as_fd()).collect();
            // The threads are behind, or too many descriptors of this user are in flight.
            // At most `MOST`. The receiver may lack room for some.
            let count = [batch.len() as u8];
            if batch.is_empty() || !matches!(socket::send(entrance, &count, &batch), Ok(true)) {
                break;
            }
            sent += batch.len();
            // The receiving thread takes the lock before it ends: until then the pair or its table has the files too.
            fds.truncate(rest);
        }
        state.in_flight += sent;
    }

    /// Opens the pair, and starts the thread that keeps it.
    fn open(&'static self, state: &mut State) -> bool {
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let Ok((entrance, exit)) = pair else { return false };
        let Ok(exit) = rustix::io::fcntl_dupfd_cloexec(&exit, 0) else { return false };
        let keeper = std::thread::Builder::new().name("slipring-close".into()).stack_size(64 << 10);
        if keeper.spawn(|| self.keep(exit)).is_err() {
            return false;
        }
        state.entrance = Some(entrance);
        true
    }

    /// Starts the first closing thread. Closes the pair when nobody has used it for a while.
    fn keep(&'static self, exit: OwnedFd) {
        let (ready, is_ready) = mpsc::sync_channel(1);
        // A thread that does not start lacks memory, or its user has too many.
        let mut table = Err(PAUSE);
        // The thread knows the exit by its number, which stays taken until the thread has answered.
        if self.start(exit.as_raw_fd(), true, ready) {
            let answer = is_ready.recv_timeout(PATIENCE).or_else(|_| {
                self.lock().is_stalled = true;
                self.pass_on(&exit);
                let answer = is_ready.recv();
                self.lock().is_stalled = false;
                answer
            });
            table = answer.unwrap_or(Err(RETRY));
        }
        if let Err(holds) = table {
            let mut state = self.lock();
            state.refused = Some(Instant::now() + holds);
            state.entrance = None;
            drop(state);
            self.pass_on(&exit);
        }
        drop(exit);
        let mut state = self.lock();
        while state.entrance.is_some() {
            let before = state.uses;
            let waited = self.used.wait_timeout(state, IDLE);
            let (back, time) = waited.unwrap_or_else(PoisonError::into_inner);
            state = back;
            if time.timed_out() && state.uses == before {
                state.entrance = None;
            }
        }
    }

    /// Leaves the descriptors in flight to other threads, as [`take`] takes nothing.
    fn pass_on(&self, exit: &OwnedFd) {
        while let Ok(Incoming::Packet(packet)) = socket::receive_cut::<1>(exit) {
            self.lock().in_flight -= usize::from(packet.bytes[0]);
        }
    }

    /// Starts a closing thread, which says whether it has its table, or how long the refusal holds.
    fn start(
        &'static self,
        exit: RawFd,
        is_first: bool,
        ready: SyncSender<Result<(), Duration>>,
    ) -> bool {
        let thread = std::thread::Builder::new().name("slipring-close".into()).stack_size(64 << 10);
        thread.spawn(move || self.run(exit, is_first, &ready)).is_ok()
    }

    /// Runs one closing thread. `exit` is the receiving end's number, in the table of the thread that started this one.
    fn run(&'static self, exit: RawFd, is_first: bool, ready: &SyncSender<Result<(), Duration>>) {
        let table = own_table(exit, is_first);
        let _ = ready.send(table);
        if table.is_err() {
            return;
        }
        // SAFETY: this thread's table has the descriptor under this number, and nothing else of the table knows it.
        let exit = unsafe { OwnedFd::from_raw_fd(exit) };
        if !socket::wait_readable(&exit, None).unwrap_or(true)
            || socket::peek(&exit, &mut [0; 1]) == Some(0)
        {
            return;
        }
        if !self.is_pressed() {
            std::thread::sleep(GATHER);
        }
        while self.is_crowded() {
            std::thread::sleep(PAUSE);
        }
        // The successor copies this table, so it comes first.
        loop {
            let (ready, is_ready) = mpsc::sync_channel(1);
            if self.start(exit.as_raw_fd(), false, ready) && is_ready.recv() == Ok(Ok(())) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let mut received = 0;
        while received < MOST
            && let Ok(Incoming::Packet(packet)) = socket::receive_cut::<1>(&exit)
        {
            // The exit closes them.
            packet.descriptors.leave_open();
            received += usize::from(packet.bytes[0]);
        }
        let _ = exit.into_raw_fd();
        // A thread that sends descriptors holds the lock until it has closed its copies.
        let mut state = self.lock();
        state.in_flight -= received;
        state.exiting.push(gettid().as_raw_nonzero().get());
    }

    /// Returns whether half of the descriptors that may be in flight are.
    fn is_pressed(&self) -> bool {
        self.lock().in_flight >= most_in_flight() / 2
    }

    /// Returns whether too many threads are about to end.
    fn is_crowded(&self) -> bool {
        let mut state = self.lock();
        state.exiting.retain(|thread| is_alive(*thread));
        state.exiting.len() >= EXITING
    }
}

/// Returns how many descriptors may be in flight.
fn most_in_flight() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    usize::try_from(limit.unwrap_or(u64::MAX) / IN_FLIGHT).unwrap_or(usize::MAX)
}

/// Gives the calling thread a descriptor table of its own with one descriptor. Returns how long a refusal of the kernel
/// holds.
fn own_table(only: RawFd, closes_lower: bool) -> Result<(), Duration> {
    let Ok(only) = libc::c_uint::try_from(only) else { return Err(RETRY) };
    let close_range = |first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint| {
        // SAFETY: the call closes descriptors of the table that the flag, or the call with the flag, has made. No value
        // of this program stands for one of that table.
        let refused = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) != 0 };
        if refused { Err(holds(&std::io::Error::last_os_error())) } else { Ok(()) }
    };
    // The new table has no descriptor above `only`, so a large one costs nothing.
    close_range(only + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if closes_lower && only > 0 { close_range(0, only - 1, 0) } else { Ok(()) }
}

/// Returns how long a refusal holds: what is lacking may be there soon.
fn holds(refusal: &std::io::Error) -> Duration {
    match refusal.raw_os_error() {
        Some(libc::EAGAIN | libc::EMFILE | libc::ENFILE | libc::ENOMEM) => PAUSE,
        _ => RETRY,
    }
}

/// Returns whether the kernel still knows a thread of this process.
fn is_alive(thread: libc::pid_t) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0 }
}

#[cfg(test)]
mod tests;
