//! The links of a context, and when each of them may be let go: its user is gone and holds nothing that the
//! peer may still read, or the peer's process is gone. No I/O.
//!
//! | | user there | user gone, loans out | user gone, no loans |
//! |---|---|---|---|
//! | peer there | kept | kept | let go |
//! | socket hung up | kept: the user asks | let go | let go |
//! | process ended | let go | let go | let go |
//!
//! A link that is let go has no account with the pool. Whoever comes last of the user's going and the
//! peer's finds the other one told.

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
        // A panic under the lock would be a bug of ours, and every step leaves the table whole.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a link, by the number of its account.
    pub(crate) fn enter(&self, borrower: BorrowerId, link: Arc<L>) {
        self.lock().insert(borrower.number(), link);
    }

    /// The link with this number.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<L>> {
        self.lock().get(&number).cloned()
    }

    /// The link could not be watched.
    pub(crate) fn strike(&self, borrower: BorrowerId) {
        self.lock().remove(&borrower.number());
    }

    /// The user of a link is gone. Gives the link if it is let go.
    pub(crate) fn retire(&self, borrower: BorrowerId, health_word: &HealthWord) -> Option<Arc<L>> {
        // Whoever closes the account after the look at the loans sees this, and whoever closes it
        // before leaves none.
        let (say, count) = (|| health_word.retire(), || self.pool.settle(borrower));
        let ((), loans) = Edge::Retire.sequence(say, count);
        if loans == 0 { self.let_go(borrower) } else { None }
    }

    /// The peer's end of a link is closed, or its process gone: its blocks are free. Gives the link if it
    /// is let go.
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
