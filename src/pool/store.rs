//! The pool: segments, free blocks, and who holds the others.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind, Result};
use crate::pool::class;
use crate::pool::loans::{Account, Borrower, BorrowerId, Lent, Loan};
use crate::shm::{Backing, Segment};

/// How much a pool may hold, and how it walks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolOptions {
    /// Bytes of all segments together, at most.
    pub(crate) quota: u64,
    /// Bytes of a class to walk through in turn.
    pub(crate) footprint: u64,
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

/// Which block of which segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHome {
    segment: u32,
    /// Start in the segment, in bytes.
    offset: u64,
    /// Length of the class's blocks in bytes.
    block_len: u64,
    /// How many blocks the class had before this one: the low ones are walked through.
    rank: u64,
}

/// Blocks of a process, lent to its peers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool {
    state: Arc<Mutex<State>>,
}

struct State {
    options: PoolOptions,
    segments: HashMap<u32, Held>,
    next_segment: u32,
    classes: BTreeMap<u64, Class>,
    accounts: HashMap<BorrowerId, Account>,
    next_borrower: u64,
    /// Bytes of all segments together.
    used: u64,
}

struct Held {
    segment: Segment,
    block_len: u64,
    blocks: u64,
    /// Blocks in the class's free lists.
    free: u64,
}

#[derive(Default)]
struct Class {
    /// Free blocks of low rank, unused for longest first.
    walked: VecDeque<Lent>,
    /// Free blocks beyond the footprint.
    spare: Vec<Lent>,
    /// Blocks, free or not.
    blocks: u64,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("used", &self.used()).finish_non_exhaustive()
    }
}

/// A block that only this process knows of. Dropped, it goes back to the pool.
#[derive(Debug)]
pub(crate) struct Block {
    /// `None` once the block was lent.
    held: Option<Lent>,
    len: usize,
    pool: Pool,
}

