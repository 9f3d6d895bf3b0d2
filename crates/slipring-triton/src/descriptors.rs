//! The descriptors of the process: a quarter stays free of regions, and half of connections.
//!
//! ```text
//!   0            1/2                3/4             limit
//!   ├── connections ┤                 │               │
//!   ├───────────── regions ───────────┤  always free  │
//! ```
//!
//! The kernel hands out the lowest free number. So a number below a bound tells that there are free ones up to the limit.

use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the most descriptors of the process.
fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the most connections of each of so many addresses, at most `most`.
pub(crate) fn connections(most: usize, addresses: usize) -> usize {
    let share = limit() / 2 / addresses.max(1) as u64;
    most.min(usize::try_from(share).unwrap_or(usize::MAX).max(1))
}

/// Returns whether a region may take a descriptor.
pub(crate) fn has_room() -> bool {
    let opened = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    opened.is_ok_and(|next| (next.as_raw_fd() as u64) < limit() / 4 * 3)
}

/// Raises the most descriptors of this process, `RLIMIT_NOFILE`, to what an unprivileged process may set. Returns the new
/// limit; `None` is no limit.
///
/// A server calls this once at its start, as servers do: a limit of 1,024 is common, and a front serves 512 connections and
/// keeps 768 regions with it. The library itself never changes the limit, which processes of the application inherit. A program
/// that uses `select(2)` must not raise it.
///
/// # Errors
///
/// The error of the system call.
///
/// # Examples
///
/// ```
/// let most = slipring_triton::raise_descriptor_limit()?;
/// println!("{most:?} descriptors");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn raise_descriptor_limit() -> io::Result<Option<u64>> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum)
}
