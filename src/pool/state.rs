//! The pool's tables: segments, free blocks, and who holds the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Weak;

use crate::error::{ErrorKind, Result};
use crate::pool::block::Written;
use crate::pool::class::{self, Class};
use crate::pool::frozen::FrozenBlock;
use crate::pool::loans::{Account, BorrowerId, Lent, Piece, Promise};
use crate::pool::ready::Prepared;
use crate::pool::store::{Exhausted, PoolOptions};
use crate::pool::tuning::{Footprints, LONG, Tuning};
use crate::shm::{Backing, Segment};

/// Which block of which segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHome {
    /// The segment's place in the table.
    pub(super) place: usize,
    /// The segment's number, never used twice.
    pub(super) segment: u32,
    /// The class's place in the table.
    pub(super) class: usize,
    /// Start in the segment, in bytes.
    pub(super) offset: u64,
}

/// What the pool's lock guards.
pub(super) struct State {
    pub(super) options: PoolOptions,
    pub(super) footprints: Footprints,
    pub(super) segments: Vec<Option<Held>>,
    pub(super) next_segment: u32,
    /// Frozen memory that has a number.
    pub(super) frozen: BTreeMap<u32, Weak<FrozenBlock>>,
    pub(super) classes: Vec<Class>,
    pub(super) accounts: Vec<Option<Account>>,
    pub(super) next_borrower: u64,
    /// Bytes of all segments together.
    pub(super) used: u64,
    /// Blocks that are being taken back: empty, but for its room.
    pub(super) coming: Vec<Lent>,
    /// Segments that were dropped, to be unmapped without the lock.
    pub(super) dropped: Vec<Segment>,
}

/// What the pool gives for a length.
pub(super) enum Taken {
    Block {
        lent: Lent,
        /// How long it takes to write it is to be [told](Tuning::note), for this round.
        timed: Option<u32>,
    },
    /// Nothing before this was made and entered.
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
    pub(super) fn make(&self) -> Result<Segment> {
        Segment::create(self.len as usize, self.len as usize, self.backing)
    }
}

pub(super) struct Held {
    pub(super) segment: Segment,
    pub(super) number: u32,
    class: usize,
    blocks: u64,
    /// Blocks in the class's free lists.
    free: u64,
}