impl Pool {
    pub(crate) fn new(options: PoolOptions) -> Self {
        let state = State {
            options,
            segments: HashMap::new(),
            next_segment: 0,
            classes: BTreeMap::new(),
            accounts: HashMap::new(),
            next_borrower: 0,
            used: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock but a bug of ours, and every step leaves the tables whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an account with `slots` loans at most.
    pub(crate) fn open(&self, borrower: Arc<dyn Borrower>, slots: u32) -> BorrowerId {
        let mut state = self.lock();
        let id = BorrowerId(state.next_borrower);
        state.next_borrower += 1;
        state.accounts.insert(id, Account::new(borrower, slots));
        id
    }

    /// Closes an account: the borrower is gone, its loans are over.
    pub(crate) fn close(&self, id: BorrowerId) {
        let closed = {
            let mut state = self.lock();
            let account = state.accounts.remove(&id);
            account.map(|account| {
                let borrower = account.borrower();
                for lent in account.close() {
                    state.put_back(lent);
                }
                borrower
            })
        };
        // The borrower may hold what needs the lock to drop.
        drop(closed);
    }

    /// A block of `len` bytes.
    ///
    /// # Errors
    ///
    /// The outer error is the kernel's, the inner one says that the quota is spent now.
    pub(crate) fn alloc(&self, len: usize) -> Result<Result<Block, Exhausted>> {
        let mut state = self.lock();
        let taken = state.take(len as u64)?;
        drop(state);
        Ok(taken.map(|held| Block { held: Some(held), len, pool: self.clone() }))
    }

    /// Whether the borrower has a slot for one more loan.
    pub(crate) fn can_lend(&self, id: BorrowerId) -> bool {
        let mut state = self.lock();
        if state.accounts.get(&id).is_some_and(|account| !account.has_room()) {
            state.reclaim(id);
        }
        state.accounts.get(&id).is_some_and(Account::has_room)
    }

    /// Lends a block. `None`: the borrower's slots are all in use, or its account is closed; the
    /// block is as it was.
    pub(crate) fn lend(&self, block: &mut Block, id: BorrowerId) -> Option<Loan> {
        let mut state = self.lock();
        let home = block.held.as_ref()?.home;
        if !state.accounts.get(&id)?.has_room() {
            state.reclaim(id);
        }
        let account = state.accounts.get_mut(&id)?;
        if !account.has_room() {
            return None;
        }
        let (slot, generation) = account.lend(block.held.take()?)?;
        Some(Loan { segment: home.segment, slot, offset: home.offset, generation })
    }

    /// A copy of a segment's descriptor, to hand to a borrower, and the segment's length in bytes.
    pub(crate) fn segment(&self, segment: u32) -> Result<Option<(OwnedFd, u64)>> {
        let state = self.lock();
        let Some(held) = state.segments.get(&segment) else { return Ok(None) };
        let fd = rustix::io::fcntl_dupfd_cloexec(held.segment.fd(), 3)
            .map_err(|errno| Error::os("F_DUPFD_CLOEXEC", errno))?;
        Ok(Some((fd, held.segment.len() as u64)))
    }

    /// Whether a segment still exists.
    pub(crate) fn holds(&self, segment: u32) -> bool {
        self.lock().segments.contains_key(&segment)
    }

    /// Takes back what this borrower has returned. Gives the number of blocks still on loan.
    pub(crate) fn settle(&self, id: BorrowerId) -> usize {
        let mut state = self.lock();
        state.reclaim(id);
        state.accounts.get(&id).map_or(0, Account::outstanding)
    }

    /// Drops every segment of which no block is in use. Gives the bytes that were dropped.
    pub(crate) fn trim(&self) -> u64 {
        let mut state = self.lock();
        state.reclaim_all();
        let before = state.used;
        state.drop_idle();
        before - state.used
    }

    /// Bytes of all segments together.
    pub(crate) fn used(&self) -> u64 {
        self.lock().used
    }
}

impl State {
    fn take(&mut self, len: u64) -> Result<Result<Lent, Exhausted>> {
        let quota = self.options.quota;
        let Some(block_len) = class::block_len(len).filter(|needed| *needed <= quota) else {
            return Ok(Err(Exhausted { needed: len, used: self.used, quota }));
        };
        let walk = class::walk(block_len, self.options.footprint);
        let class = self.classes.entry(block_len).or_default();
        let lent = class.walked.pop_front();
        // Up to the footprint a new block is better than one just read by the peer.
        if lent.is_none() && (class.blocks >= walk || !self.may_grow(block_len)) {
            self.reclaim_all();
        }
        let class = self.classes.entry(block_len).or_default();
        let lent = lent.or_else(|| class.walked.pop_front()).or_else(|| class.spare.pop());
        let lent = match lent {
            Some(lent) => lent,
            None => {
                if !self.may_grow(block_len) {
                    self.drop_idle();
                }
                if !self.may_grow(block_len) {
                    return Ok(Err(Exhausted { needed: block_len, used: self.used, quota }));
                }
                self.grow(block_len)?;
                let class = self.classes.entry(block_len).or_default();
                match class.walked.pop_front().or_else(|| class.spare.pop()) {
                    Some(lent) => lent,
                    None => {
                        return Ok(Err(Exhausted { needed: block_len, used: self.used, quota }));
                    }
                }
            }
        };
        if let Some(held) = self.segments.get_mut(&lent.home.segment) {
            held.free -= 1;
        }
        Ok(Ok(lent))
    }

    fn may_grow(&self, block_len: u64) -> bool {
        block_len <= self.options.quota.saturating_sub(self.used)
    }

    fn grow(&mut self, block_len: u64) -> Result<()> {
        let room = self.options.quota.saturating_sub(self.used) / block_len;
        let blocks = class::blocks_a_segment(block_len).min(room);
        let page = crate::shm::page_size() as u64;
        let len = (blocks * block_len).next_multiple_of(page);
        let segment = Segment::create(len as usize, len as usize, self.options.backing)?;
        let id = self.next_segment;
        self.next_segment += 1;
        self.used += len;
        let class = self.classes.entry(block_len).or_default();
        let areas = segment.split(block_len as usize, blocks as usize);
        let walk = class::walk(block_len, self.options.footprint);
        for (index, area) in areas.into_iter().enumerate() {
            let rank = class.blocks;
            class.blocks += 1;
            let home = BlockHome { segment: id, offset: index as u64 * block_len, block_len, rank };
            class.insert(Lent { home, area }, walk);
        }
        self.segments.insert(id, Held { segment, block_len, blocks, free: blocks });
        Ok(())
    }

    fn put_back(&mut self, lent: Lent) {
        let walk = class::walk(lent.home.block_len, self.options.footprint);
        if let Some(held) = self.segments.get_mut(&lent.home.segment) {
            held.free += 1;
        }
        self.classes.entry(lent.home.block_len).or_default().insert(lent, walk);
    }

    fn reclaim(&mut self, id: BorrowerId) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        let mut back = Vec::new();
        account.reclaim(|lent| back.push(lent));
        for lent in back {
            self.put_back(lent);
        }
    }

    fn reclaim_all(&mut self) {
        let mut back = Vec::new();
        for account in self.accounts.values_mut() {
            account.reclaim(|lent| back.push(lent));
        }
        for lent in back {
            self.put_back(lent);
        }
    }

    /// Drops every segment of which no block is in use.
    fn drop_idle(&mut self) {
        let idle: Vec<u32> = self
            .segments
            .iter()
            .filter(|(_, held)| held.free == held.blocks)
            .map(|(id, _)| *id)
            .collect();
        for id in idle {
            let Some(held) = self.segments.remove(&id) else { continue };
            self.used -= held.segment.len() as u64;
            if let Some(class) = self.classes.get_mut(&held.block_len) {
                class.walked.retain(|lent| lent.home.segment != id);
                class.spare.retain(|lent| lent.home.segment != id);
                class.blocks -= held.blocks;
                class.renumber();
            }
        }
    }
}

impl Class {
    fn insert(&mut self, lent: Lent, walk: u64) {
        if lent.home.rank < walk {
            self.walked.push_back(lent);
        } else {
            self.spare.push(lent);
        }
    }

