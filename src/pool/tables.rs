//! The pool's tables behind their lock: segments, classes of free blocks, and the accounts of borrowers.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::pool::class::{self, Class};
use crate::pool::distance::Distance;
use crate::pool::holders::{Holders, free_index};
use crate::pool::limits::{Exhausted, LoanLimit, PoolOptions};
use crate::pool::loans::{Account, Borrower, BorrowerId, Holding, Loan, Loaned, OpenLoan, Promise};
use crate::pool::piece::{BlockHome, BoxedPiece, Owner, Piece};
use crate::pool::ready::{Loose, Prepared, Ready};
use crate::shm::{Backing, Frozen, Segment};
use crate::status::{Facts, Kind, Line, Row, layout};
use crate::sync::{Edge, Mutex, MutexGuard};

/// The tables behind their lock. A clone is the same tables.
#[derive(Clone)]
pub(super) struct LockedTables {
    tables: Arc<Mutex<Tables>>,
}

impl LockedTables {
    pub(super) fn new(options: PoolOptions, context: u64) -> Self {
        Self { tables: Arc::new(Mutex::new(Tables::new(options, context))) }
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Tables> {
        // Only a bug of this crate panics under the lock, and each step leaves the tables whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn downgrade(&self) -> WeakTables {
        WeakTables { tables: Arc::downgrade(&self.tables) }
    }

    /// Returns the tables as what their blocks belong to.
    pub(super) fn owner(&self) -> Weak<dyn Owner> {
        Arc::<Mutex<Tables>>::downgrade(&self.tables)
    }

    /// Returns whether a block belongs to these tables.
    #[inline(always)]
    pub(super) fn owns(&self, piece: &Piece) -> bool {
        std::ptr::addr_eq(piece.owner().as_ptr(), Arc::as_ptr(&self.tables))
    }

    /// Returns whether both are the same tables.
    #[inline]
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables)
    }
}

impl Owner for Mutex<Tables> {
    fn put_back(&self, piece: BoxedPiece, is_unused: bool) {
        let mut tables = self.lock().unwrap_or_else(PoisonError::into_inner);
        if is_unused { tables.put_back_unused(piece) } else { tables.put_back(piece) }
    }
}

impl std::fmt::Debug for LockedTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockedTables")
    }
}

/// The tables of a pool that may be gone, and its blocks with it.
#[derive(Clone)]
pub(super) struct WeakTables {
    tables: Weak<Mutex<Tables>>,
}

impl WeakTables {
    #[inline]
    pub(super) fn is(&self, tables: &LockedTables) -> bool {
        std::ptr::eq(self.tables.as_ptr(), Arc::as_ptr(&tables.tables))
    }

    fn upgrade(&self) -> Option<LockedTables> {
        Some(LockedTables { tables: self.tables.upgrade()? })
    }

    /// Subtracts bytes that counted for the quota.
    pub(super) fn discharge(&self, len: u64) {
        if let Some(tables) = self.upgrade() {
            tables.lock().discharge(len);
        }
    }
}

impl std::fmt::Debug for WeakTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakTables")
    }
}

/// The pool's answer to a request for a block.
pub(super) enum Taken {
    Block(BoxedPiece),
    /// The caller makes this segment, enters it, and asks again.
    Growth(Growth),
    Nothing(Exhausted),
}

/// A segment to be made.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    class: usize,
    block_len: u64,
    blocks: u64,
    /// Bytes of the segment.
    len: u64,
    backing: Backing,
}

impl Growth {
    /// Makes the segment. The kernel clears its memory, which takes long: the caller does not hold the lock.
    pub(super) fn make(&self) -> Result<Segment> {
        let bytes = self.len as usize;
        let segment = Segment::create("slipring.pool", (bytes, bytes), self.backing)?;
        tracing::debug!(
            bytes,
            blocks = self.blocks,
            block_bytes = self.block_len,
            "the pool grows"
        );
        Ok(segment)
    }
}

/// A segment of blocks of one class.
struct BlockSegment {
    segment: Segment,
    number: u32,
    class: usize,
    blocks: u64,
    /// Blocks that nobody uses.
    free: u64,
}

