//! The pool: segments, free blocks, and who holds the others.

use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::pool::block::{Block, Written};
use crate::pool::frozen::{Charge, FrozenBlock};
use crate::pool::loans::{Account, Borrower, BorrowerId, Lent, Loan, Loaned, OpenLoan, Promise};
use crate::pool::ready::{Prepared, Ready};
use crate::pool::shared::SharedBlock;
use crate::pool::state::{State, Taken};
use crate::pool::tuning::Timing;
use crate::shm::Backing;
use crate::sync::{Mutex, MutexGuard};

/// How much a pool may hold, and how it walks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolOptions {
    /// Bytes of all segments together, at most.
    pub(crate) quota: u64,
    /// Bytes of a class to walk through in turn while peers are near.
    pub(crate) footprint: u64,
    /// The same while peers are far.
    pub(crate) far_footprint: u64,
    pub(crate) backing: Backing,
}

/// The quota is spent: everything is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted {
    pub(crate) needed: u64,
    pub(crate) used: u64,
    pub(crate) quota: u64,
}

impl From<Exhausted> for Error {
    fn from(exhausted: Exhausted) -> Self {
        let Exhausted { needed, used, quota } = exhausted;
        ErrorKind::PoolExhausted { needed, used, quota }.into()
    }
}

/// What a block cannot be had for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// The borrower holds as many loans as it has slots.
    Slot,
    Memory(Exhausted),
}

/// Blocks of a process, lent to its peers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool {
    state: Arc<Mutex<State>>,
}

/// A pool that may be gone, and its blocks with it.
#[derive(Clone)]
pub(super) struct WeakPool {
    state: Weak<Mutex<State>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("used", &self.used()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for WeakPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakPool")
    }
}

impl WeakPool {
    pub(super) fn is(&self, pool: &Pool) -> bool {
        std::ptr::eq(self.state.as_ptr(), Arc::as_ptr(&pool.state))
    }

    /// Bytes that counted for the quota do so no longer.
    pub(super) fn discharge(&self, len: u64) {
        if let Some(state) = self.state.upgrade() {
            Pool { state }.lock().used -= len;
        }
    }

    /// Takes back a block that was shared.
    pub(super) fn put_back(&self, lent: Lent) {
        // A forked child holds only a copy of the tables and must not wait for their lock.
        if lent.area.generation().is_current()
            && let Some(state) = self.state.upgrade()
        {
            Pool { state }.lock().put_back(lent);
        }
    }
}