    /// Closes the gaps that dropped segments left in the ranks of the free blocks.
    fn renumber(&mut self) {
        for (rank, lent) in self.walked.iter_mut().chain(&mut self.spare).enumerate() {
            lent.home.rank = rank as u64;
        }
    }
}

impl Block {
    /// The number of the block's segment.
    pub(crate) fn segment(&self) -> u32 {
        self.held.as_ref().map_or(u32::MAX, |lent| lent.home.segment)
    }

    /// The bytes that were asked for.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        match &mut self.held {
            Some(lent) => lent.area.bytes_mut(0, len),
            None => &mut [],
        }
    }

    /// The bytes that were asked for, to read back.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.held {
            Some(lent) => lent.area.bytes(0, self.len),
            None => &[],
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(lent) = self.held.take() {
            // A forked child holds only a copy of the tables and must not wait for their lock.
            if lent.area.generation().is_current() {
                self.pool.lock().put_back(lent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Peer(Vec<AtomicU64>);

    impl Borrower for Peer {
        fn returned(&self, slot: u32) -> u64 {
            self.0[slot as usize].load(Ordering::Relaxed)
        }
    }

    fn pool(quota: u64) -> (Pool, Arc<Peer>, BorrowerId) {
        let options = PoolOptions { quota, footprint: 1 << 20, backing: Backing::default() };
        let pool = Pool::new(options);
        let peer = Arc::new(Peer((0..8).map(|_| AtomicU64::new(0)).collect()));
        let id = pool.open(peer.clone(), 8);
        (pool, peer, id)
    }

    fn lend(pool: &Pool, id: BorrowerId, len: usize) -> Loan {
        let mut block = pool.alloc(len).unwrap().unwrap();
        pool.lend(&mut block, id).unwrap()
    }

    #[test]
    fn a_block_comes_back_by_its_generation_only() {
        let (pool, peer, id) = pool(1 << 20);
        let loan = lend(&pool, id, 1 << 20);
        assert!(pool.alloc(1 << 20).unwrap().is_err(), "the quota is one block");
        for lie in [0, loan.generation + 1, u64::MAX] {
            peer.0[loan.slot as usize].store(lie, Ordering::Relaxed);
            assert!(pool.alloc(1 << 20).unwrap().is_err(), "generation {lie} is not the loan's");
        }
        peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
        let again = lend(&pool, id, 1 << 20);
        assert_ne!(again.generation, loan.generation);
        // The old generation, still in its slot, returns nothing again.
        assert!(pool.alloc(1 << 20).unwrap().is_err());
    }

    #[test]
    fn a_closed_account_gives_everything_back() {
        let (pool, _peer, id) = pool(1 << 20);
        lend(&pool, id, 1 << 20);
        pool.close(id);
        assert!(pool.alloc(1 << 20).unwrap().is_ok());
    }

    #[test]
    fn slots_run_out_with_an_answer() {
        let (pool, peer, id) = pool(64 << 20);
        let loans: Vec<Loan> = (0..8).map(|_| lend(&pool, id, 4096)).collect();
        let mut block = pool.alloc(4096).unwrap().unwrap();
        assert!(pool.lend(&mut block, id).is_none());
        block.bytes_mut()[0] = 1;
        peer.0[loans[3].slot as usize].store(loans[3].generation, Ordering::Relaxed);
        assert_eq!(pool.lend(&mut block, id).unwrap().slot, loans[3].slot);
    }

    #[test]
    fn blocks_are_walked_through_in_turn_within_the_footprint() {
        let (pool, peer, id) = pool(64 << 20);
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
        drop(pool.alloc(3 << 20).unwrap().unwrap());
        lend(&pool, id, 1 << 20);
        assert_eq!(pool.used(), 4 << 20);
        let second = pool.alloc(2 << 20).unwrap();
        assert!(second.is_ok(), "the idle 3 MiB are dropped for it");
        assert_eq!(pool.used(), 3 << 20);
    }

    #[test]
    fn a_dropped_block_is_free_again() {
        let (pool, _peer, _id) = pool(1 << 20);
        for _ in 0..10 {
            let mut block = pool.alloc(1 << 20).unwrap().unwrap();
            block.bytes_mut().fill(7);
            assert_eq!(block.bytes()[99], 7);
        }
        assert_eq!(pool.trim(), 1 << 20);
    }
}
