//! The account of one borrower: its slots, and the loans in them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::pool::holders::Holder;
use crate::pool::limits::LoanLimit;
use crate::pool::piece::BoxedPiece;
use crate::pool::ready::Ready;
use crate::pool::shared::SharedPiece;
use crate::status::{Line, layout};
use crate::sync::Edge;

/// A peer that borrows blocks and returns each by its generation.
pub(crate) trait Borrower: Send + Sync {
    /// Returns the generation that the borrower last wrote for `slot`: a relaxed load of a word of the peer's.
    fn returned(&self, slot: u32) -> u64;

    /// Returns whether the borrower declares that it holds nothing and takes nothing more. It has then never taken the
    /// loans that it did not return.
    fn holds_nothing(&self) -> bool {
        false
    }

    /// Tells the borrower that blocks are used again which it has not returned.
    fn revoke(&self) {}

    /// Returns the process that borrows. Its links share what it may hold.
    fn holder(&self) -> Holder;

    /// Returns the line of the status page that says what the borrower holds.
    fn line(&self) -> Option<Line> {
        None
    }

    /// Returns who the borrower is, for errors.
    fn name(&self) -> String {
        "a peer".into()
    }
}

/// The name of a borrower. A pool never uses it twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BorrowerId {
    /// Index of the borrower's account in the pool's table.
    index: usize,
    number: u64,
}

impl BorrowerId {
    pub(super) fn new(index: usize, number: u64) -> Self {
        Self { index, number }
    }

    /// Returns the index of the borrower's account in the pool's table.
    #[inline(always)]
    pub(super) fn index(self) -> usize {
        self.index
    }

    /// Returns a number that no other borrower of the pool has.
    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        self.number
    }
}

/// A loan as its borrower is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loan {
    /// The segment's number.
    pub(crate) segment: u32,
    /// The slot in which the borrower writes the generation to return the loan.
    pub(crate) slot: u32,
    /// Start of the block in its segment, in bytes.
    pub(crate) offset: u64,
    /// The loan's generation: never 0, never used twice with one borrower.
    pub(crate) generation: u64,
}

/// The block of one loan.
#[derive(Debug)]
pub(super) enum Loaned {
    /// Only this borrower has it.
    Sole(BoxedPiece),
    /// Other borrowers may have it too, or this process still reads it.
    Shared(Arc<SharedPiece>),
}

impl Loaned {
    fn segment(&self) -> u32 {
        match self {
            Self::Sole(piece) => piece.home.segment,
            Self::Shared(shared) => shared.home().segment,
        }
    }

    /// Returns the length of the block in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Sole(piece) => piece.area.len() as u64,
            Self::Shared(shared) => shared.block_len(),
        }
    }

    /// Returns the memory if this was its last use.
    fn into_piece(self) -> Option<BoxedPiece> {
        match self {
            Self::Sole(piece) => Some(piece),
            Self::Shared(shared) => Arc::into_inner(shared).and_then(SharedPiece::into_piece),
        }
    }
}

/// The slot and the generation that a borrower's next loan will have.
#[derive(Debug)]
pub(crate) struct Promise {
    slot: u32,
    generation: u64,
    /// Bytes that the loan may have. The borrower may have returned more since.
    room: u64,
}

impl Promise {
    /// Returns the loan of the block at `offset` of `segment`.
    #[inline(always)]
    pub(crate) fn loan(&self, (segment, offset): (u32, u64)) -> Loan {
        Loan { segment, slot: self.slot, offset, generation: self.generation }
    }

    /// Returns whether the loan may be a block of `len` bytes.
    #[inline(always)]
    pub(crate) fn admits(&self, len: u64) -> bool {
        len <= self.room
    }
}

/// What a borrower holds.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) name: String,
    pub(crate) blocks: usize,
    pub(crate) bytes: u64,
}

impl std::fmt::Display for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, blocks, bytes } = self;
        write!(f, "{name} holds {blocks} blocks, {bytes} bytes")
    }
}

/// A loan whose return somebody waits for.
pub(crate) struct OpenLoan {
    borrower: Arc<dyn Borrower>,
    slot: u32,
    generation: u64,
}

impl OpenLoan {
    /// Returns whether the borrower has returned it.
    #[inline]
    pub(crate) fn is_returned(&self) -> bool {
        self.borrower.returned(self.slot) == self.generation
    }
}

