//! Unit tests of `cuda::ledger`.

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
    /// Of another GPU.
    foreign: HashSet<u64>,
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
    /// As above, on another GPU.
    OtherView(usize),
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
        at().prop_map(Act::OtherView),
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
                    ledger.lend(blocks[at].number, tickets, Some(event));
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
                Act::OtherView(at) => {
                    let Some(at) = pick(&blocks, at, true) else { continue };
                    events += 1;
                    world.borrow_mut().foreign.insert(events);
                    world.borrow_mut().running.insert(events);
                    ledger.put_behind(blocks[at].number, events);
                    blocks[at].behind.push(events);
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
                            if !world.running.contains(event) && world.foreign.contains(event) { Look::Spent }
                            else if !world.running.contains(event) { Look::Over }
                            else if ticket.is_some_and(|ticket| world.dead.contains(ticket)) { Look::Lost }
                            else { Look::Running }
                        },
                    );
                    prop_assert!(ledger.spare.iter().all(|event| !world.borrow().foreign.contains(event)));
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
    ledger.lend(number, "ticket", Some("done"));
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
    ledger.lend(number, "ticket", Some("done"));
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
    assert_eq!(range.chunk, chunks[0]);
    let dropped = |ledger: &mut Ledger<(), ()>, may: bool| {
        let mut asked = Vec::new();
        ledger.drop_chunks(|chunk| {
            asked.push(chunk);
            may
        });
        asked
    };
    assert_eq!(dropped(&mut ledger, true), [chunks[1]]);
    ledger.end_use(number);
    ledger.sweep(|_| Fate::Out, |_, _| Look::Over);
    assert_eq!(dropped(&mut ledger, false), [chunks[0]]);
    assert_eq!(dropped(&mut ledger, true), [chunks[0]]);
    assert_eq!(dropped(&mut ledger, true), [0usize; 0]);
    assert_eq!(ledger.add_chunk(512), chunks[0]);
}

#[test]
fn a_ticket_without_an_event_is_back_when_it_is_back() {
    let mut ledger = Ledger::<&str, &str>::new();
    ledger.add_chunk(512);
    let (number, _) = ledger.take(1).unwrap();
    ledger.set_ready(number, "ready");
    ledger.lend(number, "ticket", None);
    ledger.end_use(number);
    ledger.sweep(|_| Fate::Out, |_, _| Look::Over);
    assert!(ledger.take(1).is_none(), "it is on loan");
    ledger.sweep(|_| Fate::Back, |_, _| Look::Running);
    assert!(ledger.take(1).is_none(), "its writer is not done");
    ledger.sweep(|_| Fate::Back, |_, _| Look::Over);
    assert!(ledger.take(1).is_some());
    // A dead borrower leaves no event behind.
    ledger.lend(number, "ticket", None);
    assert_eq!(ledger.spare(), Some("ready"));
}
