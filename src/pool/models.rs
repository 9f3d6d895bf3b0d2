//! loom models of loans: a block is not written while its borrower reads it.
//!
//! ```text
//! RUSTFLAGS="--cfg slipring_loom" cargo test --release --lib models
//! ```
//!
//! They run [`Pool`] with its accounts as it ships, over returns in [`LoomWords`]. The blocks are
//! real ones and nobody touches them: what is in them is modelled by a word each, as plain memory,
//! since loom executes loads in order and never shows a value from the future. The borrower's store
//! is that of `Session::return_loan`; the descriptor reaches it by the start of its thread, where the
//! ring's models have their own say.

use std::sync::Arc;

use loom::thread;

use crate::pool::{Borrower, BorrowerId, Loan, Pool, PoolOptions};
use crate::shm::{Backing, LoomWords, OwnWords, PeerWords};
use crate::sync::{Edge, Ordering, failure_without};

/// Bytes of a block, the smallest class.
const BLOCK: usize = 4096;

/// What loom says of plain memory that is touched without an order.
const RACE: &str = "Causality violation";

/// The array of a borrower's returns: a word for each slot.
struct Returns(LoomWords);

impl Borrower for Returns {
    fn returned(&self, slot: u32) -> u64 {
        self.0.load(8 * slot as usize)
    }
}

struct Lender {
    pool: Pool,
    id: BorrowerId,
    /// A word for each block.
    contents: LoomWords,
    returns: LoomWords,
}

impl Lender {
    /// A pool of `count` blocks, and a borrower with as many slots.
    fn new(count: u32) -> Self {
        let backing = Backing::default();
        let quota = u64::from(count) * BLOCK as u64;
        let pool = Pool::new(PoolOptions { quota, footprint: 0, far_footprint: 0, backing });
        let returns = LoomWords::new(8 * count as usize);
        let id = pool.open(Arc::new(Returns(returns.clone())), count);
        Self { pool, id, contents: LoomWords::new(8 * count as usize), returns }
    }

    /// Writes `value` into a block and lends it, if one is free.
    fn lend(&self, value: u64) -> Option<Loan> {
        let mut block = self.pool.alloc_for(BLOCK, self.id).expect("memory").ok()?;
        // Which block it is, only its loan tells; no other thread looks at the table.
        let loan = self.pool.lend(&mut block, self.id)?;
        self.contents.store(content(&loan), value, Ordering::Relaxed);
        Some(loan)
    }

    /// A thread of the borrower, which reads a block and returns it.
    fn borrow(&self, loan: Loan, value: u64) -> thread::JoinHandle<()> {
        let (contents, returns) = (self.contents.clone(), self.returns.clone());
        thread::spawn(move || {
            assert_eq!(contents.read(content(&loan)), value);
            returns.store(8 * loan.slot as usize, loan.generation, Edge::Return.store());
        })
    }
}

/// The word that stands for a block's bytes.
fn content(loan: &Loan) -> usize {
    loan.offset as usize / BLOCK * 8
}

/// One block: lent, returned, written again.
fn one_loan() {
    loom::model(|| {
        let lender = Lender::new(1);
        let loan = lender.lend(1).expect("a block is free");
        let borrowing = lender.borrow(loan, 1);
        let again = lender.lend(2);
        borrowing.join().unwrap();
        assert!(again.or_else(|| lender.lend(2)).is_some(), "the block came back");
        assert!(lender.lend(3).is_none(), "an old return gives nothing back again");
    });
}

#[test]
fn a_block_is_not_written_while_it_is_read() {
    one_loan();
}

#[test]
fn a_loan_fails_without_return() {
    assert!(failure_without(Edge::Return, one_loan).contains(RACE));
}

#[test]
fn a_loan_fails_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, one_loan).contains(RACE));
}

/// Two blocks, read by two threads: one fence stands behind the loads of all returns.
fn two_loans() {
    loom::model(|| {
        let lender = Lender::new(2);
        let loans = [1, 2].map(|value| lender.lend(value).expect("a block is free"));
        let borrowing = [0, 1].map(|index| lender.borrow(loans[index], index as u64 + 1));
        let again = [3, 4].map(|value| lender.lend(value).is_some());
        borrowing.into_iter().for_each(|thread| thread.join().unwrap());
        let missing = again.into_iter().filter(|lent| !lent).count();
        (0..missing).for_each(|_| assert!(lender.lend(5).is_some(), "every block came back"));
    });
}

#[test]
fn one_fence_covers_all_returned_loans() {
    two_loans();
}

#[test]
fn two_loans_fail_without_return() {
    assert!(failure_without(Edge::Return, two_loans).contains(RACE));
}

#[test]
fn two_loans_fail_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, two_loans).contains(RACE));
}
