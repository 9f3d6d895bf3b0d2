//! The registry of a context's links. It drops a link when its session is over and the peer reads none of its loans, or
//! may read none any more. No I/O, no clock.
//!
//! | | a half | no half, loans out | no half, no loans |
//! |---|---|---|---|
//! | peer lives | kept | kept until the deadline, then revoked | dropped |
//! | socket ended, the peer has released the link | kept: the session asks | dropped | dropped |
//! | socket ended without that | kept, revoked at the deadline | kept until the deadline, then revoked | dropped |
//! | process ended | dropped | dropped | dropped |
//!
//! 1. A dropped link has no account with the pool.
//! 2. The later of two threads, one that ends the session and one that sees the end of the peer, sees what the other
//!    wrote.
//! 3. A revoked link has no account either. It is dropped as soon as its session is over.
//! 4. At most so many links have a deadline as the caller says. Beyond that, one of the peer that has most of them is
//!    revoked, the one with the earliest deadline. So a peer that keeps its loans ends no grace of another one.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::link::deadlines::Deadlines;
use crate::link::health::HealthWord;
use crate::pool::Holder;
use crate::pool::{BorrowerId, Pool};
use crate::sync::{Edge, Mutex, MutexGuard};

/// What a peer's end shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerEnd {
    /// Its process has ended, or nothing tells when it does.
    Process,
    /// Its end of the socket is closed. It holds no loan.
    Released,
    /// Its end of the socket is closed. It may hold loans.
    Cut,
}

struct Entry<L> {
    link: Arc<L>,
    borrower: BorrowerId,
    holder: Holder,
    /// When the peer's loans end.
    deadline: Option<Instant>,
}

struct Entries<L> {
    links: HashMap<u64, Entry<L>>,
    deadlines: Deadlines,
}

impl<L> Entries<L> {
    fn remove(&mut self, number: u64) -> Option<Arc<L>> {
        self.forget_deadline(number);
        self.links.remove(&number).map(|entry| entry.link)
    }

    fn forget_deadline(&mut self, number: u64) {
        if let Some(entry) = self.links.get_mut(&number)
            && let Some(deadline) = entry.deadline.take()
        {
            self.deadlines.remove(entry.holder, (deadline, number));
        }
    }

    /// Returns the link to revoke: its deadline has come, or there are more deadlines than `most`.
    fn due(&self, now: Instant, most: usize) -> Option<u64> {
        let first = self.deadlines.first().filter(|(deadline, _)| *deadline <= now);
        let is_over = self.deadlines.len() > most;
        let surplus = || self.deadlines.first_of_most().filter(|_| is_over);
        first.or_else(surplus).map(|(_, number)| number)
    }
}

pub(crate) struct LinkRegistry<L> {
    entries: Mutex<Entries<L>>,
    pool: Pool,
    /// How long a peer may keep its loans. `None`: until its process ends.
    grace: Option<Duration>,
}

impl<L> LinkRegistry<L> {
    pub(crate) fn new(pool: Pool, grace: Option<Duration>) -> Self {
        let entries = Entries { links: HashMap::new(), deadlines: Deadlines::default() };
        Self { entries: Mutex::new(entries), pool, grace }
    }

    fn lock(&self) -> MutexGuard<'_, Entries<L>> {
        // Only a bug of this crate panics under the lock, and each step leaves the tables whole.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a link under the number of its account. `holder` is the peer.
    pub(crate) fn enter(&self, borrower: BorrowerId, holder: Holder, link: Arc<L>) {
        let entry = Entry { link, borrower, holder, deadline: None };
        self.lock().links.insert(borrower.number(), entry);
    }

