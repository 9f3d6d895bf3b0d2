//! Descriptors of the user's that travel over the socket, beside a record that names them.
//!
//! ```text
//!   numbers  0 ........ base ............................ next
//!            taken,     │ held: came, no record asked yet │ still to come
//!            or dropped │                                 │
//! ```
//!
//! 1. Numbers count up, and each packet starts where the last one ended.
//! 2. A record names a range. Taking it drops what lies before: descriptors of records that were never sent.
//! 3. A descriptor for which this process had no room is missing. The record that names it fails, and the link goes on.
//!    One link may take twice the room that it leaves to the others.
//! 4. A side that has not [admitted](PassedDescriptors::admit) descriptors takes none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{ErrorKind, Fault, Result};
use crate::handshake::untrusted::{UntrustedFd, UntrustedFds};

/// Descriptors that wait to be taken, of all links: half of those that this process may open at most.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// How many descriptors one link may have waiting, for each that is left to the others. One link alone gets two thirds
/// of the room, a second one two thirds of what that leaves; of 1024 that a process may open by default, 341 and 113.
const SHARE: u64 = 2;

/// A descriptor that waits.
#[derive(Debug)]
struct Held {
    fd: UntrustedFd,
    _counted: Counted,
}

#[derive(Debug)]
struct Counted;

impl Held {
    /// Returns the descriptor, held beside `own` others of its link. Closes it and returns `None` if `room`, which all
    /// links share, has none left.
    fn new(fd: UntrustedFd, own: usize, room: u64) -> Option<Self> {
        // Its drop subtracts.
        let (held, counted) = (HELD.fetch_add(1, Ordering::Relaxed), Counted);
        let left = room.saturating_sub(held as u64);
        ((own as u64) < left.saturating_mul(SHARE)).then_some(Self { fd, _counted: counted })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

fn limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// The descriptors that came over one link.
#[derive(Debug, Default)]
pub(crate) struct PassedDescriptors {
    /// The most descriptors that may wait.
    limit: usize,
    /// The number of the next descriptor to come.
    next: u64,
    /// The descriptors before it. `None`: there was no room for this one.
    held: VecDeque<Option<Held>>,
}

impl PassedDescriptors {
    /// Sets how many descriptors may wait.
    pub(crate) fn admit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns whether this side admits descriptors.
    pub(crate) fn is_open(&self) -> bool {
        self.limit > 0
    }

    /// Adds the `count` descriptors of a packet, from number `first` on. `came` may lack the last ones.
    ///
    /// # Errors
    ///
    /// [`Fault`]: the numbers do not go on, or too many wait.
    pub(crate) fn add(
        &mut self,
        first: u64,
        count: usize,
        mut came: UntrustedFds,
    ) -> Result<(), Fault> {
        if first != self.next {
            return Err(Fault::Field { field: "descriptors.first", value: first });
        }
        if came.len() > count {
            return Err(Fault::DescriptorCount { count: came.len(), expected: count });
        }
        let held = self.held.len() + count;
        if held > self.limit {
            return Err(Fault::HeldDescriptors { count: held, limit: self.limit });
        }
        // `pop` returns the last one first.
        let missing = count.saturating_sub(came.len());
        let start = self.held.len();
        self.held.extend((0..missing).map(|_| None));
        let mut own = self.held.iter().flatten().count();
        let room = limit() / 2;
        while let Some(fd) = came.pop() {
            let held = Held::new(fd, own, room);
            own += usize::from(held.is_some());
            self.held.push_back(held);
        }
        self.held.make_contiguous()[start..].reverse();
        self.next += count as u64;
        Ok(())
    }

    /// Returns whether all before `end` have come.
    pub(crate) fn reaches(&self, end: u64) -> bool {
        end <= self.next
    }

    /// Takes `count` descriptors from `first` on, all of which have come, and drops those before.
    ///
    /// # Errors
    ///
    /// - [`Fault::UnknownDescriptors`]: a record took them, or they never came.
    /// - [`ErrorKind::DescriptorLimit`]: this process had no room for one of them. The others are closed.
    pub(crate) fn take(&mut self, first: u64, count: usize) -> Result<Vec<UntrustedFd>> {
        let base = self.next - self.held.len() as u64;
        let end = first.checked_add(count as u64).filter(|end| self.reaches(*end));
        if end.is_none() || first < base {
            return Err(Fault::UnknownDescriptors { first, count }.into());
        }
        // `first` is at most `next`, so these are no more than there are.
        self.held.drain(..(first - base) as usize);
        let taken = self.held.drain(..count).map(|held| Some(held?.fd));
        let taken: Option<Vec<UntrustedFd>> = taken.collect();
        taken.ok_or_else(|| ErrorKind::DescriptorLimit { limit: limit() }.into())
    }
}

#[cfg(test)]
mod tests;