/// What can be named by a segment number.
pub(super) enum Named {
    /// A copy of the descriptor of a segment of blocks, and its length in bytes.
    Blocks(OwnedFd, u64),
    Frozen(Arc<Frozen>),
}

pub(super) struct Tables {
    options: PoolOptions,
    distance: Distance,
    segments: Vec<Option<BlockSegment>>,
    /// Number of the next segment.
    next_segment: u32,
    /// Frozen memory that has a number.
    frozen: BTreeMap<u32, Weak<Frozen>>,
    classes: Vec<Class>,
    accounts: Vec<Option<Account>>,
    holders: Holders,
    /// The block of the next tensor.
    loose: Loose,
    next_borrower: u64,
    /// Bytes that count for the quota.
    used: u64,
    /// Bytes of the blocks that are in use.
    out: u64,
    /// Blocks that are being taken back. It is empty between two calls and keeps its capacity.
    coming: Vec<BoxedPiece>,
    /// Segments that were dropped. The caller unmaps them without the lock.
    dropped: Vec<Segment>,
    /// The number of the context in the status page, and the pool's line there. The first borrower makes it.
    context: u64,
    line: Option<Line>,
}

impl Tables {
    fn new(options: PoolOptions, context: u64) -> Self {
        Self {
            options,
            context,
            line: None,
            distance: Distance::default(),
            segments: Vec::new(),
            next_segment: 0,
            frozen: BTreeMap::new(),
            classes: Vec::new(),
            accounts: Vec::new(),
            holders: Holders::default(),
            loose: Loose::default(),
            next_borrower: 0,
            used: 0,
            out: 0,
            coming: Vec::new(),
            dropped: Vec::new(),
        }
    }

    // Accounts.

    /// Opens an account with at most `slots` loans.
    pub(super) fn open(&mut self, borrower: Arc<dyn Borrower>, slots: u32) -> BorrowerId {
        self.open_row();
        let number = self.next_borrower;
        self.next_borrower += 1;
        let index = free_index(&mut self.accounts);
        let holder = self.holders.join(borrower.holder());
        let account = Account::new(number, (borrower, holder), slots, self.options.loans);
        self.accounts[index] = Some(account);
        BorrowerId::new(index, number)
    }

    /// Closes an account: its loans are over. Returns the borrower, which the caller drops without the lock.
    pub(super) fn close(&mut self, id: BorrowerId) -> Option<Arc<dyn Borrower>> {
        self.account(id)?;
        let account = self.accounts[id.index()].take()?;
        account.recall(None).into_iter().for_each(|piece| self.put_back(piece));
        self.holders.subtract(account.holder(), account.bytes());
        self.holders.leave(account.holder());
        let borrower = account.borrower();
        for piece in account.close() {
            self.put_back(piece);
        }
        Some(borrower)
    }

    /// Returns the most bytes of all segments together.
    pub(super) fn quota(&self) -> u64 {
        self.options.quota
    }

    /// Returns how much each borrower may hold.
    pub(super) fn loan_limit(&self) -> LoanLimit {
        self.options.loans
    }

    fn account(&mut self, id: BorrowerId) -> Option<&mut Account> {
        let account = self.accounts.get_mut(id.index())?.as_mut()?;
        (account.number() == id.number()).then_some(account)
    }

    /// Returns whether a borrower may have `blocks` more blocks of `bytes` together, if need be after the pool took back
    /// what it returned.
    pub(super) fn admits(&mut self, id: BorrowerId, blocks: usize, bytes: u64) -> bool {
        if self.has_room_for(id, blocks, bytes) {
            return true;
        }
        self.reclaim(id);
        // Other links of its process may have returned something.
        self.has_room_for(id, blocks, bytes) || {
            self.reclaim_all();
            self.has_room_for(id, blocks, bytes)
        }
    }

    fn has_room_for(&mut self, id: BorrowerId, blocks: usize, bytes: u64) -> bool {
        let Some(account) = self.account(id) else { return false };
        let (room, link_room, holder) = (account.room(), account.byte_room(), account.holder());
        // A process that holds nothing gets one block of any length.
        let byte_room = match self.holders.bytes(holder) {
            0 => u64::MAX,
            _ => link_room.min(self.peer_room(holder)),
        };
        blocks <= room && bytes <= byte_room
    }

