//! The loans of a pool, and the moment at which their memory can be reused. No driver: the caller supplies
//! tickets and events.
//!
//! ```text
//!   free ──take──▶ in use here ──lend──▶ on loan ──ticket back──▶ behind an event ──over──▶ free
//!                      │                    │                          ▲
//!                      │                    └── borrower's process died: nothing to wait for
//!                      └──────── the use here ends, with the event behind it ─┘
//! ```
//!
//! 1. A range is free when nothing in this process uses it, every ticket is back, and every event after a use
//!    is over, the writer's included.
//! 2. An event that a borrower records goes to another borrower only when its ticket is back and it is over.
//!    The event of a borrower that died is never reused: it may never be over. It is kept, because earlier
//!    borrowers may have it open.
//! 3. The event after which a range can be read is recorded once while the range is in use.

use std::collections::HashMap;

use crate::cuda::space::{ALIGNMENT, Space};
use crate::tensor::Fate;

/// The fewest ranges, loans and uses between two sweeps, while there is room.
const OFTEN: usize = 16;

/// The number of a range in use. It is never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Number(u64);

/// The position of a range: the chunk, and the offset in it in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) chunk: usize,
    pub(super) offset: u64,
    /// In bytes, a multiple of [`ALIGNMENT`].
    pub(super) len: u64,
}

/// `T` is a ticket, `E` an event.
#[derive(Debug)]
pub(super) struct Ledger<T, E> {
    /// By the chunk's number. `None`: the chunk is freed.
    spaces: Vec<Option<Space>>,
    ranges: HashMap<Number, Entry<T, E>>,
    next: u64,
    /// Unused events.
    spare: Vec<E>,
    /// Events of dead borrowers, which may never be over. They are kept, because other processes may have them
    /// open.
    lost: Vec<E>,
    /// Ranges, loans and uses since the last sweep, and the number that were out then.
    since: (usize, usize),
}

/// The state of an event after a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Running,
    Over,
    /// The process that recorded it is dead, and its work ended with it. The event may never be over.
    Lost,
}

#[derive(Debug)]
struct Entry<T, E> {
    range: Range,
    /// Handles in this process.
    uses: usize,
    /// The event after which the range can be read.
    ready: Option<E>,
    loans: Vec<(T, E)>,
    /// Events recorded after uses that have ended, each with the ticket of the borrower that was to record it,
    /// if any.
    behind: Vec<(Option<T>, E)>,
}

impl<T, E> Ledger<T, E> {
    pub(super) fn new() -> Self {
        let (spaces, ranges) = (Vec::new(), HashMap::new());
        Self { spaces, ranges, next: 0, spare: Vec::new(), lost: Vec::new(), since: (0, 0) }
    }

    /// Adds a chunk of `len` bytes. Returns its number.
    pub(super) fn add_chunk(&mut self, len: u64) -> usize {
        let space = Some(Space::new(len));
        match self.spaces.iter().position(Option::is_none) {
            Some(chunk) => {
                self.spaces[chunk] = space;
                chunk
            }
            None => {
                self.spaces.push(space);
                self.spaces.len() - 1
            }
        }
    }

    /// Removes the chunks without ranges in use for which `may` returns `true`.
    pub(super) fn drop_chunks(&mut self, mut may: impl FnMut(usize) -> bool) {
        for (chunk, space) in self.spaces.iter_mut().enumerate() {
            space.take_if(|space| space.is_idle() && may(chunk));
        }
    }

    /// Returns the bytes of all chunks.
    pub(super) fn total(&self) -> u64 {
        self.spaces.iter().flatten().map(Space::len).sum()
    }