    /// Returns the link with this number.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<L>> {
        self.lock().links.get(&number).map(|entry| entry.link.clone())
    }

    /// Removes a link that could not be watched.
    pub(crate) fn strike(&self, borrower: BorrowerId) {
        self.lock().remove(borrower.number());
    }

    /// Gives the loans of a peer a deadline, if it has loans and none has a deadline yet. Returns whether the
    /// caller's watcher has to look at the deadlines: this one is the earliest, or there are more than `most`.
    pub(crate) fn limit(
        &self,
        borrower: BorrowerId,
        now: Instant,
        most: impl FnOnce() -> usize,
    ) -> bool {
        self.grace.is_some()
            && self.pool.settle(borrower) > 0
            && self.set_deadline(borrower, now, most())
    }

    /// Gives the loans of a peer a deadline, as [`limit`](Self::limit) does, also if it has none now.
    fn set_deadline(&self, borrower: BorrowerId, now: Instant, most: usize) -> bool {
        let Some(grace) = self.grace else { return false };
        // Far beyond any use, a sum that overflows is no deadline.
        let Some(deadline) = now.checked_add(grace) else { return false };
        let number = borrower.number();
        let Entries { links, deadlines } = &mut *self.lock();
        let Some(entry) = links.get_mut(&number).filter(|entry| entry.deadline.is_none()) else {
            return false;
        };
        entry.deadline = Some(deadline);
        deadlines.insert(entry.holder, (deadline, number));
        deadlines.first() == Some((deadline, number)) || deadlines.len() > most
    }

    /// Notes that the session of a link is over. Returns the link if the registry drops it.
    pub(crate) fn retire(&self, borrower: BorrowerId, health_word: &HealthWord) -> Option<Arc<L>> {
        // A thread that closes the account after the count sees the end of the session. One that closes it before
        // leaves no loans.
        let (say, count) = (|| health_word.retire(), || self.pool.settle(borrower));
        let ((), loans) = Edge::Retire.sequence(say, count);
        if loans == 0 { self.let_go(borrower) } else { None }
    }

    /// Notes the end of a peer, and frees its blocks unless it may still read them: then they have a deadline. Returns the
    /// link if the registry drops it.
    pub(crate) fn ended(
        &self,
        borrower: BorrowerId,
        health_word: &HealthWord,
        end: PeerEnd,
        now: Instant,
    ) -> Option<Arc<L>> {
        if end == PeerEnd::Cut && self.pool.settle(borrower) > 0 {
            // The peer may have returned them meanwhile, and a sender may lend another block: it does not know of the end.
            self.set_deadline(borrower, now, usize::MAX);
            return None;
        }
        self.pool.close(borrower);
        let is_over = end == PeerEnd::Process || health_word.is_retired();
        if is_over { self.let_go(borrower) } else { None }
    }

    /// Revokes the loans whose deadline has come, and those of the peers that have most while there are more than `most`.
    /// Returns the links that the registry
    /// drops.
    pub(crate) fn revoke_due(
        &self,
        now: Instant,
        most: usize,
        is_retired: impl Fn(&L) -> bool,
    ) -> Vec<Arc<L>> {
        let mut gone = Vec::new();
        loop {
            let (borrower, link) = {
                let mut entries = self.lock();
                let Some(number) = entries.due(now, most) else { return gone };
                entries.forget_deadline(number);
                let Some(entry) = entries.links.get(&number) else { continue };
                (entry.borrower, entry.link.clone())
            };
            // A thread that ends the session counts the loans after it has said so.
            self.pool.close(borrower);
            if is_retired(&link) {
                gone.extend(self.let_go(borrower));
            }
        }
    }

    /// Returns whether loans of a peer that lives ever get a deadline.
    pub(crate) fn limits(&self) -> bool {
        self.grace.is_some()
    }

    /// Returns the earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.lock().deadlines.first().map(|(deadline, _)| deadline)
    }

    fn let_go(&self, borrower: BorrowerId) -> Option<Arc<L>> {
        self.pool.close(borrower);
        self.lock().remove(borrower.number())
    }
}

#[cfg(test)]
mod tests;
