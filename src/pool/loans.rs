//! What one borrower holds: its slots, and the loans in them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::pool::ready::Ready;
use crate::pool::shared::Shared;
use crate::pool::state::BlockHome;
use crate::shm::Area;
use crate::sync::Edge;

/// Loans of one borrower at most, however many slots it has: all of them are looked at, under the
/// pool's lock, when blocks are taken back.
const LOANS: u32 = 1024;

/// Somebody who borrows blocks and returns them by generation.
pub(crate) trait Borrower: Send + Sync {
    /// The generation that the borrower last wrote for `slot`: a relaxed load of a peer's word.
    fn returned(&self, slot: u32) -> u64;

    /// Whether the borrower says that it holds nothing, and never will: what it has not returned it has never taken.
    fn holds_nothing(&self) -> bool {
        false
    }
}

/// Names a borrower; never used twice in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BorrowerId {
    /// Its account's place in the table.
    pub(super) place: usize,
    pub(super) number: u64,
}

impl BorrowerId {
    /// A number that no other borrower of the pool has.
    pub(crate) fn number(self) -> u64 {
        self.number
    }
}

/// How a loan is named towards the borrower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loan {
    /// The segment's number.
    pub(crate) segment: u32,
    /// The slot in which the borrower returns the generation.
    pub(crate) slot: u32,
    /// Start of the block in its segment, in bytes.
    pub(crate) offset: u64,
    /// The loan's generation, never 0 and never used twice with this borrower.
    pub(crate) generation: u64,
}

/// A block, which goes back to the pool when nobody needs it any more. It passes through many hands, as one word.
pub(super) type Lent = Box<Piece>;

/// Memory of a segment.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) home: BlockHome,
    pub(super) area: Area,
}

/// What is on loan in a slot.
#[derive(Debug)]
pub(super) enum Loaned {
    /// To this borrower alone.
    Sole(Lent),
    /// To others, too, or still in use here.
    Shared(Arc<Shared>),
}

impl Loaned {
    fn home(&self) -> BlockHome {
        match self {
            Self::Sole(lent) => lent.home,
            Self::Shared(shared) => shared.home(),
        }
    }

    /// The block, if this was the last use of it.
    fn into_lent(self) -> Option<Lent> {
        match self {
            Self::Sole(lent) => Some(lent),
            Self::Shared(shared) => Arc::into_inner(shared).and_then(Shared::into_lent),
        }
    }
}

/// A slot of a borrower that the next loan will have.
#[derive(Debug)]
pub(crate) struct Promise {
    slot: u32,
    generation: u64,
}

impl Promise {
    /// The loan of a block at `offset` of a segment.
    #[inline(always)]
    pub(crate) fn loan(&self, (segment, offset): (u32, u64)) -> Loan {
        Loan { segment, slot: self.slot, offset, generation: self.generation }
    }
}

/// A loan that is waited for.
pub(crate) struct OpenLoan {
    borrower: Arc<dyn Borrower>,
    slot: u32,
    generation: u64,
}

impl OpenLoan {
    /// Whether it was returned.
    #[inline]
    pub(crate) fn is_returned(&self) -> bool {
        self.borrower.returned(self.slot) == self.generation
    }
}

/// A slot → what it holds.
type Slots = [Option<(u64, Loaned)>];

fn is_returned(borrower: &dyn Borrower, slots: &Slots, slot: u32) -> bool {
    let returned = borrower.returned(slot);
    // Anything else is the return of an earlier loan, or a lie.
    let own = |(generation, _): &(u64, Loaned)| Edge::Generation.check(*generation == returned);
    slots[slot as usize].as_ref().is_some_and(own)
}

/// Empties a slot. Gives the block that was there if this was the last use of it.
fn back_from(slots: &mut Slots, slot: u32) -> Option<Lent> {
    slots[slot as usize].take().and_then(|(_, loaned)| loaned.into_lent())
}

/// One borrower's table.
pub(super) struct Account {
    number: u64,
    borrower: Arc<dyn Borrower>,
    /// Slot → what it holds. Slots that were never used are not there yet.
    slots: Vec<Option<(u64, Loaned)>>,
    /// How many slots there may be.
    most: u32,
    /// Slots that are there and hold nothing, free for longest first.
    free: VecDeque<u32>,
    /// Slots on loan, oldest first.
    out: Vec<u32>,
    generation: u64,
    /// The block of its next loan, and the class of the last one that was laid there.
    pub(super) ready: Ready,
    pub(super) ready_class: Option<usize>,
}