    /// Returns how many bytes more a peer process may hold.
    #[inline(always)]
    fn peer_room(&self, holder: usize) -> u64 {
        let PoolOptions { quota, loans, .. } = self.options;
        let share = self.holders.share(holder, (quota, self.out), loans.bytes);
        let share = if loans.is_right { share.max(loans.bytes) } else { share };
        share.saturating_sub(self.holders.bytes(holder))
    }

    /// Returns the longest block that the next promise of an account is for. The promises of all links of a process are
    /// together no more than it may hold.
    #[inline(always)]
    fn promised_room(&self, account: &Account) -> u64 {
        let holder = account.holder();
        match self.holders.links(holder) {
            1 if self.holders.bytes(holder) == 0 => u64::MAX,
            links => account.byte_room().min(self.peer_room(holder) / links),
        }
    }

    /// Returns what each borrower holds that it has not returned.
    pub(super) fn holdings(&mut self) -> Vec<Holding> {
        self.reclaim_all();
        let holdings = self.accounts.iter().flatten().map(Account::holding);
        holdings.filter(|holding| holding.blocks > 0).collect()
    }

    /// Reserves a slot of a borrower, if need be after the pool took back what it returned.
    #[inline(always)]
    pub(super) fn promise(&mut self, id: BorrowerId) -> Option<Promise> {
        if self.account(id)?.room() == 0 {
            self.reclaim(id);
        }
        self.account(id)?;
        let room = self.promised_room(self.accounts[id.index()].as_ref()?);
        self.account(id)?.promise(room)
    }

    pub(super) fn renounce(&mut self, id: BorrowerId, promise: Promise) {
        if let Some(account) = self.account(id) {
            account.renounce(promise);
        }
    }

    /// Lends the block at `place`, unless no slot is free. `loaned` takes it out of its holder.
    #[inline]
    pub(super) fn lend(
        &mut self,
        id: BorrowerId,
        place: (u32, u64),
        loaned: impl FnOnce() -> Option<Loaned>,
    ) -> Option<Loan> {
        let account = self.account(id)?;
        let promise = account.promise(0)?;
        let loan = promise.loan(place);
        self.enter_loan(id, promise, loaned()?);
        Some(loan)
    }

    /// Enters a promised loan and promises the next one. If the account was closed meanwhile, it calls `closed`: the
    /// borrower was told of the loan, and the caller still has the block.
    #[inline]
    pub(super) fn enter(
        &mut self,
        id: BorrowerId,
        promise: Promise,
        loaned: impl FnOnce() -> Option<Loaned>,
        closed: impl FnOnce(),
    ) -> Option<Promise> {
        if self.account(id).is_none() {
            closed();
            return None;
        }
        self.enter_loan(id, promise, loaned()?);
        self.promise(id)
    }

    #[inline(always)]
    fn enter_loan(&mut self, id: BorrowerId, promise: Promise, loaned: Loaned) {
        if let Some(account) = self.accounts[id.index()].as_mut() {
            self.holders.add(account.holder(), loaned.len());
            account.enter(promise, loaned);
        }
    }

    /// Puts a block like the one just lent ready for a borrower's next loan, if one is free.
    pub(super) fn prepare(&mut self, id: BorrowerId, class: usize) -> Option<Prepared> {
        self.account(id)?;
        let block_len = self.classes[class].block_len();
        // The next block has to be made, which takes long.
        if self.wants_segment(class) {
            return None;
        }
        let piece = self.take_for(id, class)?;
        self.count_out(&piece);
        let account = self.account(id)?;
        if let Some(other) = account.put_ready(piece) {
            self.put_back(other);
        }
        Some(Prepared::new(block_len))
    }

    /// Returns where the block of the next tensor is put.
    pub(super) fn loose(&self) -> &Loose {
        &self.loose
    }

    /// Puts a block like the one just lent to a borrower ready for the next tensor, if one is free.
    pub(super) fn prepare_loose(&mut self, id: BorrowerId, class: usize) {
        if self.wants_segment(class) {
            return;
        }
        let Some(piece) = self.take_for(id, class) else { return };
        self.count_out(&piece);
        if let Some(other) = self.loose.put(piece) {
            self.put_back_unused(other);
        }
    }

