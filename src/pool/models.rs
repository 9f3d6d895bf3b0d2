//! Loom models of loans: nobody writes a block while its borrower reads it.
//!
//! ```text
//! RUSTFLAGS="--cfg slipring_loom" cargo test --release --lib models
//! ```
//!
//! The models run [`Pool`] and its accounts as they ship, with loom's mutex as the lock and [`LoomWords`] as the borrower's
//! array of returns. The blocks are real memory that no model touches. One word of plain memory stands for the bytes of
//! each block, because loom executes loads in order and never shows a value from the future. The borrower's store is that
//! of `Session::return_loan`. The start of a thread stands for the descriptor's way through the ring, which the ring's own
//! models cover.

use std::sync::Arc;

use loom::thread;

use crate::pool::{Block, Borrower, BorrowerId, Holder, Loan, LoanLimit, Pool, PoolOptions};
use crate::shm::{Backing, LoomWords, OwnWords, PeerWords};
use crate::sync::{Edge, Ordering, failure_without};

/// Bytes of a block, the smallest class.
const BLOCK: usize = 4096;

/// Loom's message for unordered accesses to plain memory.
const RACE: &str = "Causality violation";

/// The array of a borrower's returns: a word for each slot.
struct Returns(LoomWords);

impl Borrower for Returns {
    fn holder(&self) -> Holder {
        Holder { uid: 0, pid: None }
    }

    fn returned(&self, slot: u32) -> u64 {
        self.0.load(8 * slot as usize)
    }
}

/// A borrower whose loans are taken back: a word for each slot, and behind them the lender's mark.
struct Revocable {
    returns: LoomWords,
    mark: LoomWords,
}

impl Borrower for Revocable {
    fn holder(&self) -> Holder {
        Holder { uid: 0, pid: None }
    }

    fn returned(&self, slot: u32) -> u64 {
        self.returns.load(8 * slot as usize)
    }

    fn revoke(&self) {
        self.mark.store(0, 1, Ordering::Relaxed);
    }
}

struct CachedSegment {
    pool: Pool,
    id: BorrowerId,
    /// A word for each block.
    contents: LoomWords,
    returns: LoomWords,
}

impl CachedSegment {
    /// Returns a pool of `count` blocks, and a borrower with as many slots.
    fn new(count: u32) -> Self {
        Self::with_slots(count, count, 0)
    }

    /// Returns a pool of two blocks that rotate, and a borrower with slots to spare.
    fn in_turn() -> Self {
        Self::with_slots(2, 4, 2 * BLOCK as u64)
    }

    fn with_slots(count: u32, slots: u32, footprint: u64) -> Self {
        let backing = Backing::default();
        let quota = u64::from(count) * BLOCK as u64;
        let pool = Pool::new(PoolOptions {
            quota,
            loans: LoanLimit::NONE,
            footprint,
            far_footprint: footprint,
            backing,
        });
        let returns = LoomWords::new(8 * slots as usize);
        let id = pool.open(Arc::new(Returns(returns.clone())), slots);
        Self { pool, id, contents: LoomWords::new(8 * count as usize), returns }
    }

    /// Writes `value` into a block and lends it, if one is free.
    fn lend(&self, value: u64) -> Option<Loan> {
        let mut block = self.pool.alloc_for(BLOCK, self.id).expect("memory").ok()?;
        // Only the loan tells which block it is. No other thread reads the table.
        let loan = self.pool.lend(&mut block, self.id)?;
        self.contents.store(content(&loan), value, Ordering::Relaxed);
        Some(loan)
    }

    /// Starts a thread of the borrower, which reads a block and returns it.
    fn borrow(&self, loan: Loan, value: u64) -> thread::JoinHandle<()> {
        let (contents, returns) = (self.contents.clone(), self.returns.clone());
        thread::spawn(move || {
            assert_eq!(contents.read(content(&loan)), value);
            returns.store(8 * loan.slot as usize, loan.generation, Edge::Return.store());
        })
    }
}

/// Returns the word that stands for a block's bytes.
fn content(loan: &Loan) -> usize {
    loan.offset as usize / BLOCK * 8
}