impl Account {
    pub(super) fn new(number: u64, borrower: Arc<dyn Borrower>, slots: u32) -> Self {
        Self {
            number,
            borrower,
            slots: Vec::new(),
            most: slots.min(LOANS),
            free: VecDeque::new(),
            out: Vec::new(),
            generation: 0,
            ready: Ready::new(),
            ready_class: None,
        }
    }

    /// The borrower's number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether a slot is free.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.most as usize
    }

    /// How many slots are free.
    pub(super) fn room(&self) -> usize {
        self.free.len() + self.most as usize - self.slots.len()
    }

    /// Blocks on loan.
    pub(super) fn outstanding(&self) -> usize {
        self.out.len()
    }

    /// The oldest loan.
    pub(super) fn oldest(&self) -> Option<OpenLoan> {
        self.open(*self.out.first()?)
    }

    /// The slots of the loans of a class, oldest first.
    pub(super) fn loans_of(&self, class: usize) -> impl Iterator<Item = u32> {
        let is_of = move |(_, loaned): &(u64, Loaned)| loaned.home().class == class;
        let of_class = move |slot: &&u32| self.slots[**slot as usize].as_ref().is_some_and(is_of);
        self.out.iter().filter(of_class).copied()
    }

    /// The loan in a slot.
    pub(super) fn open(&self, slot: u32) -> Option<OpenLoan> {
        let (generation, _) = self.slots[slot as usize].as_ref()?;
        Some(OpenLoan { borrower: self.borrower(), slot, generation: *generation })
    }

    /// A slot and a generation for a loan that is told of before it is [entered](Self::enter).
    #[inline(always)]
    pub(super) fn promise(&mut self) -> Option<Promise> {
        let slot = if self.slots.len() < self.most as usize {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        } else {
            self.free.pop_front()?
        };
        self.generation += 1;
        Some(Promise { slot, generation: self.generation })
    }

    /// A promised slot is free again.
    pub(super) fn renounce(&mut self, promise: Promise) {
        self.free.push_front(promise.slot);
    }

    /// Enters a loan.
    #[inline(always)]
    pub(super) fn enter(&mut self, promise: Promise, loaned: Loaned) {
        let Promise { slot, generation } = promise;
        self.slots[slot as usize] = Some((generation, loaned));
        self.out.push(slot);
    }

    /// Takes back every block that the borrower has returned.
    pub(super) fn reclaim(&mut self, mut back: impl FnMut(Lent)) {
        let Self { borrower, slots, free, out, .. } = self;
        out.retain(|slot| {
            if !is_returned(&**borrower, slots, *slot) {
                return true;
            }
            back_from(slots, *slot).into_iter().for_each(&mut back);
            free.push_back(*slot);
            false
        });
        // Pairs with the borrower's store of the generation: its loads of the blocks are done.
        Edge::Reclaim.acquire();
    }

    /// As [`reclaim`](Self::reclaim), up to the oldest one that it holds, and of the newest not even the word is
    /// looked at: the borrower is about to write it.
    pub(super) fn reclaim_oldest(&mut self, mut back: impl FnMut(Lent)) {
        let Self { borrower, slots, free, out, .. } = self;
        let older = &out[..out.len().saturating_sub(1)];
        let still = older.iter().position(|slot| !is_returned(&**borrower, slots, *slot));
        for slot in out.drain(..still.unwrap_or(older.len())) {
            back_from(slots, slot).into_iter().for_each(&mut back);
            free.push_back(slot);
        }
        // As above.
        Edge::Reclaim.acquire();
    }

    pub(super) fn borrower(&self) -> Arc<dyn Borrower> {
        self.borrower.clone()
    }

    /// The segments of what is on loan.
    pub(super) fn segments(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().flatten().map(|(_, loaned)| loaned.home().segment)
    }

    /// Takes back everything: the borrower is gone.
    pub(super) fn close(self) -> impl Iterator<Item = Lent> {
        let Self { slots, borrower, .. } = self;
        let is_released = borrower.holds_nothing();
        let entries = slots.into_iter().enumerate();
        entries.filter_map(move |(slot, entry)| {
            let (generation, loaned) = entry?;
            if let Loaned::Shared(shared) = &loaned
                && !is_released
                && borrower.returned(slot as u32) != generation
            {
                shared.lose();
            }
            loaned.into_lent()
        })
    }
}
