//! The pool: blocks of memory behind one lock.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::pool::block::Block;
use crate::pool::class;
use crate::pool::frozen::{Charge, FrozenBlock, FrozenDraft};
use crate::pool::limits::{Exhausted, Lacking, LoanLimit, PoolOptions};
use crate::pool::loans::{Borrower, BorrowerId, Holding, Loan, Loaned, OpenLoan, Promise};
use crate::pool::ready::{Loose, Prepared, Ready};
use crate::pool::shared::SharedBlock;
use crate::pool::tables::{LockedTables, Named, Tables, Taken, copy_of};
use crate::shm::page_size;
use crate::status;
use crate::sync::{Edge, MutexGuard};

/// The blocks that a process lends to its peers. A clone is the same pool.
#[derive(Clone)]
pub(crate) struct Pool {
    tables: LockedTables,
    /// The block of the next tensor.
    loose: Loose,
    /// Its number in the status page of this process.
    number: u64,
    /// The footprint depends on how far the peers are.
    minds_distance: bool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("used", &self.used()).finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(options: PoolOptions) -> Self {
        let number = status::next_context();
        let minds_distance = options.far_footprint > options.footprint;
        let tables = LockedTables::new(options, number);
        let loose = tables.lock().loose().clone();
        Self { tables, loose, number, minds_distance }
    }

    /// Returns whether it matters how far the peers are.
    #[inline(always)]
    pub(crate) fn minds_distance(&self) -> bool {
        self.minds_distance
    }