impl State {
    pub(super) fn new(options: PoolOptions) -> Self {
        Self {
            options,
            footprints: Footprints::new(options.footprint, options.far_footprint),
            segments: Vec::new(),
            next_segment: 0,
            frozen: BTreeMap::new(),
            classes: Vec::new(),
            accounts: Vec::new(),
            next_borrower: 0,
            used: 0,
            coming: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// Takes in how long writing a block took, if it was timed.
    #[inline]
    pub(super) fn note(&mut self, written: Option<Written>) {
        if let Some(Written { class, len, timing }) = written {
            self.classes[class].tuning.note(timing, len);
        }
    }

    pub(super) fn account(&mut self, id: BorrowerId) -> Option<&mut Account> {
        let account = self.accounts.get_mut(id.place)?.as_mut()?;
        (account.number() == id.number).then_some(account)
    }

    /// The class that serves `len` bytes.
    pub(super) fn class(&mut self, block_len: u64) -> usize {
        let known = self.classes.iter().position(|class| class.block_len == block_len);
        known.unwrap_or_else(|| {
            let (walked, spare) = (VecDeque::new(), Vec::new());
            let tuning = Tuning::default();
            self.classes.push(Class { block_len, walked, spare, blocks: 0, fresh: 0, tuning });
            self.classes.len() - 1
        })
    }

    /// Blocks of a class to walk through in turn now.
    fn walk(&self, class: usize) -> u64 {
        let Class { block_len, tuning, .. } = &self.classes[class];
        class::walk(*block_len, tuning.footprint(&self.footprints))
    }

    /// How many loans for `len` bytes a borrower may have before it is waited for, and their class.
    pub(super) fn ahead(&mut self, len: u64) -> Option<(usize, usize)> {
        let class = self.class(class::block_len(len)?);
        let footprint = self.classes[class].tuning.footprint(&self.footprints);
        Some((class::ahead(len, footprint), class))
    }

    /// A block, or the segment that must be made for one.
    pub(super) fn take(&mut self, len: u64) -> Taken {
        let quota = self.options.quota;
        let Some(block_len) = class::block_len(len).filter(|needed| *needed <= quota) else {
            return Taken::Nothing(Exhausted { needed: len, used: self.used, quota });
        };
        let place = self.class(block_len);
        let walk = self.walk(place);
        // Up to the footprint a new block is better than one that the peer has just read.
        let class = &self.classes[place];
        if class.blocks < walk && class.fresh == 0 && self.may_grow(block_len) {
            return Taken::Growth(self.grow(place));
        }
        let is_fresh = class.fresh > 0;
        let mut lent = self.classes[place].next(walk);
        if lent.is_none() {
            self.reclaim_all();
            let class = &mut self.classes[place];
            lent = class.next(walk).or_else(|| class.spare.pop());
        }
        if lent.is_none() {
            self.recall(Some(place));
            let class = &mut self.classes[place];
            lent = class.next(walk).or_else(|| class.spare.pop());
        }
        if lent.is_none() && !self.may_grow(block_len) {
            self.drop_idle();
        }
        let Some(lent) = lent else {
            if self.may_grow(block_len) {
                return Taken::Growth(self.grow(place));
            }
            return Taken::Nothing(Exhausted { needed: block_len, used: self.used, quota });
        };
        let timed = self.hand_out(&lent, len, is_fresh);
        Taken::Block { lent, timed }
    }

    /// Counts a block as in use, for `len` bytes. Gives whether it is timed.
    fn hand_out(&mut self, lent: &Lent, len: u64, is_fresh: bool) -> Option<u32> {
        let Self { footprints, classes, segments, .. } = self;
        if let Some(held) = &mut segments[lent.home.place] {
            held.free -= 1;
        }
        if len < LONG || is_fresh {
            return None;
        }
        let Class { block_len, tuning, .. } = &mut classes[lent.home.class];
        tuning.hand_out(footprints, |footprint| class::walk(*block_len, footprint))
    }

    /// Lays a block of a class ready for a borrower's next loan, of `len` bytes perhaps, if one is at hand. It has
    /// just got one, at which nobody looks: the borrower is about to return it.
    pub(super) fn prepare(&mut self, id: BorrowerId, class: usize, len: u64) -> Option<Prepared> {
        let walk = self.walk(class);
        let Class { block_len, blocks, fresh, .. } = self.classes[class];
        // The next one is to be a new one, whose making takes long.
        if blocks < walk && fresh == 0 && self.may_grow(block_len) {
            return None;
        }
        let mut lent = self.classes[class].next(walk);
        if lent.is_none() {
            self.reclaim_oldest(id);
            lent = self.classes[class].next(walk);
        }
        let lent = lent?;
        let timed = self.hand_out(&lent, len, fresh > 0);
        let account = self.account(id)?;
        account.ready_class = Some(class);
        if let Some(other) = account.ready.put(lent) {
            self.put_back(other);
        }
        Some(Prepared { block_len, timed })
    }

    /// Takes back the blocks that lie ready, of a class or of all.
    fn recall(&mut self, class: Option<usize>) {
        let mut back = std::mem::take(&mut self.coming);
        let accounts = self.accounts.iter().flatten();
        let of_class = accounts.filter(|account| class.is_none() || account.ready_class == class);
        back.extend(of_class.filter_map(|account| account.ready.take()));
        self.take_back(back);
    }

    pub(super) fn may_grow(&self, block_len: u64) -> bool {
        block_len <= self.options.quota.saturating_sub(self.used)
    }

    /// Counts a new segment as used, before it is made.
    pub(super) fn grow(&mut self, class: usize) -> Growth {
        let block_len = self.classes[class].block_len;
        let room = self.options.quota.saturating_sub(self.used) / block_len;
        let blocks = class::blocks_a_segment(block_len).min(room);
        let page = crate::shm::page_size() as u64;
        let len = (blocks * block_len).next_multiple_of(page);
        self.used += len;
        Growth { class, block_len, blocks, len, backing: self.options.backing }
    }

    /// A number that no segment had before.
    pub(super) fn next_number(&mut self) -> Result<u32> {
        let number = self.next_segment;
        self.next_segment = number.checked_add(1).ok_or(ErrorKind::NumbersSpent)?;
        Ok(number)
    }

    /// Enters a new segment, if it could be made.
    pub(super) fn enter(&mut self, growth: Growth, made: Result<Segment>) -> Result<()> {
        let Growth { class, block_len, blocks, len, .. } = growth;
        let segment = match made {
            Ok(segment) => segment,
            Err(error) => {
                self.used -= len;
                return Err(error);
            }
        };
        let number = self.next_number()?;
        let place = self.segments.iter().position(Option::is_none).unwrap_or_else(|| {
            self.segments.push(None);
            self.segments.len() - 1
        });
        let areas = segment.split(block_len as usize, blocks as usize);
        self.classes[class].blocks += blocks;
        for (index, area) in areas.into_iter().enumerate().rev() {
            let offset = index as u64 * block_len;
            let home = BlockHome { place, segment: number, class, offset };
            self.classes[class].insert_fresh(Box::new(Piece { home, area }));
        }
        self.segments[place] = Some(Held { segment, number, class, blocks, free: blocks });
        Ok(())
    }

    /// Takes back a block that a peer may have read.
    pub(super) fn put_back(&mut self, lent: Lent) {
        let class = self.count_back(&lent);
        let walk = self.walk(class);
        self.classes[class].insert(lent, walk);
    }

    /// Takes back a block that was not lent.
    pub(super) fn put_back_unused(&mut self, lent: Lent) {
        let class = self.count_back(&lent);
        self.classes[class].insert_fresh(lent);
    }

    /// Enters a block as free. Gives its class.
    pub(super) fn count_back(&mut self, lent: &Lent) -> usize {
        if let Some(held) = &mut self.segments[lent.home.place] {
            held.free += 1;
        }
        lent.home.class
    }

    /// A slot of a borrower, after what it has returned was taken back.
    #[inline(always)]
    pub(super) fn promise(&mut self, id: BorrowerId) -> Option<Promise> {
        if !self.account(id)?.has_room() {
            self.reclaim(id);
        }
        self.account(id)?.promise()
    }

    pub(super) fn reclaim(&mut self, id: BorrowerId) {
        let mut back = std::mem::take(&mut self.coming);
        if let Some(account) = self.account(id) {
            account.reclaim(|lent| back.push(lent));
        }
        self.take_back(back);
    }

    fn reclaim_oldest(&mut self, id: BorrowerId) {
        let mut back = std::mem::take(&mut self.coming);
        if let Some(account) = self.account(id) {
            account.reclaim_oldest(|lent| back.push(lent));
        }
        self.take_back(back);
    }

    pub(super) fn reclaim_all(&mut self) {
        let mut back = std::mem::take(&mut self.coming);
        for account in self.accounts.iter_mut().flatten() {
            account.reclaim(|lent| back.push(lent));
        }
        self.take_back(back);
    }

    fn take_back(&mut self, mut back: Vec<Lent>) {
        for lent in back.drain(..) {
            self.put_back(lent);
        }
        self.coming = back;
    }

    /// Drops every segment of which no block is in use.
    pub(super) fn drop_idle(&mut self) {
        self.recall(None);
        let Self { segments, classes, used, dropped, .. } = self;
        for entry in segments {
            let Some(held) = entry.take_if(|held| held.free == held.blocks) else { continue };
            *used -= held.segment.len() as u64;
            let class = &mut classes[held.class];
            class.walked.retain(|lent| lent.home.segment != held.number);
            class.spare.retain(|lent| lent.home.segment != held.number);
            class.blocks -= held.blocks;
            class.fresh = 0;
            dropped.push(held.segment);
        }
    }
}