/// How many loans a sender takes back while its message is under way, whether it needs a block or not. Two for each that it enters,
/// so that the loans on the account become fewer.
const FEW: usize = 2;

/// The newest loans, whose words lie in the two lines that the borrower is about to write.
const NEWEST: usize = if cfg!(any(slipring_loom, fuzzing)) { 1 } else { 16 };

/// Slot → generation and block of the loan in it.
type Slots = [Option<(u64, Loaned)>];

fn is_returned(borrower: &dyn Borrower, slots: &Slots, slot: u32) -> bool {
    let returned = borrower.returned(slot);
    // Any other generation returns an earlier loan, or is a lie.
    let own = |(generation, _): &(u64, Loaned)| Edge::Generation.check(*generation == returned);
    slots[slot as usize].as_ref().is_some_and(own)
}

/// Empties a slot, and subtracts its block from `bytes`. Returns the memory that was on loan there if this was its last
/// use.
fn take_from(slots: &mut Slots, slot: u32, bytes: &mut u64) -> Option<BoxedPiece> {
    let (_, loaned) = slots[slot as usize].take()?;
    *bytes -= loaned.len();
    loaned.into_piece()
}

/// The account of one borrower.
pub(super) struct Account {
    number: u64,
    holder: usize,
    borrower: Arc<dyn Borrower>,
    /// Slots that were used at least once.
    slots: Vec<Option<(u64, Loaned)>>,
    /// How many slots there may be.
    most: u32,
    /// Used slots that hold nothing, free for longest first.
    free: VecDeque<u32>,
    /// Slots on loan, oldest first.
    out: VecDeque<u32>,
    /// Bytes of the blocks on loan, and the most.
    bytes: u64,
    byte_limit: u64,
    /// Generation of the newest loan.
    generation: u64,
    ready: Ready,
    /// Class of the block that was last put into `ready`.
    ready_class: Option<usize>,
    line: Option<Line>,
}

impl Account {
    pub(super) fn new(
        number: u64,
        (borrower, holder): (Arc<dyn Borrower>, usize),
        slots: u32,
        limit: LoanLimit,
    ) -> Self {
        let line = borrower.line();
        Self {
            number,
            holder,
            borrower,
            slots: Vec::new(),
            most: slots.min(limit.blocks).min(LoanLimit::MOST),
            free: VecDeque::new(),
            out: VecDeque::new(),
            bytes: 0,
            byte_limit: limit.bytes,
            generation: 0,
            ready: Ready::new(),
            ready_class: None,
            line,
        }
    }

