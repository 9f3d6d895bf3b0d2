//! What fuzz targets reach of the messages, and of what a client makes of answers.

use std::sync::{Arc, Weak};

use crate::commit::book::{Book, Place, Reply, What};
use crate::commit::buffer::Handle;
use crate::commit::description::{BufferInfo, Description, Layout, RegionInfo};
use crate::commit::message::{self, Answer, Request};
use crate::commit::state::{Piece, SessionState};
use crate::error::{CommitFault, Direction, ErrorKind, Result};
use crate::shm::Bytes;
use crate::tensor::DType;

/// Judges a message of either side, whatever it is. One that passes is written again as it was read.
pub fn message(bytes: &[u8]) {
    let request = Request::decode(bytes);
    if let Ok((ticket, request, model)) = &request {
        assert_eq!([&request.encode(*ticket)[..], model].concat(), bytes, "{request:?}");
    }
    if let Some((ticket, id)) = message::is_execute_one(Bytes::of(bytes)) {
        assert_eq!(request, Ok((ticket, Request::Execute { ids: vec![id] }, &[][..])));
    }
    let answer = Answer::decode(bytes);
    if let Some(ticket) = message::is_executed(Bytes::of(bytes)) {
        assert_eq!(answer, Ok((ticket, Answer::Executed { failures: Vec::new() })));
    }
    let Ok((ticket, answer)) = answer else { return };
    let again = Answer::decode(&answer.encode(ticket)).unwrap();
    if is_known(&answer) {
        assert_eq!(again, (ticket, answer.clone()));
    } else {
        // A code that nobody knows is passed on in words, and stays so.
        assert_eq!(Answer::decode(&again.1.encode(ticket)).unwrap(), again);
    }
    if let Answer::Loaded { description, .. } = answer
        && let Ok(layout) = Layout::new(description)
    {
        is_sound(&layout);
    }
}

fn is_known(answer: &Answer) -> bool {
    let known = |fault: &CommitFault| !matches!(fault, CommitFault::Other { .. });
    match answer {
        Answer::Executed { failures } => failures.iter().all(|(_, fault)| known(fault)),
        Answer::Failed(fault) => known(fault),
        _ => true,
    }
}

/// That every buffer of a description that passed is found, and lies in its region.
fn is_sound(layout: &Layout) {
    let description = &layout.description;
    for (at, buffer) in description.buffers.iter().enumerate() {
        assert_eq!(layout.place(buffer.direction, buffer.index), Ok(at));
        let first = description.labelled(&buffer.label);
        assert!(first.is_ok_and(|first| first <= at) || buffer.label.is_empty());
        let region = description.region(buffer.region).unwrap();
        assert!(buffer.offset.checked_add(buffer.size).unwrap() <= region.size);
    }
}

/// An input that is read from its start on. Behind its end it is zero.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.byte();
        (0..len).map(|_| self.byte()).collect()
    }
}

/// An input and an output; an input more and two that share a region; nothing.
fn description(which: usize) -> Description {
    let bytes =
        |label, direction, len: usize| BufferInfo::new(label, direction, DType::Uint8, [len]);
    let shared =
        |at: u32| bytes("part", Direction::In, 4).index(1 + at).region(2, 8 * u64::from(at));
    let echo = Description::new()
        .with_own_region(bytes("x", Direction::In, 8).updatable())
        .with_own_region(bytes("y", Direction::Out, 8));
    match which {
        0 => echo,
        1 => echo
            .with_region(RegionInfo::new(16))
            .with_buffer(shared(0).updatable())
            .with_buffer(shared(1).updatable())
            .with_own_region(bytes("z", Direction::Ext, 3)),
        _ => Description::new(),
    }
}

/// What was asked and not answered: which sessions it is about, and how they stand meanwhile.
struct Asked {
    ticket: u64,
    places: Vec<Place>,
    meanwhile: Option<SessionState>,
    abandoned: bool,
}

/// A session as its user has it: its place, and the layout that its model came with.
type User = (Place, Arc<Layout>);

#[derive(Default)]
struct Customer {
    book: Book,
    asked: Vec<Asked>,
    /// Every ticket that was ever given.
    tickets: Vec<u64>,
    users: Vec<User>,
}

