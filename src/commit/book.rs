//! What a client knows: its models, their sessions, and what it has asked for. No I/O.

use std::sync::{Arc, Weak};

use crate::commit::buffer::Handle;
use crate::commit::description::{Description, Layout};
use crate::commit::ledger::Slots;
use crate::commit::message::Answer;
use crate::commit::state::{Session, Update};
use crate::error::{CommitFault, Error, ErrorKind, Fault, Result};

/// A session, and what its commit keeps.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) session: Session<Weak<Handle>>,
    /// Buffers of the commit.
    pub(super) kept: Vec<Arc<Handle>>,
}

impl Seat {
    fn new(description: &Description) -> Self {
        Self { session: Session::new(description), kept: Vec::new() }
    }
}

/// Whether a buffer that was set is still there: also one that a commit keeps may have been given back.
pub(super) fn is_there(handle: &Weak<Handle>) -> bool {
    handle.upgrade().is_some_and(|handle| !handle.is_released())
}

/// A model that is loaded.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) layout: Arc<Layout>,
    pub(super) seats: Vec<Seat>,
    /// Counts how often the sessions were made anew.
    pub(super) generation: u32,
    pub(super) closed: bool,
}

/// Names a session as it was when its handle was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The key of its model.
    pub(super) model: u64,
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// What is asked for.
#[derive(Debug)]
pub(super) enum What {
    Load,
    Commit {
        place: Place,
        keep: Vec<Arc<Handle>>,
        /// The session as it was before buffers were set for it.
        before: Option<Box<Session<Weak<Handle>>>>,
    },
    Update {
        place: Place,
        update: Box<Update<Weak<Handle>>>,
        keep: Vec<Arc<Handle>>,
    },
    All {
        places: Vec<Place>,
    },
    Release {
        place: Place,
        id: u64,
    },
    Close {
        model: u64,
    },
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Reply {
    Loaded {
        /// What the model is kept under here: the ticket, which is never used twice, whatever the service says.
        key: u64,
        /// What the service calls it.
        model: u64,
        layout: Arc<Layout>,
    },
    Committed {
        id: u64,
    },
    Executed {
        failures: Vec<(u32, CommitFault)>,
    },
    Done,
}

pub(super) type Outcome = Result<Reply, CommitFault>;

/// Something that was asked for. Small: an execution moves it about.
#[derive(Debug)]
enum Waiting {
    /// An execution of one session.
    Runs {
        place: Place,
        /// Nobody will look at the outcome.
        abandoned: bool,
    },
    /// It went well.
    Ran,
    Other(Box<Other>),
}

#[derive(Debug)]
struct Other {
    /// `None`: it was answered.
    what: Option<What>,
    /// Nobody will look at the outcome.
    abandoned: bool,
    outcome: Option<Outcome>,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    /// By key. There are few.
    shelves: Vec<(u64, Shelf)>,
    /// By ticket.
    waiting: Slots<Waiting>,
    last: u64,
    /// What the connection ended with.
    pub(super) over: Option<ErrorKind>,
}

impl Book {
    /// Something is asked for: gives its ticket.
    pub(super) fn ask(&mut self, what: What) -> Result<u64> {
        self.last += 1;
        match self.waiting.reserve(self.last) {
            Some(ticket) => {
                let other = Other { what: Some(what), abandoned: false, outcome: None };
                self.waiting.put(ticket, Waiting::Other(Box::new(other)));
                Ok(ticket)
            }
            None => {
                let _ = self.settle(what, Err(CommitFault::Busy));
                Err(CommitFault::Busy.into())
            }
        }
    }

    /// An execution of one session is asked for: gives the commit's id, and the ticket.
    #[inline]
    pub(super) fn ask_one(&mut self, place: Place) -> Result<(u64, u64)> {
        let id = self.seat(place)?.0.session.start_execution()?;
        self.last += 1;
        match self.waiting.reserve(self.last) {
            Some(ticket) => {
                self.waiting.put(ticket, Waiting::Runs { place, abandoned: false });
                Ok((id, ticket))
            }
            None => {
                self.end_execution(place);
                Err(CommitFault::Busy.into())
            }
        }
    }

    /// It could not be asked: all is as before.
    pub(super) fn unask(&mut self, ticket: u64) {
        match self.waiting.remove(ticket) {
            Ok(Waiting::Runs { place, .. }) => self.end_execution(place),
            Ok(Waiting::Other(other)) => {
                if let Some(what) = other.what {
                    let _ = self.settle(what, Err(CommitFault::Busy));
                }
            }
            Ok(Waiting::Ran) | Err(_) => {}
        }
    }

    /// Whether it was answered.
    #[inline]
    pub(super) fn is_answered(&self, ticket: u64) -> bool {
        match self.waiting.get(ticket) {
            Ok(Waiting::Ran) => true,
            Ok(Waiting::Other(other)) => other.outcome.is_some(),
            Ok(Waiting::Runs { .. }) | Err(_) => false,
        }
    }