/// One block: lent, returned, written again.
fn one_loan() {
    loom::model(|| {
        let lender = CachedSegment::new(1);
        let loan = lender.lend(1).expect("a block is free");
        let borrowing = lender.borrow(loan, 1);
        let again = lender.lend(2);
        borrowing.join().unwrap();
        assert!(again.or_else(|| lender.lend(2)).is_some(), "the block came back");
        assert!(lender.lend(3).is_none(), "an old return gives nothing back");
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

/// Two threads read two blocks. One fence follows the loads of all returns.
fn two_loans() {
    loom::model(|| {
        let lender = CachedSegment::new(2);
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

/// The peer dies after it has returned a block. Its account closes while the lender takes the block back and lends it to
/// another borrower.
fn death() {
    loom::model(|| {
        let lender = CachedSegment::new(1);
        let loan = lender.lend(1).expect("a block is free");
        let other = LoomWords::new(8);
        let to = lender.pool.open(Arc::new(Returns(other)), 1);
        let (pool, id) = (lender.pool.clone(), lender.id);
        let (contents, returns) = (lender.contents.clone(), lender.returns.clone());
        let dying = thread::spawn(move || {
            assert_eq!(contents.read(content(&loan)), 1);
            returns.store(8 * loan.slot as usize, loan.generation, Edge::Return.store());
            // The watcher does this when a peer has died.
            pool.close(id);
        });
        let lender = CachedSegment { id: to, ..lender };
        let again = lender.lend(2);
        dying.join().unwrap();
        assert!(again.or_else(|| lender.lend(2)).is_some(), "the block came back");
        assert!(lender.lend(3).is_none(), "it came back once");
    });
}

#[test]
fn a_block_comes_back_once_from_a_peer_that_dies() {
    death();
}

#[test]
fn death_fails_without_return() {
    assert!(failure_without(Edge::Return, death).contains(RACE));
}

#[test]
fn death_fails_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, death).contains(RACE));
}

/// Two borrowers hold a block. One dies while the other returns it: the later of the two gives it back.
fn shared_loan() {
    loom::model(|| {
        let lender = CachedSegment::new(1);
        let first = LoomWords::new(8);
        let id = lender.pool.open(Arc::new(Returns(first)), 1);
        let block = lender.pool.alloc(BLOCK).expect("memory").expect("a block is free");
        let shared = block.share().expect("it is not lent");
        let loan = lender.pool.lend_shared(&shared, lender.id).expect("a slot is free");
        assert!(lender.pool.lend_shared(&shared, id).is_some(), "a slot is free");
        let returning = lender.borrow(loan, 0);
        let pool = lender.pool.clone();
        let dying = thread::spawn(move || pool.close(id));
        drop(shared);
        let again = lender.lend(2);
        returning.join().unwrap();
        dying.join().unwrap();
        assert!(again.or_else(|| lender.lend(2)).is_some(), "the block came back");
        assert!(lender.lend(3).is_none(), "it came back once");
    });
}

#[test]
fn a_shared_block_comes_back_after_its_last_use() {
    shared_loan();
}

#[test]
fn a_shared_loan_fails_without_return() {
    assert!(failure_without(Edge::Return, shared_loan).contains(RACE));
}

#[test]
fn a_shared_loan_fails_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, shared_loan).contains(RACE));
}

/// The pool drops a block's segment as soon as the block is back, and no sooner.
fn segment() {
    loom::model(|| {
        let lender = CachedSegment::new(1);
        let loan = lender.lend(1).expect("a block is free");
        let borrowing = lender.borrow(loan, 1);
        lender.pool.trim();
        if lender.pool.used() == 0 {
            // The next owner of the memory may write it.
            lender.contents.store(content(&loan), 9, Ordering::Relaxed);
        } else {
            assert!(lender.pool.holds(loan.segment));
        }
        borrowing.join().unwrap();
        lender.pool.trim();
        assert_eq!(lender.pool.used(), 0, "nothing is on loan");
        assert!(!lender.pool.holds(loan.segment));
    });
}

#[test]
fn a_segment_does_not_go_while_a_block_of_it_is_read() {
    segment();
}

#[test]
fn a_segment_fails_without_return() {
    assert!(failure_without(Edge::Return, segment).contains(RACE));
}

#[test]
fn a_segment_fails_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, segment).contains(RACE));
}

/// Two blocks rotate: while the borrower reads one, the other one is ready, and the lender takes it without the lock.
fn ready() {
    loom::model(|| {
        let lender = CachedSegment::in_turn();
        let CachedSegment { pool, id, .. } = &lender;
        let (ready, mut promise) = (pool.ready(*id).expect("it is open"), pool.promise(*id));
        let mut prepared = None;
        let mut lend = |value| {
            let mut block = Block::empty();
            let lies_ready =
                prepared.take().is_some_and(|prepared| block.take_ready(&ready, prepared, BLOCK));
            if !lies_ready {
                block = pool.alloc_for(BLOCK, *id).expect("memory").ok()?;
            }
            let next = promise.take().or_else(|| pool.promise(*id))?;
            let loan = next.loan(block.place()?);
            lender.contents.store(content(&loan), value, Ordering::Relaxed);
            (promise, prepared) = pool.enter_and_prepare(&mut block, *id, next, || ());
            Some(loan)
        };
        let first = lend(1).expect("a block is free");
        let borrowing = lender.borrow(first, 1);
        // The block that is put ready behind the second one may be the first.
        let second = lend(2).expect("a block lies ready");
        let third = lend(3);
        borrowing.join().unwrap();
        assert!(third.or_else(|| lend(3)).is_some(), "the block came back");
        assert_ne!(content(&first), content(&second));
    });
}

