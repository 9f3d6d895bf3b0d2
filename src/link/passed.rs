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
//! 3. A descriptor for which the link's account had no room is missing. The record that names it fails, and the link goes
//!    on.
//! 4. A side that has not [admitted](PassedDescriptors::admit) descriptors takes none.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::account::{Account, Charge, Resource};
use crate::error::{ErrorKind, Fault, Result};
use crate::handshake::untrusted::{UntrustedFd, UntrustedFds};

/// A descriptor that waits.
#[derive(Debug)]
struct Held {
    fd: UntrustedFd,
    _charge: Charge,
}

fn limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// The descriptors that came over one link.
#[derive(Debug)]
pub(crate) struct PassedDescriptors {
    account: Arc<Account>,
    /// The most descriptors that may wait.
    limit: usize,
    /// The number of the next descriptor to come.
    next: u64,
    /// The descriptors before it, or the limit that left no room for one.
    held: VecDeque<Result<Held, ErrorKind>>,
}

impl PassedDescriptors {
    /// Returns the descriptors of a link with this account: none, and none is admitted.
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self { account, limit: 0, next: 0, held: VecDeque::new() }
    }

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
        self.held.extend((0..missing).map(|_| Err(ErrorKind::DescriptorLimit { limit: limit() })));
        while let Some(fd) = came.pop() {
            let charge = self.account.charge(Resource::Descriptors, 1);
            let held = charge.map(|charge| Held { fd, _charge: charge });
            self.held.push_back(held.map_err(|error| error.kind().clone()));
        }
        self.held.make_contiguous()[start..].reverse();
        self.next += count as u64;
        Ok(())
    }

    /// Returns whether all before `end` have come.
    pub(crate) fn reaches(&self, end: u64) -> bool {
        end <= self.next
    }

    /// Takes `count` descriptors from `first` on, all of which have come, and drops those before. Returns the limit that
    /// left no room for one of them, if there was one: [`ErrorKind::DescriptorLimit`] of this process, or
    /// [`ErrorKind::AccountFull`] of the peer's account. The others are closed.
    ///
    /// # Errors
    ///
    /// [`Fault::UnknownDescriptors`]: a record took them, or they never came.
    pub(crate) fn take(
        &mut self,
        first: u64,
        count: usize,
    ) -> Result<Result<Vec<UntrustedFd>>, Fault> {
        let base = self.next - self.held.len() as u64;
        let end = first.checked_add(count as u64).filter(|end| self.reaches(*end));
        if end.is_none() || first < base {
            return Err(Fault::UnknownDescriptors { first, count });
        }
        // `first` is at most `next`, so these are no more than there are.
        self.held.drain(..(first - base) as usize);
        let taken = self.held.drain(..count).map(|held| Ok(held?.fd));
        Ok(taken.collect())
    }
}

#[cfg(test)]
mod tests;