impl Customer {
    fn user(&self, steps: &mut Steps<'_>) -> Option<User> {
        self.users.get(steps.below(self.users.len())).cloned()
    }

    fn ask(&mut self, what: What, places: Vec<Place>, meanwhile: Option<SessionState>) {
        let ticket = self.book.ask(what).unwrap();
        self.note(ticket, places, meanwhile);
    }

    fn note(&mut self, ticket: u64, places: Vec<Place>, meanwhile: Option<SessionState>) {
        assert!(!self.tickets.contains(&ticket), "a ticket is given once");
        self.tickets.push(ticket);
        self.asked.push(Asked { ticket, places, meanwhile, abandoned: false });
    }

    /// An act on a session, as a user calls it.
    fn act(&mut self, which: usize, steps: &mut Steps<'_>) -> Result<()> {
        let Some((place, layout)) = self.user(steps) else { return Ok(()) };
        let piece = |steps: &mut Steps<'_>| {
            let (root, len) = (u64::from(steps.byte() % 4), [3, 4, 8, 16][steps.below(4)]);
            let (root_len, offset) = ([len, 16][steps.below(2)], 4 * u64::from(steps.byte() % 4));
            Piece { root, root_len, offset, len }
        };
        let buffers = layout.description.buffers.len();
        let keep = Weak::<Handle>::new;
        match which {
            0 if buffers > 0 => {
                let (at, piece) = (steps.below(buffers), piece(steps));
                let (seat, layout) = self.book.seat(place)?;
                seat.session.set(&layout.description, at, piece, keep())?;
            }
            1 => {
                let (region, piece) = (steps.byte() % 5, piece(steps));
                let (seat, layout) = self.book.seat(place)?;
                seat.session.set_region(&layout.description, region.into(), piece, keep())?;
            }
            2 => {
                // What fits, for all of them.
                let (seat, layout) = self.book.seat(place)?;
                for (region, info) in (0..).zip(&layout.description.regions) {
                    let piece = Piece { root: 9, root_len: info.size, offset: 0, len: info.size };
                    seat.session.set_region(&layout.description, region, piece, keep())?;
                }
            }
            3 => {
                let (seat, layout) = self.book.seat(place)?;
                let before = (steps.byte() & 1 == 1).then(|| Box::new(seat.session.clone()));
                seat.session.start_commit(&layout.description, |_| true)?;
                let what = What::Commit { place, keep: Vec::new(), before };
                self.ask(what, vec![place], Some(SessionState::Committing));
            }
            4 => {
                let (_, ticket) = self.book.ask_one(place)?;
                self.note(ticket, vec![place], None);
            }
            5 => {
                let (places, _) = self.book.start_all(place.model)?;
                self.ask(What::All { places: places.clone() }, places, None);
            }
            6 if buffers > 0 => {
                let pieces = (0..steps.below(3))
                    .map(|_| (steps.below(buffers), piece(steps), keep()))
                    .collect();
                let (seat, layout) = self.book.seat(place)?;
                let (_, update) = seat.session.start_update(&layout.description, pieces)?;
                let what = What::Update { place, update: Box::new(update), keep: Vec::new() };
                self.ask(what, vec![place], Some(SessionState::Updating));
            }
            7 => {
                let id = self.book.seat(place)?.0.session.start_release()?;
                self.ask(What::Release { place, id }, vec![place], Some(SessionState::Releasing));
            }
            8 => {
                self.book.shelf(place.model)?.closed = true;
                self.ask(What::Close { model: place.model }, Vec::new(), None);
            }
            9 => {
                let count = steps.byte() % 4;
                let generation = self.book.renew(place.model, count.into())?;
                for index in 0..count.into() {
                    let place = Place { model: place.model, index, generation };
                    self.users.push((place, layout.clone()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What came of a ticket is looked at, if it is known.
    fn take(&mut self, ticket: u64) {
        let open = self.asked.iter().position(|asked| asked.ticket == ticket);
        let over = self.book.over.is_some();
        let Some(outcome) = self.book.take(ticket) else {
            return assert!(!over, "the end is told");
        };
        if let Some(open) = open {
            assert!(over, "nothing was answered");
            self.asked.swap_remove(open);
        }
        if let Ok(Reply::Loaded { key, layout, .. }) = outcome {
            is_sound(&layout);
            let place = Place { model: key, index: 0, generation: 0 };
            self.users.push((place, layout));
        }
    }

    /// A message of the service's. False: the link ends.
    fn hear(&mut self, ticket: u64, steps: &mut Steps<'_>) -> bool {
        let told = match steps.byte() % 8 {
            0 => Answer::Done,
            1 => Answer::Executed { failures: Vec::new() },
            2 => Answer::Committed { id: u64::from(steps.byte()) },
            3 | 4 => {
                let (model, which) = (u64::from(steps.byte() % 4), steps.below(3));
                Answer::Loaded { model, description: description(which) }
            }
            5 => Answer::Failed(CommitFault::Busy),
            6 => {
                let ats = steps.bytes();
                let failures = ats.into_iter().map(|at| (at.into(), CommitFault::Panicked));
                Answer::Executed { failures: failures.collect() }
            }
            _ => {
                let mut bytes = steps.bytes();
                if let Some(at) = bytes.get_mut(8..16) {
                    at.copy_from_slice(&ticket.to_le_bytes());
                }
                let Ok((_, told)) = Answer::decode(&bytes) else { return false };
                told
            }
        };
        if told == (Answer::Executed { failures: Vec::new() })
            && steps.byte() % 2 == 0
            && self.book.finish(ticket)
        {
            self.asked.retain(|asked| asked.ticket != ticket);
            return true;
        }
        let answered = self.book.answer(ticket, told);
        let open = self.asked.iter().position(|asked| asked.ticket == ticket);
        if answered.is_err() {
            // The link is over, and with it whatever this was to answer.
            open.into_iter().for_each(|open| self.asked[open].abandoned = true);
            return false;
        }
        self.asked.swap_remove(open.expect("an answer is one to what was asked, and the only one"));
        true
    }

    fn step(&mut self, steps: &mut Steps<'_>) -> bool {
        let any = self.tickets.get(steps.below(self.tickets.len())).copied();
        let ticket = any.unwrap_or(u64::from(steps.byte()));
        match steps.byte() % 20 {
            which @ 0..10 => drop(self.act(which.into(), steps)),
            10 => self.ask(What::Load, Vec::new(), None),
            11 => self.take(ticket),
            12 => {
                self.book.abandon(ticket);
                let mut open = self.asked.iter_mut().filter(|asked| asked.ticket == ticket);
                open.by_ref().for_each(|asked| asked.abandoned = true);
            }
            13 => {
                self.book.unask(ticket);
                self.asked.retain(|asked| asked.ticket != ticket);
            }
            _ => return self.hear(ticket, steps),
        }
        true
    }

    /// That each session stands as what was asked of it says.
    fn check(&mut self) {
        for (place, _) in &self.users {
            let Ok((seat, layout)) = self.book.seat(*place) else { continue };
            let state = seat.session.state(&layout.description, |_| true);
            let open = self.asked.iter().filter(|asked| asked.places.contains(place));
            let (transit, running): (Vec<_>, Vec<_>) =
                open.map(|asked| asked.meanwhile).partition(Option::is_some);
            assert!(transit.len() <= 1 && running.len() <= 1, "{transit:?}");
            match transit.first() {
                Some(due) => assert_eq!(Some(state), *due),
                None => {
                    let committed =
                        matches!(state, SessionState::Committed | SessionState::Executing);
                    assert_eq!(committed, seat.session.id().is_some());
                    assert!(!committed || (state == SessionState::Executing) != running.is_empty());
                }
            }
        }
    }
}

/// What a client makes of answers that are whatever the input says, while its user does what he likes.
pub fn book(input: &[u8]) {
    let (mut steps, mut customer) = (Steps(input), Customer::default());
    while !steps.0.is_empty() && customer.step(&mut steps) {
        customer.check();
    }
    customer.book.over = Some(ErrorKind::PeerClosed);
    let waiting = customer.asked.iter().filter(|asked| !asked.abandoned);
    let waiting: Vec<u64> = waiting.map(|asked| asked.ticket).collect();
    waiting.into_iter().for_each(|ticket| customer.take(ticket));
    if customer.asked.is_empty() {
        customer.check();
    }
}