    /// Takes a free block of a class, if need be one that a borrower has returned: a few of the oldest loans come back, whether
    /// one is needed or not, so that no message waits until all of them have come back at once.
    fn take_for(&mut self, id: BorrowerId, class: usize) -> Option<BoxedPiece> {
        self.reclaim_few(id);
        let mut piece = self.classes[class].take();
        while piece.is_none() && self.reclaim_one(id) {
            piece = self.classes[class].take();
        }
        piece
    }

    pub(super) fn ready(&mut self, id: BorrowerId) -> Option<Ready> {
        Some(self.account(id)?.ready().clone())
    }

    /// Returns the segments of the blocks that a borrower has not returned.
    pub(super) fn lent_to(&mut self, id: BorrowerId) -> HashSet<u32> {
        self.reclaim(id);
        self.account(id).into_iter().flat_map(|account| account.segments()).collect()
    }

    /// Returns the oldest loan that a borrower has not returned.
    pub(super) fn oldest_loan(&mut self, id: BorrowerId) -> Option<OpenLoan> {
        self.reclaim(id);
        self.account(id)?.oldest()
    }

    /// Returns how many loans a borrower has not returned.
    pub(super) fn settle(&mut self, id: BorrowerId) -> usize {
        self.reclaim(id);
        self.account(id).map_or(0, |account| account.outstanding())
    }

    // Blocks.

    /// Takes a free block for `len` bytes, or names the segment that must be made for one.
    pub(super) fn take(&mut self, len: u64) -> Taken {
        let quota = self.options.quota;
        let block_len = class::block_len(len).unwrap_or(u64::MAX);
        if block_len > quota {
            // The caller sees by the block's length that no block will ever come.
            return Taken::Nothing(self.exhausted(block_len));
        }
        let class = self.class(block_len);
        if self.wants_segment(class) {
            return Taken::Growth(self.grow(class));
        }
        let mut piece = self.classes[class].take();
        if piece.is_none() {
            self.reclaim_all();
            piece = self.classes[class].take_any();
        }
        if piece.is_none() {
            self.recall(Some(class));
            piece = self.classes[class].take_any();
        }
        if let Some(piece) = piece {
            self.count_out(&piece);
            return Taken::Block(piece);
        }
        if !self.has_room(block_len) {
            self.drop_idle();
        }
        if self.has_room(block_len) {
            Taken::Growth(self.grow(class))
        } else {
            Taken::Nothing(self.exhausted(block_len))
        }
    }

    /// Returns the bytes of each class that rotate now.
    fn footprint(&self) -> u64 {
        let PoolOptions { footprint, far_footprint, .. } = self.options;
        if self.distance.is_far() { far_footprint.max(footprint) } else { footprint }
    }

    /// Returns how many blocks of this length rotate, of a quarter of the quota.
    pub(super) fn rotation(&self, block_len: u64) -> u64 {
        class::rotation(block_len, self.footprint()).min(self.options.quota / 4 / block_len)
    }

    /// Adds a measurement of how long a line took to come from a peer's core.
    pub(super) fn note_distance(&mut self, took: Duration) {
        if self.distance.note(took) {
            let footprint = self.footprint();
            self.classes.iter_mut().for_each(|class| class.set_footprint(footprint));
        }
    }

    /// Takes back a block that a peer may have read.
    pub(super) fn put_back(&mut self, piece: BoxedPiece) {
        self.count_back(&piece);
        self.classes[piece.home.class].insert(piece);
    }

    /// Takes back a block that was not on loan.
    pub(super) fn put_back_unused(&mut self, piece: BoxedPiece) {
        self.count_back(&piece);
        self.classes[piece.home.class].insert_fresh(piece);
    }

    fn count_out(&mut self, piece: &Piece) {
        // Pairs with `Link::check_loans`: a borrower whose loan was taken back, and that sees what is written next, sees
        // the mark, too. The lock orders the mark with this.
        Edge::Retake.release();
        self.out += piece.area.len() as u64;
        self.show();
        if let Some(segment) = &mut self.segments[piece.home.index] {
            segment.free -= 1;
        }
    }

    fn count_back(&mut self, piece: &Piece) {
        self.out -= piece.area.len() as u64;
        self.show();
        if let Some(segment) = &mut self.segments[piece.home.index] {
            segment.free += 1;
        }
    }