    /// Returns the number of this pool, and so of its context, in the status page.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock()
    }

    /// Returns whether both are the same pool.
    pub(crate) fn is(&self, other: &Pool) -> bool {
        self.tables.is(&other.tables)
    }

    /// Returns whether a block is of this pool.
    #[inline]
    pub(crate) fn owns(&self, block: &Block) -> bool {
        block.is_of(&self.tables)
    }

    /// Returns whether a block that others may hold too is of this pool.
    #[inline]
    pub(crate) fn owns_shared(&self, block: &SharedBlock) -> bool {
        block.is_of(&self.tables)
    }

    /// Adds a measurement of how long a line took to come from a peer's core.
    pub(crate) fn note_distance(&self, took: Duration) {
        self.lock().note_distance(took);
    }

    /// Opens an account with at most `slots` loans.
    pub(crate) fn open(&self, borrower: Arc<dyn Borrower>, slots: u32) -> BorrowerId {
        self.lock().open(borrower, slots)
    }

    /// Closes an account: the borrower is gone, its loans are over.
    pub(crate) fn close(&self, id: BorrowerId) {
        let borrower = self.lock().close(id);
        // Dropping the borrower may drop what needs the lock.
        drop(borrower);
    }

    /// Takes a block of `len` bytes for a borrower that may have one. It may have it until the block is
    /// [entered](Self::enter) or [lent](Self::lend), as long as nobody else lends to this borrower.
    ///
    /// # Errors
    ///
    /// The outer error is the kernel's, the inner one says what is lacking now.
    pub(crate) fn alloc_for(&self, len: usize, id: BorrowerId) -> Result<Result<Block, Lacking>> {
        let mut tables = self.lock();
        // A closed account admits nothing. Its link is over, which the caller finds out next.
        let block_len = Self::block_len(len);
        if block_len <= tables.quota() && !tables.admits(id, 1, block_len) {
            return Ok(Err(Lacking::Share));
        }
        Ok(self.alloc_locked(tables, len)?.map_err(Lacking::Memory))
    }

    /// Takes a block of `len` bytes for any borrower.
    ///
    /// # Errors
    ///
    /// The outer error is the kernel's, the inner one says that the quota is spent.
    pub(crate) fn alloc(&self, len: usize) -> Result<Result<Block, Exhausted>> {
        if let Some(piece) = self.loose.take(Self::block_len(len)) {
            if piece.area.len() as u64 == Self::block_len(len) {
                // As in `Tables::count_out`, by the thread that writes to the block.
                Edge::Retake.release();
                return Ok(Ok(Block::new(piece, len)));
            }
            self.lock().put_back_unused(piece);
        }
        self.alloc_locked(self.lock(), len)
    }

    fn alloc_locked<'a>(
        &'a self,
        mut tables: MutexGuard<'a, Tables>,
        len: usize,
    ) -> Result<Result<Block, Exhausted>> {
        loop {
            match tables.take(len as u64) {
                Taken::Block(piece) => {
                    unlock(tables);
                    return Ok(Ok(Block::new(piece, len)));
                }
                Taken::Nothing(exhausted) => {
                    unlock(tables);
                    return Ok(Err(exhausted));
                }
                Taken::Growth(growth) => {
                    // The kernel may take long to clear the memory; other threads go on meanwhile.
                    unlock(tables);
                    let made = growth.make();
                    tables = self.lock();
                    tables.enter_segment(growth, made, &self.tables.owner())?;
                }
            }
        }
    }

    /// Lends a block. Returns `None` and leaves the block as it is if the borrower has no free slot or its account is
    /// closed. The caller has asked whether the pool [`admits`](Self::admits) all loans of the record.
    pub(crate) fn lend(&self, block: &mut Block, id: BorrowerId) -> Option<Loan> {
        let place = block.place()?;
        self.lock().lend(id, place, || block.take().map(Loaned::Sole))
    }

    /// Lends a block that others may hold too. Returns `None` as [`lend`](Self::lend) does.
    pub(crate) fn lend_shared(&self, block: &SharedBlock, id: BorrowerId) -> Option<Loan> {
        let loaned = || Some(Loaned::Shared(block.shared().clone()));
        self.lock().lend(id, block.place(), loaned)
    }

    /// Reserves a slot for a borrower's next loan. The sender may tell the borrower of the loan before it
    /// [enters](Self::enter) it. Returns `None` as [`lend`](Self::lend) does.
    pub(crate) fn promise(&self, id: BorrowerId) -> Option<Promise> {
        self.lock().promise(id)
    }

    /// Enters a promised loan and promises the next one. If the account was closed meanwhile, the caller still has the
    /// block, which the borrower may read: `revoke` [tells it](Borrower::revoke) before anybody else can have the block.
    #[inline]
    pub(crate) fn enter(
        &self,
        block: &mut Block,
        id: BorrowerId,
        promise: Promise,
        revoke: impl FnOnce(),
    ) -> Option<Promise> {
        let mut tables = self.lock();
        let class = block.class();
        let next = tables.enter(id, promise, || block.take().map(Loaned::Sole), revoke);
        if next.is_some() {
            class.into_iter().for_each(|class| tables.prepare_loose(id, class));
        }
        next
    }

    /// Enters a loan as [`enter`](Self::enter) does, of a block that others may hold too, and takes back one or two old ones.
    #[inline]
    pub(crate) fn enter_shared(
        &self,
        block: &SharedBlock,
        id: BorrowerId,
        promise: Promise,
        revoke: impl FnOnce(),
    ) -> Option<Promise> {
        let shared = block.shared();
        let closed = || {
            revoke();
            shared.lose();
        };
        let mut tables = self.lock();
        tables.reclaim_few(id);
        tables.enter(id, promise, || Some(Loaned::Shared(shared.clone())), closed)
    }

    /// Enters a loan as [`enter`](Self::enter) does, and puts a block of the same class [ready](Self::ready) if the next
    /// loan was promised and a block is free.
    pub(crate) fn enter_and_prepare(
        &self,
        block: &mut Block,
        id: BorrowerId,
        promise: Promise,
        revoke: impl FnOnce(),
    ) -> (Option<Promise>, Option<Prepared>) {
        let Some(class) = block.class() else { return (None, None) };
        let mut tables = self.lock();
        let promise = tables.enter(id, promise, || block.take().map(Loaned::Sole), revoke);
        let prepared = promise.as_ref().and_then(|_| tables.prepare(id, class));
        (promise, prepared)
    }

    /// Returns where the pool puts the block of a borrower's next loan.
    pub(crate) fn ready(&self, id: BorrowerId) -> Option<Ready> {
        self.lock().ready(id)
    }

    /// Returns how many blocks of this length, which is not 0, the pool hands out in turn, while as many are free. They take at
    /// most a quarter of the quota.
    pub(crate) fn rotation(&self, block_len: u64) -> u64 {
        self.lock().rotation(block_len)
    }

    /// Frees the slot of a promised loan that will not be.
    pub(crate) fn renounce(&self, id: BorrowerId, promise: Promise) {
        self.lock().renounce(id, promise);
    }

    /// Returns how much of this pool each borrower may hold.
    pub(crate) fn loan_limit(&self) -> LoanLimit {
        self.lock().loan_limit()
    }

    /// Returns the length of a block for `len` bytes.
    pub(crate) fn block_len(len: usize) -> u64 {
        class::block_len(len as u64).unwrap_or(u64::MAX)
    }

    /// Returns whether a borrower may have `blocks` more blocks of `bytes` together, if need be after the pool took back
    /// what it returned.
    pub(crate) fn admits(&self, id: BorrowerId, blocks: usize, bytes: u64) -> bool {
        self.lock().admits(id, blocks, bytes)
    }

    /// Checks that `needed` bytes are no more than the quota: otherwise no wait helps.
    #[cold]
    pub(crate) fn fits(&self, needed: u64) -> Result<(), Exhausted> {
        let tables = self.lock();
        if needed > tables.quota() { Err(tables.exhausted(needed)) } else { Ok(()) }
    }

    /// Returns who holds how much of this pool, for errors: the first few, by bytes.
    pub(crate) fn holdings(&self) -> String {
        const SHOWN: usize = 4;
        let mut tables = self.lock();
        let (mut holdings, limit) = (tables.holdings(), tables.loan_limit());
        unlock(tables);
        holdings.sort_by_key(|holding| std::cmp::Reverse(holding.bytes));
        let more = holdings.len().saturating_sub(SHOWN);
        let mut text: Vec<String> = holdings.iter().take(SHOWN).map(Holding::to_string).collect();
        if more > 0 {
            text.push(format!("{more} more peers hold less"));
        }
        let LoanLimit { blocks, bytes, .. } = limit;
        text.push(format!("a link may hold {blocks} blocks, {bytes} bytes (Options::loan_limit)"));
        text.join("; ")
    }

    /// Returns a copy of the descriptor of a segment, to hand to a borrower, its length in bytes, and whether it is
    /// frozen.
    pub(crate) fn segment_of(&self, segment: u32) -> Result<Option<(OwnedFd, u64, bool)>> {
        // The lock is free below: the last use of frozen memory may end there, which unmaps it.
        let named = self.lock().named(segment)?;
        Ok(match named {
            None => None,
            Some(Named::Blocks(fd, len)) => Some((fd, len, false)),
            Some(Named::Frozen(frozen)) => Some((copy_of(frozen.fd())?, frozen.len() as u64, true)),
        })
    }

    /// Returns the segments of the blocks that a borrower has not returned.
    pub(crate) fn lent_to(&self, id: BorrowerId) -> HashSet<u32> {
        self.lock().lent_to(id)
    }

    /// Returns whether a segment still exists.
    pub(crate) fn holds(&self, segment: u32) -> bool {
        self.lock().holds(segment)
    }

    /// Takes back what a borrower has returned. Returns its oldest open loan, which the caller can poll without the
    /// lock.
    pub(crate) fn oldest_loan(&self, id: BorrowerId) -> Option<OpenLoan> {
        self.lock().oldest_loan(id)
    }

    /// Takes back what a borrower has returned. Returns the number of its open loans.
    pub(crate) fn settle(&self, id: BorrowerId) -> usize {
        self.lock().settle(id)
    }

    /// Takes back what a borrower has returned.
    pub(crate) fn look_at(&self, id: BorrowerId) {
        self.lock().reclaim(id);
    }

    /// Drops every segment of which no block is in use. Returns how many bytes that freed.
    pub(crate) fn trim(&self) -> u64 {
        let mut tables = self.lock();
        tables.reclaim_all();
        let before = tables.used();
        tables.drop_idle();
        let trimmed = before - tables.used();
        unlock(tables);
        trimmed
    }

    /// Returns the most bytes that may count.
    pub(crate) fn quota(&self) -> u64 {
        self.lock().quota()
    }

    /// Returns the bytes that count for the quota.
    pub(crate) fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Allocates memory for `len` bytes that will be frozen. All bytes are zero.
    ///
    /// # Errors
    ///
    /// The outer error is the kernel's, the inner one says that the quota is spent.
    pub(crate) fn draft(&self, len: usize) -> Result<Result<FrozenDraft, Exhausted>> {
        let Some(whole) = len.max(1).checked_next_multiple_of(page_size()) else {
            return Ok(Err(self.lock().exhausted(len as u64)));
        };
        match self.charge(whole as u64) {
            Ok(charge) => FrozenDraft::create(len, whole, charge).map(Ok),
            Err(exhausted) => Ok(Err(exhausted)),
        }
    }

    /// Returns the number of frozen memory in this pool, which gives it one at the first call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NumbersSpent`](crate::ErrorKind::NumbersSpent)
    pub(crate) fn number_of(&self, frozen: &FrozenBlock) -> Result<u32> {
        frozen.number_in(&self.tables)
    }

    /// Counts `len` bytes for the quota.
    fn charge(&self, len: u64) -> Result<Charge, Exhausted> {
        let mut tables = self.lock();
        let charged = if tables.charge(len) { Ok(()) } else { Err(tables.exhausted(len)) };
        unlock(tables);
        charged.map(|()| Charge::new(self.tables.downgrade(), len))
    }
}

/// Releases the lock, and then unmaps the segments that were dropped under it.
fn unlock(mut tables: MutexGuard<'_, Tables>) {
    let dropped = tables.take_dropped();
    drop(tables);
    drop(dropped);
}

#[cfg(test)]
mod tests;
