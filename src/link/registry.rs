//! The registry of a context's links. It drops a link when its session is over and the peer reads none of its loans, or
//! when the peer's process has ended. No I/O.
//!
//! | | session | no session, loans out | no session, no loans |
//! |---|---|---|---|
//! | peer lives | kept | kept | dropped |
//! | socket hung up | kept: the session asks | dropped | dropped |
//! | process ended | dropped | dropped | dropped |
//!
//! 1. A dropped link has no account with the pool.
//! 2. The later of two threads, one that ends the session and one that sees the end of the peer, sees what the other
//!    wrote.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use crate::link::health::HealthWord;
use crate::pool::{BorrowerId, Pool};
use crate::sync::{Edge, Mutex, MutexGuard};

pub(crate) struct LinkRegistry<L> {
    links: Mutex<HashMap<u64, Arc<L>>>,
    pool: Pool,
}

impl<L> LinkRegistry<L> {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { links: Mutex::new(HashMap::new()), pool }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<L>>> {
        // Only a bug of this crate panics under the lock, and each step leaves the table whole.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a link under the number of its account.
    pub(crate) fn enter(&self, borrower: BorrowerId, link: Arc<L>) {
        self.lock().insert(borrower.number(), link);
    }

    /// Returns the link with this number.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<L>> {
        self.lock().get(&number).cloned()
    }

    /// Removes a link that could not be watched.
    pub(crate) fn strike(&self, borrower: BorrowerId) {
        self.lock().remove(&borrower.number());
    }

    /// Notes that the session of a link is over. Returns the link if the registry drops it.
    pub(crate) fn retire(&self, borrower: BorrowerId, health_word: &HealthWord) -> Option<Arc<L>> {
        // A thread that closes the account after the count sees the end of the session. One that closes it before
        // leaves no loans.
        let (say, count) = (|| health_word.retire(), || self.pool.settle(borrower));
        let ((), loans) = Edge::Retire.sequence(say, count);
        if loans == 0 { self.let_go(borrower) } else { None }
    }

    /// Frees a peer's blocks: its end of the link is closed, or its process has ended. Returns the link if the registry
    /// drops it.
    pub(crate) fn ended(
        &self,
        borrower: BorrowerId,
        health_word: &HealthWord,
        process: bool,
    ) -> Option<Arc<L>> {
        self.pool.close(borrower);
        if process || health_word.is_retired() { self.let_go(borrower) } else { None }
    }

    fn let_go(&self, borrower: BorrowerId) -> Option<Arc<L>> {
        self.pool.close(borrower);
        self.lock().remove(&borrower.number())
    }
}