    /// Stores how much memory there is, and how much of it is in use, in the status page.
    #[inline]
    fn show(&self) {
        if let Some(line) = self.line.as_ref().filter(|line| line.is_current()) {
            line.store(layout::LOAN_BYTES, self.out);
            line.store(layout::USED, self.used);
        }
    }

    /// Opens the pool's row in the status page. Without one nothing is shown.
    fn open_row(&mut self) {
        if self.line.is_none() {
            let facts = Facts { context: self.context, ..Facts::of(Kind::Pool) };
            self.line = Row::open(&facts).ok().map(|row| row.line(layout::LOANS));
            if let Some(line) = &self.line {
                line.store(layout::QUOTA, self.options.quota);
            }
        }
    }

    /// Returns the index of the class with blocks of `block_len` bytes.
    fn class(&mut self, block_len: u64) -> usize {
        let known = self.classes.iter().position(|class| class.block_len() == block_len);
        known.unwrap_or_else(|| {
            self.classes.push(Class::new(block_len, self.footprint()));
            self.classes.len() - 1
        })
    }

    /// Returns whether a class should grow although it may have free blocks.
    fn wants_segment(&self, class: usize) -> bool {
        let class = &self.classes[class];
        class.wants_block() && self.has_room(class.block_len())
    }

    /// Takes back what one borrower has returned.
    pub(super) fn reclaim(&mut self, id: BorrowerId) {
        let mut back = std::mem::take(&mut self.coming);
        if let Some(account) = self.account(id) {
            let before = account.bytes();
            account.reclaim(|piece| back.push(piece));
            let (holder, returned) = (account.holder(), before - account.bytes());
            self.holders.subtract(holder, returned);
        }
        self.take_back(back);
    }

    /// Takes back the oldest loan of a borrower if it is returned. Returns whether it did.
    fn reclaim_one(&mut self, id: BorrowerId) -> bool {
        let Some(account) = self.account(id) else { return false };
        let before = account.bytes();
        let Some(piece) = account.reclaim_one() else { return false };
        let (holder, returned) = (account.holder(), before - account.bytes());
        self.holders.subtract(holder, returned);
        piece.into_iter().for_each(|piece| self.put_back(piece));
        true
    }

    /// Takes back a little of what one borrower has returned.
    #[inline]
    pub(super) fn reclaim_few(&mut self, id: BorrowerId) {
        let mut back = std::mem::take(&mut self.coming);
        if let Some(account) = self.account(id) {
            let before = account.bytes();
            account.reclaim_few(|piece| back.push(piece));
            let (holder, returned) = (account.holder(), before - account.bytes());
            self.holders.subtract(holder, returned);
        }
        self.take_back(back);
    }

    /// Takes back what all borrowers have returned.
    pub(super) fn reclaim_all(&mut self) {
        let mut back = std::mem::take(&mut self.coming);
        for account in self.accounts.iter_mut().flatten() {
            let before = account.bytes();
            account.reclaim(|piece| back.push(piece));
            self.holders.subtract(account.holder(), before - account.bytes());
        }
        self.take_back(back);
    }

    /// Takes back the ready blocks of a class; `None` stands for all classes.
    fn recall(&mut self, class: Option<usize>) {
        let mut back = std::mem::take(&mut self.coming);
        back.extend(self.accounts.iter().flatten().filter_map(|account| account.recall(class)));
        // The next tensor may need one of any class: it asks.
        back.extend(self.loose.take_any());
        self.take_back(back);
    }

    fn take_back(&mut self, mut back: Vec<BoxedPiece>) {
        for piece in back.drain(..) {
            self.put_back(piece);
        }
        self.coming = back;
    }

    // Segments and the quota.

    /// Returns the bytes that count for the quota.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the error of a request for `needed` bytes that the quota has no room for.
    pub(super) fn exhausted(&self, needed: u64) -> Exhausted {
        Exhausted { needed, used: self.used, quota: self.options.quota }
    }