    /// Returns the borrower's number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn borrower(&self) -> Arc<dyn Borrower> {
        self.borrower.clone()
    }

    /// Returns how many slots are free.
    pub(super) fn room(&self) -> usize {
        self.free.len() + self.most as usize - self.slots.len()
    }

    /// Returns how many bytes more the link may hold.
    #[inline(always)]
    pub(super) fn byte_room(&self) -> u64 {
        self.byte_limit.saturating_sub(self.bytes)
    }

    /// Returns the bytes on loan.
    #[inline(always)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the index of the borrower's process among the holders.
    #[inline(always)]
    pub(super) fn holder(&self) -> usize {
        self.holder
    }

    /// Returns what is on loan.
    pub(super) fn holding(&self) -> Holding {
        Holding { name: self.borrower.name(), blocks: self.out.len(), bytes: self.bytes }
    }

    /// Returns how many blocks are on loan.
    pub(super) fn outstanding(&self) -> usize {
        self.out.len()
    }

    /// Returns the oldest loan.
    pub(super) fn oldest(&self) -> Option<OpenLoan> {
        let slot = *self.out.front()?;
        let (generation, _) = self.slots[slot as usize].as_ref()?;
        Some(OpenLoan { borrower: self.borrower(), slot, generation: *generation })
    }

    /// Returns the segments of the blocks on loan.
    pub(super) fn segments(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().flatten().map(|(_, loaned)| loaned.segment())
    }

    /// Returns where the block of the borrower's next loan is put.
    pub(super) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Puts a block ready for the borrower's next loan. Returns the one that was ready before.
    pub(super) fn put_ready(&mut self, piece: BoxedPiece) -> Option<BoxedPiece> {
        self.ready_class = Some(piece.home.class);
        self.ready.put(piece)
    }

    /// Takes the ready block back if it is of this class; `None` stands for any.
    pub(super) fn recall(&self, class: Option<usize>) -> Option<BoxedPiece> {
        if class.is_none() || self.ready_class == class { self.ready.take() } else { None }
    }

    /// Reserves a slot and a generation, for a block of up to `room` bytes. The borrower may be told of the loan before it is
    /// [entered](Self::enter).
    #[inline(always)]
    pub(super) fn promise(&mut self, room: u64) -> Option<Promise> {
        let slot = if self.slots.len() < self.most as usize {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        } else {
            self.free.pop_front()?
        };
        self.generation += 1;
        Some(Promise { slot, generation: self.generation, room })
    }

    /// Frees a promised slot.
    pub(super) fn renounce(&mut self, promise: Promise) {
        self.free.push_front(promise.slot);
    }

    /// Enters a loan.
    #[inline(always)]
    pub(super) fn enter(&mut self, promise: Promise, loaned: Loaned) {
        let Promise { slot, generation, .. } = promise;
        self.bytes += loaned.len();
        self.slots[slot as usize] = Some((generation, loaned));
        self.out.push_back(slot);
        self.show();
    }

    /// Stores what the borrower holds in the status page.
    #[inline]
    fn show(&self) {
        if let Some(line) = self.line.as_ref().filter(|line| line.is_current()) {
            line.store(0, self.out.len() as u64);
            line.store(layout::LOAN_BYTES, self.bytes);
        }
    }

    /// Takes back every loan that the borrower has returned.
    pub(super) fn reclaim(&mut self, mut back: impl FnMut(BoxedPiece)) {
        let Self { borrower, slots, free, out, bytes, .. } = self;
        out.retain(|slot| {
            if !is_returned(&**borrower, slots, *slot) {
                return true;
            }
            take_from(slots, *slot, bytes).into_iter().for_each(&mut back);
            free.push_back(*slot);
            false
        });
        // Pairs with the borrower's store of the generation: its loads of the blocks are done.
        Edge::Reclaim.acquire();
        self.show();
    }

    /// Takes back one or two of the oldest loans if they are returned. The sender calls this while its
    /// message is under way: a pass over all loans takes microseconds. It does not read the words of the newest loans: the
    /// borrower is about to write there, and a read would take the line away from it.
    pub(super) fn reclaim_few(&mut self, mut back: impl FnMut(BoxedPiece)) {
        let Self { borrower, slots, free, out, bytes, .. } = self;
        for _ in 0..FEW {
            let oldest = out.front().copied().filter(|_| out.len() > NEWEST);
            let Some(slot) = oldest.filter(|slot| is_returned(&**borrower, slots, *slot)) else {
                break;
            };
            out.pop_front();
            take_from(slots, slot, bytes).into_iter().for_each(&mut back);
            free.push_back(slot);
        }
        // Pairs with the borrower's store of the generation, as in `reclaim`.
        Edge::Reclaim.acquire();
    }

    /// Takes back the oldest loan if it is returned, unless it is the newest one, too. Returns its block if nobody else has it, or
    /// `None` if nothing was taken back.
    pub(super) fn reclaim_one(&mut self) -> Option<Option<BoxedPiece>> {
        let Self { borrower, slots, free, out, bytes, .. } = self;
        let oldest = out.front().copied().filter(|_| out.len() > 1)?;
        if !is_returned(&**borrower, slots, oldest) {
            return None;
        }
        out.pop_front();
        let piece = take_from(slots, oldest, bytes);
        free.push_back(oldest);
        // Pairs with the borrower's store of the generation, as in `reclaim`.
        Edge::Reclaim.acquire();
        Some(piece)
    }

    /// Takes back every loan. A borrower that may still read one of them is told first.
    pub(super) fn close(self) -> impl Iterator<Item = BoxedPiece> {
        let Self { slots, borrower, out, .. } = self;
        let holds_nothing = borrower.holds_nothing();
        if !holds_nothing && out.iter().any(|slot| !is_returned(&*borrower, &slots, *slot)) {
            borrower.revoke();
        }
        // Pairs with the borrower's store of the generation, as in `reclaim`.
        Edge::Reclaim.acquire();
        slots.into_iter().enumerate().filter_map(move |(slot, entry)| {
            let (generation, loaned) = entry?;
            if let Loaned::Shared(shared) = &loaned
                && !holds_nothing
                && borrower.returned(slot as u32) != generation
            {
                shared.lose();
            }
            loaned.into_piece()
        })
    }
}