impl Pool {
    pub(crate) fn new(options: PoolOptions) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(options))) }
    }

    /// Takes back a block that was not lent.
    pub(super) fn put_back_unused(&self, lent: Lent) {
        self.lock().put_back_unused(lent);
    }

    pub(super) fn downgrade(&self) -> WeakPool {
        WeakPool { state: Arc::downgrade(&self.state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock but a bug of ours, and every step leaves the tables whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in how long a line took to come from a peer's core.
    pub(crate) fn note_distance(&self, took: Duration) {
        self.lock().footprints.note_distance(took);
    }

    /// Blocks for `len` bytes are walked through in the largest footprint from now on.
    #[cfg(test)]
    pub(super) fn walk_large(&self, len: usize) {
        let mut state = self.lock();
        let block_len = crate::pool::class::block_len(len as u64).unwrap();
        let class = state.class(block_len);
        state.classes[class].tuning = crate::pool::tuning::Tuning::at_large();
    }

    /// Takes in how long writing a block took.
    #[cold]
    pub(super) fn note(&self, written: Option<Written>) {
        self.lock().note(written);
    }

    /// Opens an account with `slots` loans at most.
    pub(crate) fn open(&self, borrower: Arc<dyn Borrower>, slots: u32) -> BorrowerId {
        let mut state = self.lock();
        let number = state.next_borrower;
        state.next_borrower += 1;
        let place = state.accounts.iter().position(Option::is_none).unwrap_or_else(|| {
            state.accounts.push(None);
            state.accounts.len() - 1
        });
        state.accounts[place] = Some(Account::new(number, borrower, slots));
        BorrowerId { place, number }
    }

    /// Closes an account: the borrower is gone, its loans are over.
    pub(crate) fn close(&self, id: BorrowerId) {
        let mut state = self.lock();
        if state.account(id).is_none() {
            return;
        }
        let Some(account) = state.accounts[id.place].take() else { return };
        account.ready.take().into_iter().for_each(|lent| state.put_back(lent));
        let borrower = account.borrower();
        for lent in account.close() {
            state.put_back(lent);
        }
        drop(state);
        // The borrower may hold what needs the lock to drop.
        drop(borrower);
    }

    /// A block of `len` bytes for a borrower that has a slot for it, which stays free until it is
    /// [promised](Self::promise) or [lent](Self::lend) if nobody else lends to this borrower.
    ///
    /// # Errors
    ///
    /// The outer error is the kernel's, the inner one says what is lacking now.
    pub(crate) fn alloc_for(&self, len: usize, id: BorrowerId) -> Result<Result<Block, Lacking>> {
        let mut state = self.lock();
        if state.account(id).is_some_and(|account| !account.has_room()) {
            state.reclaim(id);
        }
        // A closed account has no slot either: its link is over, which its user finds out.
        if !state.account(id).is_some_and(|account| account.has_room()) {
            return Ok(Err(Lacking::Slot));
        }
        Ok(self.alloc_locked(state, len)?.map_err(Lacking::Memory))
    }

    /// A block of `len` bytes, for whomever.
    ///
    /// # Errors
    ///
    /// The outer error is the kernel's, the inner one says that the quota is spent.
    pub(crate) fn alloc(&self, len: usize) -> Result<Result<Block, Exhausted>> {
        self.alloc_locked(self.lock(), len)
    }

    fn alloc_locked<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        len: usize,
    ) -> Result<Result<Block, Exhausted>> {
        loop {
            match state.take(len as u64) {
                Taken::Block { lent, timed } => {
                    unlock(state);
                    let timing = timed.map(Timing::start);
                    return Ok(Ok(Block::new(lent, len, self.clone(), timing)));
                }
                Taken::Nothing(exhausted) => {
                    unlock(state);
                    return Ok(Err(exhausted));
                }
                Taken::Growth(growth) => {
                    // The kernel may take long to clear the memory; others go on meanwhile.
                    unlock(state);
                    let made = growth.make();
                    state = self.lock();
                    state.enter(growth, made)?;
                }
            }
        }
    }

    /// Lends a block. `None`: the borrower's slots are all in use, or its account is closed; the
    /// block is as it was.
    pub(crate) fn lend(&self, block: &mut Block, id: BorrowerId) -> Option<Loan> {
        let written = block.written();
        let mut state = self.lock();
        state.note(written);
        let place = block.place()?;
        let account = state.account(id)?;
        let promise = account.promise()?;
        let loan = promise.loan(place);
        account.enter(promise, Loaned::Sole(block.take()?));
        Some(loan)
    }

    /// Lends a block that others may hold, too. `None` as for [`lend`](Self::lend).
    pub(crate) fn lend_shared(&self, block: &SharedBlock, id: BorrowerId) -> Option<Loan> {
        let mut state = self.lock();
        let account = state.account(id)?;
        let promise = account.promise()?;
        let loan = promise.loan(block.place());
        account.enter(promise, Loaned::Shared(block.shared().clone()));
        Some(loan)
    }

    /// A slot for the next loan to a borrower, which may be told of it before it is
    /// [entered](Self::enter). `None` as for [`lend`](Self::lend).
    pub(crate) fn promise(&self, id: BorrowerId) -> Option<Promise> {
        self.lock().promise(id)
    }

    /// Enters a loan that was promised, and promises the next one. Where the account was closed
    /// meanwhile, the borrower is gone, and the block back.
    #[inline]
    pub(crate) fn enter(
        &self,
        block: &mut Block,
        id: BorrowerId,
        promise: Promise,
    ) -> Option<Promise> {
        let written = block.written();
        let mut state = self.lock();
        state.note(written);
        let account = state.account(id)?;
        account.enter(promise, Loaned::Sole(block.take()?));
        state.promise(id)
    }

    /// As [`enter`](Self::enter), and lays a block like this one [ready](Self::ready) if one is at hand and a loan
    /// was promised.
    pub(crate) fn enter_and_prepare(
        &self,
        block: &mut Block,
        id: BorrowerId,
        promise: Promise,
    ) -> (Option<Promise>, Option<Prepared>) {
        let (written, len) = (block.written(), block.len() as u64);
        let mut state = self.lock();
        state.note(written);
        let Some(account) = state.account(id) else { return (None, None) };
        let Some(lent) = block.take() else { return (None, None) };
        let class = lent.home.class;
        account.enter(promise, Loaned::Sole(lent));
        let promise = state.promise(id);
        let prepared = promise.as_ref().and_then(|_| state.prepare(id, class, len));
        (promise, prepared)
    }

    /// A block that is yet to be had.
    pub(crate) fn no_block(&self) -> Block {
        Block::spent(self.clone())
    }

    /// Where the block of the next loan to a borrower is laid.
    pub(crate) fn ready(&self, id: BorrowerId) -> Option<Ready> {
        Some(self.lock().account(id)?.ready.clone())
    }

    /// As [`enter`](Self::enter), of a block that others may hold, too.
    #[inline]
    pub(crate) fn enter_shared(
        &self,
        block: &SharedBlock,
        id: BorrowerId,
        promise: Promise,
    ) -> Option<Promise> {
        let mut state = self.lock();
        let account = state.account(id)?;
        account.enter(promise, Loaned::Shared(block.shared().clone()));
        state.promise(id)
    }

    /// The promised loan will not be.
    pub(crate) fn renounce(&self, id: BorrowerId, promise: Promise) {
        if let Some(account) = self.lock().account(id) {
            account.renounce(promise);
        }
    }

    /// Whether a borrower has `slots` slots free, after what it has returned was taken back.
    pub(crate) fn has_slots(&self, id: BorrowerId, slots: usize) -> bool {
        let mut state = self.lock();
        if state.account(id).is_some_and(|account| account.room() < slots) {
            state.reclaim(id);
        }
        state.account(id).is_some_and(|account| account.room() >= slots)
    }

    /// A copy of the descriptor of a segment, to hand to a borrower, and its length in bytes,
    /// and whether it is frozen.
    pub(crate) fn segment_of(&self, segment: u32) -> Result<Option<(OwnedFd, u64, bool)>> {
        let state = self.lock();
        let copy = |fd: BorrowedFd<'_>| {
            let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3);
            copy.map_err(|errno| Error::os("F_DUPFD_CLOEXEC", errno))
        };
        if let Some(frozen) = state.frozen.get(&segment).and_then(Weak::upgrade) {
            // It may be the last use of it, whose end needs the lock.
            drop(state);
            let memory = frozen.memory();
            return Ok(Some((copy(memory.fd())?, memory.len() as u64, true)));
        }
        let held = state.segments.iter().flatten().find(|held| held.number == segment);
        let Some(held) = held else { return Ok(None) };
        Ok(Some((copy(held.segment.fd())?, held.segment.len() as u64, false)))
    }

    /// The segments of which a borrower holds blocks that it has not returned.
    pub(crate) fn lent_to(&self, id: BorrowerId) -> HashSet<u32> {
        let mut state = self.lock();
        state.reclaim(id);
        state.account(id).into_iter().flat_map(|account| account.segments()).collect()
    }

    /// Whether a segment still exists.
    pub(crate) fn holds(&self, segment: u32) -> bool {
        let state = self.lock();
        let is_frozen = state.frozen.get(&segment).is_some_and(|frozen| frozen.strong_count() > 0);
        is_frozen || state.segments.iter().flatten().any(|held| held.number == segment)
    }

    /// A number for frozen memory.
    pub(super) fn name_frozen(&self, frozen: &Arc<FrozenBlock>) -> Result<u32> {
        let mut state = self.lock();
        state.frozen.retain(|_, frozen| frozen.strong_count() > 0);
        let number = state.next_number()?;
        state.frozen.insert(number, Arc::downgrade(frozen));
        Ok(number)
    }

    /// Counts `len` bytes for the quota.
    pub(super) fn charge(&self, len: u64) -> Result<Charge, Exhausted> {
        let mut state = self.lock();
        if !state.may_grow(len) {
            state.reclaim_all();
            state.drop_idle();
        }
        let fits = state.may_grow(len);
        if fits {
            state.used += len;
        }
        unlock(state);
        if fits { Ok(Charge::new(self.downgrade(), len)) } else { Err(self.exhausted(len)) }
    }

    /// What to say when `needed` bytes cannot be had.
    pub(super) fn exhausted(&self, needed: u64) -> Exhausted {
        let state = self.lock();
        Exhausted { needed, used: state.used, quota: state.options.quota }
    }

    /// Takes back what this borrower has returned. Gives the oldest loan that is left, to be looked
    /// at without the lock.
    pub(crate) fn oldest_loan(&self, id: BorrowerId) -> Option<OpenLoan> {
        let mut state = self.lock();
        state.reclaim(id);
        state.account(id)?.oldest()
    }

    /// As [`oldest_loan`](Self::oldest_loan), of those as long as one for `len` bytes, and but so many as `which`
    /// says: it is told how many such loans there are, and how many there may be before the borrower is waited for.
    pub(crate) fn loan_ahead(
        &self,
        id: BorrowerId,
        len: usize,
        which: impl FnOnce(usize, usize) -> Option<usize>,
    ) -> Option<OpenLoan> {
        let mut state = self.lock();
        state.reclaim(id);
        let (most, class) = state.ahead(len as u64)?;
        let account = state.account(id)?;
        let skipped = which(account.loans_of(class).count(), most)?;
        account.open(account.loans_of(class).nth(skipped)?)
    }

    /// Takes back what this borrower has returned. Gives the number of blocks still on loan.
    pub(crate) fn settle(&self, id: BorrowerId) -> usize {
        let mut state = self.lock();
        state.reclaim(id);
        state.account(id).map_or(0, |account| account.outstanding())
    }

    /// Whether it is the same one.
    pub(crate) fn is(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Takes back what this borrower has returned.
    pub(crate) fn look_at(&self, id: BorrowerId) {
        self.lock().reclaim(id);
    }

    /// Drops every segment of which no block is in use. Gives the bytes that were dropped.
    pub(crate) fn trim(&self) -> u64 {
        let mut state = self.lock();
        state.reclaim_all();
        let before = state.used;
        state.drop_idle();
        let trimmed = before - state.used;
        unlock(state);
        trimmed
    }

    /// Bytes of all segments together.
    pub(crate) fn used(&self) -> u64 {
        self.lock().used
    }
}