    /// The answer to what was asked, if it came; or the end of the connection, if that did.
    #[inline]
    pub(super) fn take(&mut self, ticket: u64) -> Option<Result<Reply>> {
        if self.is_answered(ticket) {
            match self.waiting.remove(ticket) {
                Ok(Waiting::Ran) => return Some(Ok(Reply::Executed { failures: Vec::new() })),
                Ok(Waiting::Other(other)) => {
                    return other.outcome.map(|outcome| outcome.map_err(Error::from));
                }
                Ok(Waiting::Runs { .. }) | Err(_) => {}
            }
        }
        let over = self.over.clone()?;
        self.unask(ticket);
        Some(Err(over.into()))
    }

    /// An execution of one session went well, and whoever waits for it is here. False: there is none of this ticket.
    #[inline]
    pub(super) fn finish(&mut self, ticket: u64) -> bool {
        let Ok(Waiting::Runs { place, abandoned: false }) = self.waiting.get(ticket) else {
            return false;
        };
        let place = *place;
        self.end_execution(place);
        self.waiting.remove(ticket).is_ok()
    }

    /// Nobody will look at what comes of it.
    pub(super) fn abandon(&mut self, ticket: u64) {
        match self.waiting.get_mut(ticket) {
            Some(Waiting::Runs { abandoned, .. }) => *abandoned = true,
            Some(Waiting::Other(other)) if other.outcome.is_none() => other.abandoned = true,
            // Answered, and never to be looked at.
            _ => drop(self.waiting.remove(ticket)),
        }
    }

    /// An answer came.
    ///
    /// # Errors
    ///
    /// [`Fault`]: nothing was asked that it could answer.
    pub(super) fn answer(&mut self, ticket: u64, answer: Answer) -> Result<(), Fault> {
        let lie = Fault::Field { field: "commit.ticket", value: ticket };
        let (outcome, abandoned) = match self.waiting.get_mut(ticket).ok_or(lie)? {
            Waiting::Ran => return Err(lie),
            Waiting::Runs { place, abandoned } => {
                let (place, abandoned) = (*place, *abandoned);
                let outcome = judge_one(answer).ok_or(lie)?;
                self.end_execution(place);
                (outcome, abandoned)
            }
            Waiting::Other(other) => {
                let (what, abandoned) = (other.what.take().ok_or(lie)?, other.abandoned);
                let outcome = judge(ticket, &what, answer).ok_or(lie)?;
                (self.settle(what, outcome), abandoned)
            }
        };
        if abandoned {
            drop(self.waiting.remove(ticket));
        } else if let Some(waiting) = self.waiting.get_mut(ticket) {
            *waiting = match (&*waiting, outcome) {
                (Waiting::Runs { .. }, Ok(_)) => Waiting::Ran,
                (_, outcome) => {
                    let outcome = Some(outcome);
                    Waiting::Other(Box::new(Other { what: None, abandoned, outcome }))
                }
            };
        }
        Ok(())
    }

    /// Notes what came of something.
    fn settle(&mut self, what: What, outcome: Outcome) -> Outcome {
        match what {
            What::Load => {
                if let Ok(Reply::Loaded { key, layout, .. }) = &outcome {
                    let seats = vec![Seat::new(&layout.description)];
                    let (layout, generation, closed) = (layout.clone(), 0, false);
                    let shelf = Shelf { layout, seats, generation, closed };
                    self.shelves.push((*key, shelf));
                }
            }
            What::Commit { place, keep, before } => {
                if let Some(seat) = self.seat_of(place) {
                    match &outcome {
                        Ok(Reply::Committed { id }) => {
                            seat.session.end_commit(Some(*id));
                            seat.kept = keep;
                        }
                        _ => {
                            seat.session.end_commit(None);
                            if let Some(before) = before {
                                seat.session = *before;
                            }
                        }
                    }
                }
            }
            What::Update { place, update, keep } => {
                if let Some(seat) = self.seat_of(place) {
                    let done = outcome.is_ok();
                    seat.session.end_update(done.then_some(*update));
                    if done {
                        seat.kept = keep;
                    }
                }
            }
            What::All { places } => places.into_iter().for_each(|place| self.end_execution(place)),
            What::Release { place, id } => {
                if let Some(seat) = self.seat_of(place) {
                    let refused = outcome.is_err().then_some(id);
                    seat.session.end_release(refused);
                    if refused.is_none() {
                        seat.kept = Vec::new();
                    }
                }
            }
            What::Close { model } => match &outcome {
                Ok(_) => self.shelves.retain(|(id, _)| *id != model),
                // It could not be asked for.
                Err(_) => {
                    let shelf = self.shelves.iter_mut().find(|(id, _)| *id == model);
                    shelf.into_iter().for_each(|(_, shelf)| shelf.closed = false);
                }
            },
        }
        outcome
    }