#[test]
fn a_block_that_lies_ready_is_not_read() {
    ready();
}

#[test]
fn a_ready_block_fails_without_return() {
    assert!(failure_without(Edge::Return, ready).contains(RACE));
}

#[test]
fn a_ready_block_fails_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, ready).contains(RACE));
}

/// Three blocks, lent one after the other: the lender takes an old one back as it enters a later one, and lends it again.
fn in_passing() {
    loom::model(|| {
        let lender = CachedSegment::with_slots(3, 5, 3 * BLOCK as u64);
        let CachedSegment { pool, id, .. } = &lender;
        let mut promise = pool.promise(*id);
        let mut lend = |value| {
            let block = pool.alloc_for(BLOCK, *id).expect("memory").ok()?;
            let next = promise.take().or_else(|| pool.promise(*id))?;
            let loan = next.loan(block.place()?);
            lender.contents.store(content(&loan), value, Ordering::Relaxed);
            promise = pool.enter_shared(&block.share()?, *id, next, || ());
            Some(loan)
        };
        let first = lend(1).expect("a block is free");
        let borrowing = lender.borrow(first, 1);
        assert!(lend(2).is_some() && lend(3).is_some(), "two more are free");
        let again = lend(4);
        borrowing.join().unwrap();
        assert!(again.or_else(|| lend(4)).is_some(), "the block came back");
        assert!(lend(5).is_none(), "an old return gives nothing back");
    });
}

#[test]
fn a_block_that_is_taken_back_in_passing_is_not_read() {
    in_passing();
}

#[test]
fn a_loan_in_passing_fails_without_return() {
    assert!(failure_without(Edge::Return, in_passing).contains(RACE));
}

#[test]
fn a_loan_in_passing_fails_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, in_passing).contains(RACE));
}

/// A lender takes its ready block while another thread trims the pool.
fn recalled() {
    loom::model(|| {
        let lender = CachedSegment::in_turn();
        let CachedSegment { pool, id, .. } = &lender;
        let (ready, promise) = (pool.ready(*id).expect("it is open"), pool.promise(*id));
        let mut block = pool.alloc_for(BLOCK, *id).expect("memory").expect("a block is free");
        let promise = promise.expect("a slot is free");
        let loan = promise.loan(block.place().expect("it is not lent"));
        let (_, prepared) = pool.enter_and_prepare(&mut block, *id, promise, || ());
        lender.returns.store(8 * loan.slot as usize, loan.generation, Edge::Return.store());
        let trimming = thread::spawn({
            let pool = pool.clone();
            move || pool.trim()
        });
        let is_taken = block.take_ready(&ready, prepared.expect("a block is free"), BLOCK);
        trimming.join().unwrap();
        if is_taken {
            assert!(pool.holds(block.segment()), "it is in use");
        } else {
            assert_eq!(pool.used(), 0, "nothing is in use");
        }
    });
}

#[test]
fn a_block_that_lies_ready_is_taken_by_one() {
    recalled();
}

/// A borrower returns an old loan a second time while its block is on loan under a new generation.
fn stale_return() {
    loom::model(|| {
        let lender = CachedSegment::new(1);
        let old = lender.lend(1).expect("a block is free");
        lender.returns.store(8 * old.slot as usize, old.generation, Edge::Return.store());
        let new = lender.lend(2).expect("the block came back");
        assert_eq!(old.slot, new.slot);
        let returns = lender.returns.clone();
        let returning = thread::spawn(move || {
            for value in [old.generation, new.generation + 1, 0] {
                returns.store(8 * old.slot as usize, value, Edge::Return.store());
            }
        });
        assert!(lender.lend(3).is_none(), "an old return gives nothing back");
        returning.join().unwrap();
        assert!(lender.lend(3).is_none(), "an old return gives nothing back");
        lender.returns.store(8 * new.slot as usize, new.generation, Edge::Return.store());
        assert!(lender.lend(3).is_some(), "its own return does");
    });
}

#[test]
fn an_old_return_does_not_free_a_block_that_is_lent_again() {
    stale_return();
}

#[test]
fn a_stale_return_fails_without_the_generation() {
    assert!(failure_without(Edge::Generation, stale_return).contains("an old return"));
}