    /// Counts `len` bytes for the quota if it has room, if need be after idle segments were dropped. Returns whether it
    /// did.
    pub(super) fn charge(&mut self, len: u64) -> bool {
        if !self.has_room(len) {
            self.reclaim_all();
            self.drop_idle();
        }
        let fits = self.has_room(len);
        if fits {
            self.used += len;
            self.show();
        }
        fits
    }

    pub(super) fn discharge(&mut self, len: u64) {
        self.used -= len;
        self.show();
    }

    fn has_room(&self, len: u64) -> bool {
        len <= self.options.quota.saturating_sub(self.used)
    }

    /// Counts a new segment for the quota, before it is made.
    fn grow(&mut self, index: usize) -> Growth {
        let class = &self.classes[index];
        let block_len = class.block_len();
        let room = self.options.quota.saturating_sub(self.used) / block_len;
        let blocks = class.blocks_a_segment().min(room);
        let page = crate::shm::page_size() as u64;
        let len = (blocks * block_len).next_multiple_of(page);
        self.used += len;
        Growth { class: index, block_len, blocks, len, backing: self.options.backing }
    }

    /// Enters a new segment, if it could be made.
    pub(super) fn enter_segment(
        &mut self,
        growth: Growth,
        made: Result<Segment>,
        owner: &Weak<dyn Owner>,
    ) -> Result<()> {
        let Growth { class, block_len, blocks, len, .. } = growth;
        let segment = made.inspect_err(|_| self.used -= len)?;
        let number = self.next_number()?;
        let index = free_index(&mut self.segments);
        let areas = segment.split(block_len as usize, blocks as usize).into_iter().enumerate();
        self.classes[class].add_segment(areas.map(|(nth, area)| {
            let offset = nth as u64 * block_len;
            let home = BlockHome { index, segment: number, class, offset };
            Box::new(Piece::new(home, area, owner.clone()))
        }));
        self.segments[index] = Some(BlockSegment { segment, number, class, blocks, free: blocks });
        self.show();
        Ok(())
    }

    /// Drops every segment of which no block is in use.
    pub(super) fn drop_idle(&mut self) {
        self.recall(None);
        let Self { segments, classes, used, dropped, .. } = self;
        for entry in segments {
            let Some(idle) = entry.take_if(|segment| segment.free == segment.blocks) else {
                continue;
            };
            *used -= idle.segment.len() as u64;
            classes[idle.class].remove_segment(idle.number);
            dropped.push(idle.segment);
        }
        self.show();
    }

    /// Returns the dropped segments, which the caller unmaps without the lock.
    pub(super) fn take_dropped(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.dropped)
    }

    /// Returns a number that no segment had before.
    fn next_number(&mut self) -> Result<u32> {
        let number = self.next_segment;
        self.next_segment = number.checked_add(1).ok_or(ErrorKind::NumbersSpent)?;
        Ok(number)
    }

    /// Numbers frozen memory.
    pub(super) fn name_frozen(&mut self, frozen: &Arc<Frozen>) -> Result<u32> {
        self.frozen.retain(|_, frozen| frozen.strong_count() > 0);
        let number = self.next_number()?;
        self.frozen.insert(number, Arc::downgrade(frozen));
        Ok(number)
    }

    /// Returns what a segment number names, if it still exists.
    pub(super) fn named(&self, number: u32) -> Result<Option<Named>> {
        if let Some(frozen) = self.frozen.get(&number).and_then(Weak::upgrade) {
            return Ok(Some(Named::Frozen(frozen)));
        }
        let Some(found) = self.segment(number) else { return Ok(None) };
        let fd = copy_of(found.segment.fd())?;
        Ok(Some(Named::Blocks(fd, found.segment.len() as u64)))
    }

    /// Returns whether a segment number names anything.
    pub(super) fn holds(&self, number: u32) -> bool {
        let is_frozen = self.frozen.get(&number).is_some_and(|frozen| frozen.strong_count() > 0);
        is_frozen || self.segment(number).is_some()
    }

    fn segment(&self, number: u32) -> Option<&BlockSegment> {
        self.segments.iter().flatten().find(|segment| segment.number == number)
    }
}

/// Returns a copy of a descriptor that `exec` closes.
pub(super) fn copy_of(fd: impl AsFd) -> Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, 3);
    copy.map_err(|errno| Error::os("F_DUPFD_CLOEXEC", errno))
}