    fn end_execution(&mut self, place: Place) {
        if let Some(seat) = self.seat_of(place) {
            seat.session.end_execution();
        }
    }

    /// The session of a place, whatever became of its model.
    fn seat_of(&mut self, place: Place) -> Option<&mut Seat> {
        let (_, shelf) = self.shelves.iter_mut().find(|(id, _)| *id == place.model)?;
        let current = shelf.generation == place.generation;
        shelf.seats.get_mut(place.index as usize).filter(|_| current)
    }

    /// A model that is open.
    ///
    /// # Errors
    ///
    /// [`CommitFault::ModelClosed`]
    pub(super) fn shelf(&mut self, model: u64) -> Result<&mut Shelf, CommitFault> {
        let found = self.shelves.iter_mut().find(|(id, _)| *id == model);
        let shelf = found.map(|(_, shelf)| shelf).filter(|shelf| !shelf.closed);
        shelf.ok_or(CommitFault::ModelClosed)
    }

    /// A session of a model that is open, and the model's layout.
    ///
    /// # Errors
    ///
    /// [`CommitFault::ModelClosed`], [`CommitFault::StaleSession`]
    pub(super) fn seat(&mut self, place: Place) -> Result<(&mut Seat, &Arc<Layout>), CommitFault> {
        let shelf = self.shelf(place.model)?;
        let current = shelf.generation == place.generation;
        let seat = shelf.seats.get_mut(place.index as usize).filter(|_| current);
        Ok((seat.ok_or(CommitFault::StaleSession)?, &shelf.layout))
    }

    /// Makes `count` sessions anew.
    ///
    /// # Errors
    ///
    /// [`CommitFault::AlreadyCommitted`], [`CommitFault::Busy`]: one of them is in use. All stay.
    pub(super) fn renew(&mut self, model: u64, count: u32) -> Result<u32, CommitFault> {
        let shelf = self.shelf(model)?;
        if let Some(seat) = shelf.seats.iter().find(|seat| !seat.session.is_open()) {
            return Err(match seat.session.id() {
                Some(id) => CommitFault::AlreadyCommitted { id },
                None => CommitFault::Busy,
            });
        }
        shelf.generation += 1;
        let description = &shelf.layout.description;
        shelf.seats = (0..count).map(|_| Seat::new(description)).collect();
        Ok(shelf.generation)
    }

    /// Starts an execution of every session that is committed: the ids, ascending by session.
    ///
    /// # Errors
    ///
    /// [`CommitFault::NotCommitted`]: none is. [`CommitFault::Busy`]: one of them runs. None is started.
    pub(super) fn start_all(&mut self, model: u64) -> Result<(Vec<Place>, Vec<u64>), CommitFault> {
        let shelf = self.shelf(model)?;
        let generation = shelf.generation;
        let mut started = Vec::new();
        for (index, seat) in (0..).zip(&mut shelf.seats) {
            match seat.session.start_execution() {
                Ok(id) => started.push((Place { model, index, generation }, id)),
                Err(CommitFault::NotCommitted) => {}
                Err(fault) => {
                    for (place, _) in started {
                        shelf.seats[place.index as usize].session.end_execution();
                    }
                    return Err(fault);
                }
            }
        }
        if started.is_empty() {
            Err(CommitFault::NotCommitted)
        } else {
            Ok(started.into_iter().unzip())
        }
    }
}

/// What an answer says about an execution of one session. `None`: it cannot be one.
fn judge_one(answer: Answer) -> Option<Outcome> {
    match answer {
        Answer::Executed { mut failures } => match failures.pop() {
            None => Some(Ok(Reply::Executed { failures })),
            Some((0, fault)) if failures.is_empty() => Some(Err(fault)),
            Some(_) => None,
        },
        Answer::Failed(fault) => Some(Err(fault)),
        _ => None,
    }
}

/// What an answer says about what was asked. `None`: it cannot be one.
fn judge(ticket: u64, what: &What, answer: Answer) -> Option<Outcome> {
    Some(match (what, answer) {
        (What::Load, Answer::Loaded { model, description }) => match Layout::new(description) {
            Ok(layout) => Ok(Reply::Loaded { key: ticket, model, layout: Arc::new(layout) }),
            Err(fault) => Err(fault),
        },
        (What::Commit { .. }, Answer::Committed { id }) if id != 0 => Ok(Reply::Committed { id }),
        (What::All { places }, Answer::Executed { failures }) => {
            let ascending = failures.windows(2).all(|pair| pair[0].0 < pair[1].0);
            let known = failures.last().is_none_or(|(at, _)| (*at as usize) < places.len());
            (ascending && known).then_some(Ok(Reply::Executed { failures }))?
        }
        (What::Update { .. } | What::Release { .. } | What::Close { .. }, Answer::Done) => {
            Ok(Reply::Done)
        }
        (_, Answer::Failed(fault)) => Err(fault),
        _ => return None,
    })
}