/// A lender takes its only block back, and lends it to another borrower, while the first one copies it, and perhaps
/// returns it. The copy is right, or the mark says that it may be wrong.
fn revocation(returns_too: bool) {
    loom::model(move || {
        let (quota, loans, backing) = (BLOCK as u64, LoanLimit::NONE, Backing::default());
        let options = PoolOptions { quota, footprint: 0, far_footprint: 0, loans, backing };
        let pool = Pool::new(options);
        let [contents, returns, mark, others] = [(); 4].map(|()| LoomWords::new(8));
        let borrower = Revocable { returns: returns.clone(), mark: mark.clone() };
        let id = pool.open(Arc::new(borrower), 1);
        let to = pool.open(Arc::new(Returns(others)), 1);
        let mut block = pool.alloc_for(BLOCK, id).expect("memory").expect("a block is free");
        contents.store(0, 1, Ordering::Relaxed);
        let loan = pool.lend(&mut block, id).expect("a slot is free");
        let copying = {
            let contents = contents.clone();
            thread::spawn(move || {
                // `Bytes::copy_to` and `Link::check_loans`.
                let copy = contents.load(0);
                Edge::Recheck.acquire();
                let is_intact = mark.load(0) == 0;
                if returns_too {
                    returns.store(8 * loan.slot as usize, loan.generation, Edge::Return.store());
                }
                assert!(copy == 1 || !is_intact, "a wrong copy passed for a right one");
            })
        };
        let revoking = {
            let pool = pool.clone();
            thread::spawn(move || pool.close(id))
        };
        let lend = || {
            let mut block = pool.alloc_for(BLOCK, to).expect("memory").ok()?;
            contents.store(0, 2, Ordering::Relaxed);
            pool.lend(&mut block, to)
        };
        let again = lend();
        revoking.join().unwrap();
        assert!(again.or_else(lend).is_some(), "the block is usable at once");
        assert!(lend().is_none(), "it came back once");
        copying.join().unwrap();
    });
}

fn revoked() {
    revocation(false);
}

#[test]
fn a_copy_of_a_loan_that_is_taken_back_is_right_or_known_to_be_wrong() {
    revoked();
    revocation(true);
}

#[test]
fn a_revocation_fails_without_retake() {
    assert!(failure_without(Edge::Retake, revoked).contains("passed for a right one"));
}

#[test]
fn a_revocation_fails_without_recheck() {
    assert!(failure_without(Edge::Recheck, revoked).contains("passed for a right one"));
}

/// A lender has told its borrower of a promised loan while the borrower's account is closed. Perhaps it cannot enter the
/// loan, and its block is lent to another borrower while the first one copies it: the copy is right, or the mark says that
/// it may be wrong.
fn published() {
    loom::model(|| {
        let (quota, loans, backing) = (BLOCK as u64, LoanLimit::NONE, Backing::default());
        let options = PoolOptions { quota, footprint: 0, far_footprint: 0, loans, backing };
        let pool = Pool::new(options);
        let [contents, returns, mark, others] = [(); 4].map(|()| LoomWords::new(8));
        let borrower = Revocable { returns, mark: mark.clone() };
        let id = pool.open(Arc::new(borrower), 1);
        let to = pool.open(Arc::new(Returns(others)), 1);
        let mut block = pool.alloc_for(BLOCK, id).expect("memory").expect("a block is free");
        let promise = pool.promise(id).expect("a slot is free");
        contents.store(0, 1, Ordering::Relaxed);
        let copying = {
            let (contents, mark) = (contents.clone(), mark.clone());
            thread::spawn(move || {
                // `Bytes::copy_to` and `Link::check_loans`.
                let copy = contents.load(0);
                Edge::Recheck.acquire();
                assert!(copy == 1 || mark.load(0) != 0, "a wrong copy passed for a right one");
            })
        };
        let closing = {
            let pool = pool.clone();
            thread::spawn(move || pool.close(id))
        };
        // `Sender::finish_pooled`.
        pool.enter(&mut block, id, promise, || mark.store(0, 1, Ordering::Relaxed));
        block.put_back();
        let lend = || {
            let mut block = pool.alloc_for(BLOCK, to).expect("memory").ok()?;
            contents.store(0, 2, Ordering::Relaxed);
            pool.lend(&mut block, to)
        };
        let again = lend();
        closing.join().unwrap();
        assert!(again.or_else(lend).is_some(), "the block is usable at once");
        copying.join().unwrap();
    });
}

#[test]
fn a_copy_of_a_loan_that_a_closed_account_never_had_is_right_or_known_to_be_wrong() {
    published();
}

#[test]
fn a_publication_to_a_closed_account_fails_without_retake() {
    assert!(failure_without(Edge::Retake, published).contains("passed for a right one"));
}
