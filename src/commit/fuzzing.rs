//! The entry points of fuzz targets: the messages, and the state that a client makes of answers.

use std::sync::{Arc, Weak};

use crate::commit::buffer::{Handle, Piece};
use crate::commit::client::SessionState;
use crate::commit::client::state::{ClientState, Pending, Reply, SessionKey};
use crate::commit::description::{BufferInfo, Description, Layout, RegionInfo};
use crate::commit::wire::message::{self, Answer, Request};
use crate::error::{CommitFault, Direction, ErrorKind, Result};
use crate::shm::Bytes;
use crate::tensor::DType;

/// Decodes a message of either side. A message that is valid is encoded as it was read.
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
        // An unknown code is passed on as text, and stays text.
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

/// Checks that every buffer of a consistent description is found, and lies in its region.
fn is_sound(layout: &Layout) {
    let description = layout.description();
    for (at, buffer) in description.buffers.iter().enumerate() {
        assert_eq!(layout.position(buffer.direction, buffer.index), Ok(at));
        let first = description.labelled(&buffer.label);
        assert!(first.is_ok_and(|first| first <= at) || buffer.label.is_empty());
        let region = description.region(buffer.region).unwrap();
        assert!(buffer.offset.checked_add(buffer.size).unwrap() <= region.size);
    }
}

/// An input that is read from its start. Behind its end it is zero.
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

/// Returns one of three descriptions: an input and an output; these, two inputs that share a region, and an ext buffer;
/// or nothing.
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

/// A request under way: the sessions that it is about, and their state meanwhile.
struct UnderWay {
    ticket: u64,
    sessions: Vec<SessionKey>,
    meanwhile: Option<SessionState>,
    abandoned: bool,
}

/// A session handle of a user: its key, and the layout of its model.
type User = (SessionKey, Arc<Layout>);

#[derive(Default)]
struct Driver {
    state: ClientState,
    under_way: Vec<UnderWay>,
    /// Every ticket that a request has had.
    tickets: Vec<u64>,
    users: Vec<User>,
    /// The connection has ended.
    ended: bool,
}

impl Driver {
    fn user(&self, steps: &mut Steps<'_>) -> Option<User> {
        self.users.get(steps.below(self.users.len())).cloned()
    }

    fn begin(
        &mut self,
        request: Pending,
        sessions: Vec<SessionKey>,
        meanwhile: Option<SessionState>,
    ) {
        let ticket = self.state.begin(request).unwrap();
        self.note(ticket, sessions, meanwhile);
    }

    fn note(&mut self, ticket: u64, sessions: Vec<SessionKey>, meanwhile: Option<SessionState>) {
        assert!(!self.tickets.contains(&ticket), "a ticket is used once");
        self.tickets.push(ticket);
        self.under_way.push(UnderWay { ticket, sessions, meanwhile, abandoned: false });
    }