/// Gives up the lock, and then what was dropped under it.
fn unlock(mut state: MutexGuard<'_, State>) {
    let dropped = std::mem::take(&mut state.dropped);
    drop(state);
    drop(dropped);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::pool::Users;
    use crate::pool::support::{lend, other, pool};

    /// Says that it holds nothing, whatever it has returned.
    struct Released;

    impl Borrower for Released {
        fn returned(&self, _slot: u32) -> u64 {
            u64::MAX
        }

        fn holds_nothing(&self) -> bool {
            true
        }
    }

    #[test]
    fn what_a_lost_borrower_held_is_told_from_what_it_never_took() {
        let (pool, peer, returns) = pool(1 << 20);
        let (breaks, released) = (other(&pool), pool.open(Arc::new(Released), 1));
        for (id, then) in
            [(returns, Users::Nobody), (breaks, Users::Lost), (released, Users::Nobody)]
        {
            let mut block = pool.alloc(64).unwrap().unwrap().share().unwrap();
            let loan = pool.lend_shared(&block, id).unwrap();
            assert_eq!(block.users(), Users::Others);
            if id == returns {
                peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
            }
            pool.close(id);
            assert_eq!(block.users(), then);
        }
    }

    #[test]
    fn a_closed_account_lends_nothing_even_if_its_place_is_taken() {
        let (pool, _peer, id) = pool(1 << 20);
        pool.close(id);
        let next = other(&pool);
        assert_eq!(pool.alloc_for(4096, id).unwrap().unwrap_err(), Lacking::Slot);
        assert!(pool.alloc_for(4096, next).unwrap().is_ok());
        pool.close(id);
        assert!(pool.alloc_for(4096, next).unwrap().is_ok());
    }

    #[test]
    fn far_peers_are_walked_through_a_larger_footprint() {
        let (pool, peer, id) = pool(64 << 20);
        pool.walk_large(256 << 10);
        let walk = |rounds: usize| {
            let mut seen = std::collections::HashSet::new();
            for _ in 0..rounds {
                let loan = lend(&pool, id, 256 << 10);
                seen.insert((loan.segment, loan.offset));
                peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
            }
            seen.len()
        };
        assert_eq!(walk(40), 4);
        (0..100).for_each(|_| pool.note_distance(Duration::from_nanos(900)));
        assert_eq!(walk(40), 16);
        (0..100).for_each(|_| pool.note_distance(Duration::from_nanos(60)));
        walk(16);
        assert_eq!(walk(40), 4);
    }

    #[test]
    fn a_block_comes_back_by_its_generation_only() {
        let (pool, peer, id) = pool(1 << 20);
        let loan = lend(&pool, id, 1 << 20);
        assert!(pool.alloc_for(1 << 20, id).unwrap().is_err(), "the quota is one block");
        for lie in [0, loan.generation + 1, u64::MAX] {
            peer.0[loan.slot as usize].store(lie, Ordering::Relaxed);
            assert!(
                pool.alloc_for(1 << 20, id).unwrap().is_err(),
                "generation {lie} is not the loan's"
            );
        }
        peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
        let again = lend(&pool, id, 1 << 20);
        assert_ne!(again.generation, loan.generation);
        // The old generation, still in its slot, returns nothing again.
        assert!(pool.alloc_for(1 << 20, id).unwrap().is_err());
    }

    #[test]
    fn a_closed_account_gives_everything_back() {
        let (pool, _peer, id) = pool(1 << 20);
        lend(&pool, id, 1 << 20);
        pool.close(id);
        assert!(pool.alloc_for(1 << 20, other(&pool)).unwrap().is_ok());
    }

    #[test]
    fn slots_run_out_with_an_answer() {
        let (pool, peer, id) = pool(64 << 20);
        let loans: Vec<Loan> = (0..8).map(|_| lend(&pool, id, 4096)).collect();
        assert_eq!(pool.alloc_for(4096, id).unwrap().unwrap_err(), Lacking::Slot);
        peer.0[loans[3].slot as usize].store(loans[3].generation, Ordering::Relaxed);
        assert_eq!(lend(&pool, id, 4096).slot, loans[3].slot);
    }

    #[test]
    fn blocks_are_walked_through_in_turn_within_the_footprint() {
        let (pool, peer, id) = pool(64 << 20);
        pool.walk_large(256 << 10);
        let mut seen = Vec::new();
        for _ in 0..12 {
            let loan = lend(&pool, id, 256 << 10);
            seen.push((loan.segment, loan.offset));
            peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
        }
        // Footprint 1 MiB, blocks of 256 KiB: four places, each the one unused for longest.
        assert_eq!(seen[..4], seen[4..8]);
        assert_eq!(seen[..4], seen[8..]);
        let mut places = seen[..4].to_vec();
        places.dedup();
        assert_eq!(places.len(), 4);
    }

    #[test]
    fn idle_segments_make_room_for_another_class() {
        let (pool, _peer, id) = pool(4 << 20);
        drop(pool.alloc_for(3 << 20, id).unwrap().unwrap());
        lend(&pool, id, 1 << 20);
        assert_eq!(pool.used(), 4 << 20);
        let second = pool.alloc_for(2 << 20, id).unwrap();
        assert!(second.is_ok(), "the idle 3 MiB are dropped for it");
        assert_eq!(pool.used(), 3 << 20);
    }

    #[test]
    fn a_class_is_walked_through_after_segments_of_it_were_dropped() {
        let (pool, peer, id) = pool(64 << 20);
        pool.walk_large(256 << 10);
        let give_back =
            |loan: &Loan| peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
        // More than the footprint, in segments of which only the last stays.
        let loans: Vec<Loan> = (0..8).map(|_| lend(&pool, id, 256 << 10)).collect();
        loans[..7].iter().for_each(give_back);
        pool.trim();
        give_back(&loans[7]);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..12 {
            let loan = lend(&pool, id, 256 << 10);
            seen.insert((loan.segment, loan.offset));
            give_back(&loan);
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn a_block_that_was_not_lent_is_handed_out_first() {
        let (pool, _peer, id) = pool(64 << 20);
        let home = |block: &Block| block.place().unwrap();
        let first = pool.alloc_for(256 << 10, id).unwrap().unwrap();
        let place = home(&first);
        drop(first);
        assert_eq!(home(&pool.alloc_for(256 << 10, id).unwrap().unwrap()), place);
    }

    #[test]
    fn a_dropped_block_is_free_again() {
        let (pool, _peer, id) = pool(1 << 20);
        for _ in 0..10 {
            let mut block = pool.alloc_for(1 << 20, id).unwrap().unwrap();
            block.bytes_mut().fill(7);
            assert_eq!(block.bytes()[99], 7);
        }
        assert_eq!(pool.trim(), 1 << 20);
    }
}