    /// Returns whether no range is in use.
    pub(super) fn is_idle(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Takes a range of `len` bytes for one use in this process. Returns `None` if no chunk has room.
    pub(super) fn take(&mut self, len: u64) -> Option<(Number, Range)> {
        let len = len.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let fits = self.spaces.iter().enumerate().filter_map(|(chunk, space)| {
            let fit = space.as_ref()?.fit(len)?;
            Some((fit, chunk))
        });
        let (_, chunk) = fits.min()?;
        let offset = self.spaces[chunk].as_mut()?.take(len)?;
        let range = Range { chunk, offset, len };
        let number = Number(self.next);
        self.next += 1;
        self.since.0 += 1;
        let (loans, behind) = (Vec::new(), Vec::new());
        self.ranges.insert(number, Entry { range, uses: 1, ready: None, loans, behind });
        Some((number, range))
    }

    /// Stores the event after which a range can be read.
    pub(super) fn set_ready(&mut self, number: Number, event: E) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.ready = Some(event);
        }
    }

    /// Returns the event after which a range can be read.
    pub(super) fn ready(&self, number: Number) -> Option<&E> {
        self.ranges.get(&number)?.ready.as_ref()
    }

    /// Lends a range. The ticket comes back after `done` is recorded.
    pub(super) fn lend(&mut self, number: Number, ticket: T, done: E) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.loans.push((ticket, done));
            self.since.0 += 1;
        }
    }

    /// Ends a use in this process when `event` is over.
    pub(super) fn put_behind(&mut self, number: Number, event: E) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.behind.push((None, event));
            self.since.0 += 1;
        }
    }

    /// Keeps a range in use forever.
    pub(super) fn keep(&mut self, number: Number) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.uses += 1;
        }
    }

    /// Drops the last handle of this process.
    pub(super) fn end_use(&mut self, number: Number) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.uses -= 1;
        }
    }

    /// Returns the tickets that were out at the last [sweep](Self::sweep), or were handed out since.
    pub(super) fn tickets(&self) -> impl Iterator<Item = &T> {
        self.ranges.values().flat_map(|entry| &entry.loans).map(|(ticket, _)| ticket)
    }

    /// Returns an unused event.
    pub(super) fn spare(&mut self) -> Option<E> {
        self.spare.pop()
    }

    /// Puts back an event that the caller did not use.
    pub(super) fn put_spare(&mut self, event: E) {
        self.spare.push(event);
    }

    /// Returns whether enough ranges were taken since the last sweep that another one costs each of them
    /// little.
    pub(super) fn is_due(&self) -> bool {
        let (more, left) = self.since;
        more >= left.max(OFTEN)
    }

    /// Returns whether a sweep pays when no event is spare: a new event costs more than a sweep.
    pub(super) fn is_due_for_events(&self) -> bool {
        let (more, left) = self.since;
        self.spare.is_empty() && more > left / 2
    }

    /// Checks which tickets are back and which events are over.
    pub(super) fn sweep(
        &mut self,
        mut fate: impl FnMut(&mut T) -> Fate,
        look: impl Fn(Option<&T>, &E) -> Look,
    ) {
        let Self { spaces, ranges, spare, lost, .. } = self;
        ranges.retain(|_, entry| {
            let Entry { range, uses, ready, loans, behind } = entry;
            let back = loans.extract_if(.., |(ticket, _)| fate(ticket) == Fate::Back);
            behind.extend(back.map(|(ticket, done)| (Some(ticket), done)));
            let dead = loans.extract_if(.., |(ticket, _)| fate(ticket) == Fate::Dead);
            lost.extend(dead.map(|(_, done)| done));
            if *uses == 0 && loans.is_empty() {
                // The writer may not be done yet.
                behind.extend(ready.take().map(|ready| (None, ready)));
            }
            let mut running = Vec::new();
            for (ticket, event) in behind.drain(..) {
                match look(ticket.as_ref(), &event) {
                    Look::Running => running.push((ticket, event)),
                    Look::Over => spare.push(event),
                    Look::Lost => lost.push(event),
                }
            }
            *behind = running;
            if *uses > 0 || !loans.is_empty() || !behind.is_empty() {
                return true;
            }
            if let Some(space) = &mut spaces[range.chunk] {
                space.put(range.offset, range.len);
            }
            false
        });
        let out = |entry: &Entry<T, E>| 1 + entry.loans.len() + entry.behind.len();
        self.since = (0, self.ranges.values().map(out).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::HashSet;

    /// The model's tickets and events, by number.
    #[derive(Default)]
    struct World {
        back: HashSet<u64>,
        dead: HashSet<u64>,
        /// Recorded and not over.
        running: HashSet<u64>,
    }

    #[derive(Debug, Clone)]
    enum Act {
        Take(u64),
        Share(usize),
        Lend(usize),
        /// A borrower records its event and returns its ticket.
        Return(usize),
        Die(usize),
        DieLater(usize),
        /// A use in this process ends while its work still runs.
        GpuView(usize),
        Drop(usize),
        Finish(usize),
        Sweep,
    }

    fn act() -> impl Strategy<Value = Act> {
        let at = any::<usize>;
        prop_oneof![
            (1u64..8000).prop_map(Act::Take),
            at().prop_map(Act::Share),
            at().prop_map(Act::Lend),
            at().prop_map(Act::Return),
            at().prop_map(Act::Die),
            at().prop_map(Act::DieLater),
            at().prop_map(Act::GpuView),
            at().prop_map(Act::Drop),
            at().prop_map(Act::Finish),
            Just(Act::Sweep),
        ]
    }

    struct Block {
        number: Number,
        range: Range,
        held: bool,
        /// The event, and whether a borrower knows it.
        ready: Option<u64>,
        /// The ticket, its event, and whether it is out.
        loans: Vec<(u64, u64, bool)>,
        behind: Vec<u64>,
    }

    impl Block {
        /// Whether any process may still touch the memory.
        fn is_used(&self, world: &World) -> bool {
            let running = |event: &u64| world.running.contains(event);
            self.held
                || self
                    .loans
                    .iter()
                    .any(|(_, event, out)| *out || (!world.dead.contains(event) && running(event)))
                || self.behind.iter().chain(&self.ready).any(running)
        }
    }

    proptest! {
        #[test]
        fn nothing_is_used_again_before_everybody_is_done(
            acts in proptest::collection::vec(act(), 1..200),
        ) {
            let mut ledger: Ledger<u64, u64> = Ledger::new();
            let world = RefCell::new(World::default());
            ledger.add_chunk(64 << 10);
            let mut blocks: Vec<Block> = Vec::new();
            // No number names both.
            let (mut tickets, mut events) = (1u64 << 32, 0u64);
            let pick = |blocks: &[Block], at: usize, held: bool| {
                let fitting: Vec<usize> =
                    (0..blocks.len()).filter(|at| blocks[*at].held == held || !held).collect();
                (!fitting.is_empty()).then(|| fitting[at % fitting.len()])
            };
            for act in acts {
                let mut fresh = |ledger: &mut Ledger<u64, u64>| {
                    ledger.spare().unwrap_or_else(|| { events += 1; events })
                };
                match act {
                    Act::Take(len) => {
                        let Some((number, range)) = ledger.take(len) else { continue };
                        prop_assert!(range.len >= len);
                        for other in blocks.iter().filter(|block| block.is_used(&world.borrow())) {
                            let apart = range.offset + range.len <= other.range.offset
                                || other.range.offset + other.range.len <= range.offset;
                            prop_assert!(apart, "{range:?} is still used: {:?}", other.range);
                        }
                        let (loans, behind) = (Vec::new(), Vec::new());
                        blocks.push(Block { number, range, held: true, ready: None, loans, behind });
                    }
                    Act::Share(at) => {
                        let Some(at) = pick(&blocks, at, true) else { continue };
                        if blocks[at].ready.is_some() { continue }
                        let event = fresh(&mut ledger);
                        for block in blocks.iter().filter(|block| block.is_used(&world.borrow())) {
                            prop_assert!(block.ready != Some(event), "recorded twice");
                            let lent = block.loans.iter().any(|(_, done, out)| *out && *done == event);
                            prop_assert!(!lent, "a borrower still has it");
                        }
                        ledger.set_ready(blocks[at].number, event);
                        world.borrow_mut().running.insert(event);
                        blocks[at].ready = Some(event);
                    }
                    Act::Lend(at) => {
                        let Some(at) = pick(&blocks, at, true) else { continue };
                        let event = fresh(&mut ledger);
                        prop_assert!(!world.borrow().running.contains(&event), "it is not over");
                        tickets += 1;
                        ledger.lend(blocks[at].number, tickets, event);
                        blocks[at].loans.push((tickets, event, true));
                    }
                    Act::DieLater(at) => {
                        // The borrower returned its ticket earlier.
                        let Some(at) = pick(&blocks, at, false) else { continue };
                        let running = |loan: &&(u64, u64, bool)| !loan.2 && world.borrow().running.contains(&loan.1);
                        let Some((ticket, event, _)) = blocks[at].loans.iter().find(running) else { continue };
                        world.borrow_mut().dead.extend([*ticket, *event]);
                    }
                    Act::Return(at) | Act::Die(at) => {
                        let Some(at) = pick(&blocks, at, false) else { continue };
                        let Some(loan) = blocks[at].loans.iter_mut().find(|loan| loan.2) else { continue };
                        loan.2 = false;
                        let mut world = world.borrow_mut();
                        world.running.insert(loan.1);
                        if matches!(act, Act::Die(_)) {
                            world.dead.insert(loan.1);
                            world.dead.insert(loan.0);
                        } else {
                            world.back.insert(loan.0);
                        }
                    }
                    Act::GpuView(at) => {
                        let Some(at) = pick(&blocks, at, true) else { continue };
                        let event = fresh(&mut ledger);
                        world.borrow_mut().running.insert(event);
                        ledger.put_behind(blocks[at].number, event);
                        blocks[at].behind.push(event);
                    }
                    Act::Drop(at) => {
                        let Some(at) = pick(&blocks, at, true) else { continue };
                        ledger.end_use(blocks[at].number);
                        blocks[at].held = false;
                    }
                    Act::Finish(at) => {
                        let mut world = world.borrow_mut();
                        let running: Vec<u64> = world.running.iter().copied()
                            .filter(|event| !world.dead.contains(event)).collect();
                        if !running.is_empty() {
                            let over = running[at % running.len()];
                            world.running.remove(&over);
                            for block in &mut blocks {
                                block.loans.retain(|(_, event, out)| *out || *event != over);
                                block.behind.retain(|event| *event != over);
                            }
                        }
                    }
                    Act::Sweep => {
                        ledger.sweep(
                            |ticket| {
                                let world = world.borrow();
                                if world.back.contains(ticket) { Fate::Back }
                                else if world.dead.contains(ticket) { Fate::Dead }
                                else { Fate::Out }
                            },
                            |ticket, event| {
                                let world = world.borrow();
                                if !world.running.contains(event) { Look::Over }
                                else if ticket.is_some_and(|ticket| world.dead.contains(ticket)) { Look::Lost }
                                else { Look::Running }
                            },
                        );
                        for event in &ledger.lost {
                            prop_assert!(world.borrow().dead.contains(event));
                        }
                        for block in &mut blocks {
                            // Nobody reads the range any more, so the write's event does not matter.
                            if !block.held && !block.loans.iter().any(|(.., out)| *out) {
                                block.ready.take_if(|event| !world.borrow().running.contains(event));
                            }
                        }
                    }
                }
                blocks.retain(|block| block.is_used(&world.borrow()));
            }
        }
    }

    #[test]
    fn a_dead_borrowers_event_is_given_up_and_its_range_comes_back() {
        let mut ledger: Ledger<&str, &str> = Ledger::new();
        ledger.add_chunk(ALIGNMENT);
        let (number, range) = ledger.take(1).unwrap();
        assert_eq!(range, Range { chunk: 0, offset: 0, len: ALIGNMENT });
        ledger.set_ready(number, "ready");
        ledger.lend(number, "ticket", "done");
        ledger.end_use(number);
        ledger.sweep(|_| Fate::Out, |_, _| Look::Over);
        assert!(ledger.take(1).is_none());
        // The dead borrower's event is never over.
        let never = |_: Option<&&str>, event: &&str| {
            if *event == "done" { Look::Running } else { Look::Over }
        };
        ledger.sweep(|_| Fate::Dead, never);
        assert_eq!(ledger.lost, ["done"]);
        assert_eq!(ledger.spare(), Some("ready"));
        assert!(ledger.spare().is_none() && ledger.take(1).is_some());
    }

    #[test]
    fn a_borrower_that_dies_after_it_gave_back_holds_nothing() {
        let mut ledger: Ledger<&str, &str> = Ledger::new();
        ledger.add_chunk(ALIGNMENT);
        let (number, _) = ledger.take(1).unwrap();
        ledger.lend(number, "ticket", "done");
        ledger.end_use(number);
        ledger.sweep(|_| Fate::Back, |_, _| Look::Running);
        assert!(ledger.take(1).is_none());
        ledger.sweep(
            |_| Fate::Back,
            |ticket, _| match ticket {
                Some(_) => Look::Lost,
                None => Look::Running,
            },
        );
        assert!(ledger.take(1).is_some() && ledger.spare().is_none());
    }

    #[test]
    fn a_chunk_goes_when_nothing_of_it_is_used() {
        let mut ledger: Ledger<(), ()> = Ledger::new();
        let chunks = [ledger.add_chunk(4096), ledger.add_chunk(8192)];
        let (number, range) = ledger.take(4096).unwrap();
        assert_eq!((range.chunk, ledger.total()), (chunks[0], 12288));
        ledger.drop_chunks(|_| true);
        assert_eq!(ledger.total(), 4096);
        ledger.end_use(number);
        ledger.sweep(|_| Fate::Out, |_, _| Look::Over);
        ledger.drop_chunks(|_| false);
        assert_eq!(ledger.total(), 4096);
        ledger.drop_chunks(|_| true);
        assert_eq!((ledger.total(), ledger.add_chunk(512)), (0, chunks[0]));
    }
}