    /// A call of a user on a session.
    fn call(&mut self, which: usize, steps: &mut Steps<'_>) -> Result<()> {
        let Some((key, layout)) = self.user(steps) else { return Ok(()) };
        let piece = |steps: &mut Steps<'_>| {
            let (root, len) = (u64::from(steps.byte() % 4), [3, 4, 8, 16][steps.below(4)]);
            let (root_len, offset) = ([len, 16][steps.below(2)], 4 * u64::from(steps.byte() % 4));
            Piece { root, root_len, offset, len }
        };
        let buffers = layout.description().buffers.len();
        let buffer = Weak::<Handle>::new;
        match which {
            0 if buffers > 0 => {
                let (at, piece) = (steps.below(buffers), piece(steps));
                let (session, layout) = self.state.session(key)?;
                session.machine.set(layout.description(), at, piece, buffer())?;
            }
            1 => {
                let (region, piece) = (steps.byte() % 5, piece(steps));
                let (session, layout) = self.state.session(key)?;
                session.machine.set_region(layout.description(), region.into(), piece, buffer())?;
            }
            2 => {
                // A buffer of the right length, for every region.
                let (session, layout) = self.state.session(key)?;
                for (region, info) in (0..).zip(&layout.description().regions) {
                    let piece = Piece { root: 9, root_len: info.size, offset: 0, len: info.size };
                    session.machine.set_region(layout.description(), region, piece, buffer())?;
                }
            }
            3 => {
                let (session, layout) = self.state.session(key)?;
                let before = (steps.byte() & 1 == 1).then(|| Box::new(session.machine.clone()));
                session.machine.begin_commit(layout.description(), |_| true)?;
                let request = Pending::Commit { session: key, keep: Vec::new(), before };
                self.begin(request, vec![key], Some(SessionState::Committing));
            }
            4 => {
                let (_, ticket) = self.state.begin_execution(key)?;
                self.note(ticket, vec![key], None);
            }
            5 => {
                let (sessions, _) = self.state.begin_all(key.model)?;
                self.begin(Pending::ExecuteAll { sessions: sessions.clone() }, sessions, None);
            }
            6 if buffers > 0 => {
                let pieces = (0..steps.below(3))
                    .map(|_| (steps.below(buffers), piece(steps), buffer()))
                    .collect();
                let (session, layout) = self.state.session(key)?;
                let (_, update) = session.machine.begin_update(layout.description(), pieces)?;
                let (session, update, keep) = (key, Box::new(update), Vec::new());
                let request = Pending::Update { session, update, keep };
                self.begin(request, vec![key], Some(SessionState::Updating));
            }
            7 => {
                let id = self.state.session(key)?.0.machine.begin_release()?;
                let request = Pending::Release { session: key, id };
                self.begin(request, vec![key], Some(SessionState::Releasing));
            }
            8 => {
                self.state.begin_close(key.model)?;
                self.begin(Pending::Close { model: key.model }, Vec::new(), None);
            }
            9 => {
                let count = steps.byte() % 4;
                let generation = self.state.replace_sessions(key.model, count.into())?;
                for index in 0..count.into() {
                    let key = SessionKey { model: key.model, index, generation };
                    self.users.push((key, layout.clone()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the outcome of a request, if there is one.
    fn take(&mut self, ticket: u64) {
        let open = self.under_way.iter().position(|request| request.ticket == ticket);
        let over = self.ended;
        let Some(outcome) = self.state.take(ticket) else {
            return assert!(!over, "the end is an outcome");
        };
        if let Some(open) = open {
            assert!(over, "the request is under way");
            self.under_way.swap_remove(open);
        }
        if let Ok(Reply::Loaded { key, layout, .. }) = outcome {
            is_sound(&layout);
            let key = SessionKey { model: key, index: 0, generation: 0 };
            self.users.push((key, layout));
        }
    }

    /// Handles a message of the server. False: the link ends.
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
            && self.state.finish(ticket)
        {
            self.under_way.retain(|request| request.ticket != ticket);
            return true;
        }
        let answered = self.state.answer(ticket, told);
        let open = self.under_way.iter().position(|request| request.ticket == ticket);
        if answered.is_err() {
            // The link has ended, and with it the request that this was to answer.
            open.into_iter().for_each(|open| self.under_way[open].abandoned = true);
            return false;
        }
        self.under_way
            .swap_remove(open.expect("an answer is the first one to a request under way"));
        true
    }

    fn step(&mut self, steps: &mut Steps<'_>) -> bool {
        let any = self.tickets.get(steps.below(self.tickets.len())).copied();
        let ticket = any.unwrap_or(u64::from(steps.byte()));
        match steps.byte() % 20 {
            which @ 0..10 => drop(self.call(which.into(), steps)),
            10 => self.begin(Pending::Load, Vec::new(), None),
            11 => self.take(ticket),
            12 => {
                self.state.abandon(ticket);
                let mut open = self.under_way.iter_mut().filter(|request| request.ticket == ticket);
                open.by_ref().for_each(|request| request.abandoned = true);
                // The handle of a load that was abandoned is nobody's.
                if let Some((ticket, _)) = self.state.begin_close_of_unused() {
                    self.note(ticket, Vec::new(), None);
                    let open = self.under_way.last_mut();
                    open.into_iter().for_each(|request| request.abandoned = true);
                }
            }
            13 => {
                self.state.cancel(ticket);
                self.under_way.retain(|request| request.ticket != ticket);
            }
            _ => return self.hear(ticket, steps),
        }
        true
    }

    /// Checks that the state of each session agrees with the requests under way.
    fn check(&mut self) {
        for (key, _) in &self.users {
            let Ok((session, layout)) = self.state.session(*key) else { continue };
            let state = session.machine.state(layout.description(), |_| true);
            let open = self.under_way.iter().filter(|request| request.sessions.contains(key));
            let (transit, running): (Vec<_>, Vec<_>) =
                open.map(|request| request.meanwhile).partition(Option::is_some);
            assert!(transit.len() <= 1 && running.len() <= 1, "{transit:?}");
            match transit.first() {
                Some(due) => assert_eq!(Some(state), *due),
                None => {
                    let committed =
                        matches!(state, SessionState::Committed | SessionState::Executing);
                    assert_eq!(committed, session.machine.id().is_some());
                    assert!(!committed || (state == SessionState::Executing) != running.is_empty());
                }
            }
        }
    }
}

/// Drives a client's state by any answers and any calls of its user.
pub fn client_state(input: &[u8]) {
    let (mut steps, mut driver) = (Steps(input), Driver::default());
    while !steps.0.is_empty() && driver.step(&mut steps) {
        driver.check();
    }
    driver.state.end(ErrorKind::PeerClosed);
    driver.ended = true;
    let waiting = driver.under_way.iter().filter(|request| !request.abandoned);
    let waiting: Vec<u64> = waiting.map(|request| request.ticket).collect();
    waiting.into_iter().for_each(|ticket| driver.take(ticket));
    if driver.under_way.is_empty() {
        driver.check();
    }
}
