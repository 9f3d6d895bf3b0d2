//! What a client knows: its models, their sessions, and the requests under way. No I/O.
//!
//! 1. A failed request changes nothing.
//! 2. A request begins with a ticket, and the answer that repeats the ticket ends it. Tickets are never used twice.
//! 3. A model that nobody has a handle of is unloaded, as soon as the request for it can be sent.

use std::sync::{Arc, Weak};

use crate::commit::buffer::Handle;
use crate::commit::client::machine::{SessionMachine, Update};
use crate::commit::description::{Description, Layout};
use crate::commit::slots::Slots;
use crate::commit::wire::message::Answer;
use crate::error::{CommitFault, Error, ErrorKind, Fault, Result};

/// The buffers that a commit keeps alive, with their regions, which ascend.
pub(in crate::commit) type KeptBuffers = Vec<(u32, Arc<Handle>)>;

/// A session, and the buffers that its commit keeps alive.
#[derive(Debug)]
pub(in crate::commit) struct SessionEntry {
    pub machine: SessionMachine<Weak<Handle>>,
    kept: KeptBuffers,
}

impl SessionEntry {
    fn new(description: &Description) -> Self {
        Self { machine: SessionMachine::new(description), kept: Vec::new() }
    }

    /// Keeps the new buffers of some regions, and lets go of those that they replace.
    fn replace(&mut self, keep: KeptBuffers) {
        for (region, buffer) in keep {
            match self.kept.binary_search_by_key(&region, |(region, _)| *region) {
                Ok(at) => self.kept[at].1 = buffer,
                Err(at) => self.kept.insert(at, (region, buffer)),
            }
        }
    }
}

/// Returns whether the user still has a buffer. A commit may keep one that the user has released.
pub(super) fn exists(buffer: &Weak<Handle>) -> bool {
    buffer.upgrade().is_some_and(|buffer| !buffer.is_released())
}

/// A model that is loaded.
#[derive(Debug)]
struct ModelEntry {
    layout: Arc<Layout>,
    sessions: Vec<SessionEntry>,
    /// Counts how often the sessions were replaced.
    generation: u32,
    closed: bool,
}

/// Names a session of one generation of a model's sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commit) struct SessionKey {
    /// The key of the model.
    pub model: u64,
    pub index: u32,
    pub generation: u32,
}

/// A request other than the execution of one session.
#[derive(Debug)]
pub(in crate::commit) enum Pending {
    Load,
    Commit {
        session: SessionKey,
        keep: KeptBuffers,
        /// The session before automatic ext buffers were set.
        before: Option<Box<SessionMachine<Weak<Handle>>>>,
    },
    Update {
        session: SessionKey,
        update: Box<Update<Weak<Handle>>>,
        keep: KeptBuffers,
    },
    ExecuteAll {
        sessions: Vec<SessionKey>,
    },
    Release {
        session: SessionKey,
        id: u64,
    },
    Close {
        model: u64,
    },
}

/// The answer to a request that went well.
#[derive(Debug)]
pub(in crate::commit) enum Reply {
    Loaded {
        /// The client's name of the model: the ticket of the load, which is unique whatever the server answers.
        key: u64,
        /// The server's id of the model.
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

type Outcome = Result<Reply, CommitFault>;

/// A request under way, or its outcome. Small, since every execution moves it.
#[derive(Debug)]
enum Ticketed {
    /// An execution of one session is under way.
    Executing {
        session: SessionKey,
        /// Nobody will take the outcome.
        abandoned: bool,
    },
    /// An execution of one session went well.
    Executed,
    Other(Box<Other>),
}

#[derive(Debug)]
struct Other {
    /// `None`: the answer has come.
    request: Option<Pending>,
    /// Nobody will take the outcome.
    abandoned: bool,
    outcome: Option<Outcome>,
}

/// The state of one client.
#[derive(Debug, Default)]
pub(in crate::commit) struct ClientState {
    /// Models by their keys. They are few.
    models: Vec<(u64, ModelEntry)>,
    /// Requests by their tickets.
    requests: Slots<Ticketed>,
    /// The number of the last ticket.
    last: u64,
    /// The error that the connection ended with.
    ended: Option<ErrorKind>,
    /// Models that nobody has a handle of, and whose server has not been asked to unload them: the key and the server's id.
    unused: Vec<(u64, u64)>,
}

impl ClientState {
    /// Notes that nobody has a handle of a model, which the server is to unload.
    pub(super) fn is_unused(&mut self, key: u64, id: u64) {
        self.unused.push((key, id));
    }

    /// Returns whether the server must be asked to unload a model without handles.
    #[inline]
    pub(super) fn has_unused(&self) -> bool {
        !self.unused.is_empty()
    }

    /// Begins to close a model that nobody has a handle of. Returns the ticket, whose outcome nobody takes, and the server's id
    /// of the model. If the request cannot be sent, the caller [cancels](Self::cancel) it, and notes the model once more.
    pub(in crate::commit) fn begin_close_of_unused(&mut self) -> Option<(u64, (u64, u64))> {
        let (key, id) = self.unused.pop()?;
        if self.begin_close(key).is_err() {
            return self.begin_close_of_unused();
        }
        match self.begin(Pending::Close { model: key }) {
            Ok(ticket) => {
                self.abandon(ticket);
                Some((ticket, (key, id)))
            }
            Err(_) => {
                self.is_unused(key, id);
                None
            }
        }
    }

    /// Returns the error that the connection ended with.
    pub(super) fn ended(&self) -> Option<&ErrorKind> {
        self.ended.as_ref()
    }

    /// The connection has ended. Only the first error counts.
    pub(in crate::commit) fn end(&mut self, kind: ErrorKind) {
        self.ended.get_or_insert(kind);
    }

    /// Begins a request, and returns its ticket.
    pub(in crate::commit) fn begin(&mut self, request: Pending) -> Result<u64> {
        self.last += 1;
        match self.requests.reserve(self.last) {
            Some(ticket) => {
                let other = Other { request: Some(request), abandoned: false, outcome: None };
                self.requests.put(ticket, Ticketed::Other(Box::new(other)));
                Ok(ticket)
            }
            None => {
                let _ = self.settle(request, Err(CommitFault::Busy));
                Err(CommitFault::Busy.into())
            }
        }
    }

    /// Begins an execution of one session. Returns the commit's id, and the ticket.
    #[inline]
    pub(in crate::commit) fn begin_execution(&mut self, session: SessionKey) -> Result<(u64, u64)> {
        let id = self.session(session)?.0.machine.begin_execution()?;
        self.last += 1;
        match self.requests.reserve(self.last) {
            Some(ticket) => {
                self.requests.put(ticket, Ticketed::Executing { session, abandoned: false });
                Ok((id, ticket))
            }
            None => {
                self.end_execution(session);
                Err(CommitFault::Busy.into())
            }
        }
    }

    /// Cancels a request that could not be sent.
    pub(in crate::commit) fn cancel(&mut self, ticket: u64) {
        match self.requests.remove(ticket) {
            Ok(Ticketed::Executing { session, .. }) => self.end_execution(session),
            Ok(Ticketed::Other(other)) => {
                if let Some(request) = other.request {
                    let _ = self.settle(request, Err(CommitFault::Busy));
                }
            }
            Ok(Ticketed::Executed) | Err(_) => {}
        }
    }

    /// Returns whether the answer has come.
    #[inline]
    pub(super) fn is_answered(&self, ticket: u64) -> bool {
        match self.requests.get(ticket) {
            Ok(Ticketed::Executed) => true,
            Ok(Ticketed::Other(other)) => other.outcome.is_some(),
            Ok(Ticketed::Executing { .. }) | Err(_) => false,
        }
    }

    /// Takes the answer if it has come, or the end of the connection.
    #[inline]
    pub(in crate::commit) fn take(&mut self, ticket: u64) -> Option<Result<Reply>> {
        if self.is_answered(ticket) {
            match self.requests.remove(ticket) {
                Ok(Ticketed::Executed) => {
                    return Some(Ok(Reply::Executed { failures: Vec::new() }));
                }
                Ok(Ticketed::Other(other)) => {
                    return other.outcome.map(|outcome| outcome.map_err(Error::from));
                }
                Ok(Ticketed::Executing { .. }) | Err(_) => {}
            }
        }
        let ended = self.ended.clone()?;
        self.cancel(ticket);
        Some(Err(ended.into()))
    }

    /// Ends an execution of one session that went well, for a caller that takes the outcome at once. False: no such
    /// execution is under way.
    #[inline]
    pub(in crate::commit) fn finish(&mut self, ticket: u64) -> bool {
        let Ok(Ticketed::Executing { session, abandoned: false }) = self.requests.get(ticket)
        else {
            return false;
        };
        let session = *session;
        self.end_execution(session);
        self.requests.remove(ticket).is_ok()
    }

    /// Nobody will take the outcome of this request.
    pub(in crate::commit) fn abandon(&mut self, ticket: u64) {
        match self.requests.get_mut(ticket) {
            Some(Ticketed::Executing { abandoned, .. }) => *abandoned = true,
            Some(Ticketed::Other(other)) if other.outcome.is_none() => other.abandoned = true,
            // The answer has come.
            _ => {
                if let Ok(Ticketed::Other(other)) = self.requests.remove(ticket) {
                    self.forget(other.outcome);
                }
            }
        }
    }

    /// Nobody has taken this outcome: a model that was loaded is unused.
    fn forget(&mut self, outcome: Option<Outcome>) {
        if let Some(Ok(Reply::Loaded { key, model, .. })) = outcome {
            self.is_unused(key, model);
        }
    }

    /// Handles an answer of the server.
    ///
    /// # Errors
    ///
    /// [`Fault`]: no request is under way that it could answer.
    pub(in crate::commit) fn answer(&mut self, ticket: u64, answer: Answer) -> Result<(), Fault> {
        let lie = Fault::Field { field: "commit.ticket", value: ticket };
        let (outcome, abandoned) = match self.requests.get_mut(ticket).ok_or(lie)? {
            Ticketed::Executed => return Err(lie),
            Ticketed::Executing { session, abandoned } => {
                let (session, abandoned) = (*session, *abandoned);
                let outcome = execution_outcome(answer).ok_or(lie)?;
                self.end_execution(session);
                (outcome, abandoned)
            }
            Ticketed::Other(other) => {
                let (request, abandoned) = (other.request.take().ok_or(lie)?, other.abandoned);
                let outcome = request_outcome(ticket, &request, answer).ok_or(lie)?;
                let outcome = outcome.map_err(|fault| match &request {
                    // The server may handle a close before a commit that was sent before it.
                    Pending::Commit { session, .. } => {
                        self.session(*session).err().unwrap_or(fault)
                    }
                    _ => fault,
                });
                (self.settle(request, outcome), abandoned)
            }
        };
        if abandoned {
            drop(self.requests.remove(ticket));
            self.forget(Some(outcome));
        } else if let Some(entry) = self.requests.get_mut(ticket) {
            *entry = match (&*entry, outcome) {
                (Ticketed::Executing { .. }, Ok(_)) => Ticketed::Executed,
                (_, outcome) => {
                    let outcome = Some(outcome);
                    Ticketed::Other(Box::new(Other { request: None, abandoned, outcome }))
                }
            };
        }
        Ok(())
    }

    /// Applies the outcome of a request, and returns it.
    fn settle(&mut self, request: Pending, outcome: Outcome) -> Outcome {
        match request {
            Pending::Load => {
                if let Ok(Reply::Loaded { key, layout, .. }) = &outcome {
                    let sessions = vec![SessionEntry::new(layout.description())];
                    let (layout, generation, closed) = (layout.clone(), 0, false);
                    let model = ModelEntry { layout, sessions, generation, closed };
                    self.models.push((*key, model));
                }
            }
            Pending::Commit { session, keep, before } => {
                if let Some(session) = self.find_session(session) {
                    match &outcome {
                        Ok(Reply::Committed { id }) => {
                            session.machine.end_commit(Some(*id));
                            session.kept = keep;
                        }
                        _ => {
                            session.machine.end_commit(None);
                            if let Some(before) = before {
                                session.machine = *before;
                            }
                        }
                    }
                }
            }
            Pending::Update { session, update, keep } => {
                if let Some(session) = self.find_session(session) {
                    let done = outcome.is_ok();
                    session.machine.end_update(done.then_some(*update));
                    if done {
                        session.replace(keep);
                    }
                }
            }
            Pending::ExecuteAll { sessions } => {
                sessions.into_iter().for_each(|session| self.end_execution(session));
            }
            Pending::Release { session, id } => {
                if let Some(session) = self.find_session(session) {
                    let refused = outcome.is_err().then_some(id);
                    session.machine.end_release(refused);
                    if refused.is_none() {
                        session.kept = Vec::new();
                    }
                }
            }
            Pending::Close { model } => match &outcome {
                Ok(_) => self.models.retain(|(key, _)| *key != model),
                // The request could not be sent.
                Err(_) => {
                    let model = self.models.iter_mut().find(|(key, _)| *key == model);
                    model.into_iter().for_each(|(_, model)| model.closed = false);
                }
            },
        }
        outcome
    }

    #[inline]
    fn end_execution(&mut self, session: SessionKey) {
        if let Some(session) = self.find_session(session) {
            session.machine.end_execution();
        }
    }

    /// Finds a session, also one of a model that is closing.
    fn find_session(&mut self, session: SessionKey) -> Option<&mut SessionEntry> {
        let (_, model) = self.models.iter_mut().find(|(key, _)| *key == session.model)?;
        let is_current = model.generation == session.generation;
        model.sessions.get_mut(session.index as usize).filter(|_| is_current)
    }

    /// Finds a model that is open.
    ///
    /// # Errors
    ///
    /// [`CommitFault::ModelClosed`]
    fn model(&mut self, model: u64) -> Result<&mut ModelEntry, CommitFault> {
        let found = self.models.iter_mut().find(|(key, _)| *key == model);
        let model = found.map(|(_, model)| model).filter(|model| !model.closed);
        model.ok_or(CommitFault::ModelClosed)
    }

    /// Finds a session of a model that is open, and the model's layout.
    ///
    /// # Errors
    ///
    /// [`CommitFault::ModelClosed`], [`CommitFault::StaleSession`]
    pub(in crate::commit) fn session(
        &mut self,
        session: SessionKey,
    ) -> Result<(&mut SessionEntry, &Arc<Layout>), CommitFault> {
        let model = self.model(session.model)?;
        let is_current = model.generation == session.generation;
        let entry = model.sessions.get_mut(session.index as usize).filter(|_| is_current);
        Ok((entry.ok_or(CommitFault::StaleSession)?, &model.layout))
    }

    /// Returns the key of the session of this index.
    ///
    /// # Errors
    ///
    /// [`CommitFault::ModelClosed`], [`CommitFault::UnknownSession`]
    pub(super) fn session_key(
        &mut self,
        model: u64,
        index: u32,
    ) -> Result<SessionKey, CommitFault> {
        let entry = self.model(model)?;
        let count = entry.sessions.len() as u32;
        if index >= count {
            return Err(CommitFault::UnknownSession { index, count });
        }
        Ok(SessionKey { model, index, generation: entry.generation })
    }

    /// Replaces the sessions of a model by `count` empty ones, and returns their generation.
    ///
    /// # Errors
    ///
    /// [`CommitFault::AlreadyCommitted`], [`CommitFault::Busy`]: one of them is in use. All stay.
    pub(in crate::commit) fn replace_sessions(
        &mut self,
        model: u64,
        count: u32,
    ) -> Result<u32, CommitFault> {
        let model = self.model(model)?;
        let in_use = model.sessions.iter().find(|session| !session.machine.is_open());
        if let Some(session) = in_use {
            return Err(match session.machine.id() {
                Some(id) => CommitFault::AlreadyCommitted { id },
                None => CommitFault::Busy,
            });
        }
        model.generation += 1;
        let description = model.layout.description();
        model.sessions = (0..count).map(|_| SessionEntry::new(description)).collect();
        Ok(model.generation)
    }

    /// Marks a model as closed. No request on it can begin.
    pub(in crate::commit) fn begin_close(&mut self, model: u64) -> Result<(), CommitFault> {
        self.model(model)?.closed = true;
        Ok(())
    }

    /// Begins an execution of every session that is committed. Returns the sessions, ascending, and the commits' ids.
    ///
    /// # Errors
    ///
    /// [`CommitFault::NotCommitted`]: none is. [`CommitFault::Busy`]: one of them runs. No execution begins.
    pub(in crate::commit) fn begin_all(
        &mut self,
        model: u64,
    ) -> Result<(Vec<SessionKey>, Vec<u64>), CommitFault> {
        let entry = self.model(model)?;
        let generation = entry.generation;
        let mut begun = Vec::new();
        for (index, session) in (0..).zip(&mut entry.sessions) {
            match session.machine.begin_execution() {
                Ok(id) => begun.push((SessionKey { model, index, generation }, id)),
                Err(CommitFault::NotCommitted) => {}
                Err(fault) => {
                    for (session, _) in begun {
                        entry.sessions[session.index as usize].machine.end_execution();
                    }
                    return Err(fault);
                }
            }
        }
        if begun.is_empty() {
            Err(CommitFault::NotCommitted)
        } else {
            Ok(begun.into_iter().unzip())
        }
    }
}

/// Returns what an answer says about an execution of one session. `None`: it is no answer to one.
fn execution_outcome(answer: Answer) -> Option<Outcome> {
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

/// Returns what an answer says about a request. `None`: it is no answer to this one.
fn request_outcome(ticket: u64, request: &Pending, answer: Answer) -> Option<Outcome> {
    Some(match (request, answer) {
        (Pending::Load, Answer::Loaded { model, description }) => match Layout::new(description) {
            Ok(layout) => Ok(Reply::Loaded { key: ticket, model, layout: Arc::new(layout) }),
            Err(fault) => Err(fault),
        },
        (Pending::Commit { .. }, Answer::Committed { id }) if id != 0 => {
            Ok(Reply::Committed { id })
        }
        (Pending::ExecuteAll { sessions }, Answer::Executed { failures }) => {
            let ascending = failures.windows(2).all(|pair| pair[0].0 < pair[1].0);
            let known = failures.last().is_none_or(|(at, _)| (*at as usize) < sessions.len());
            (ascending && known).then_some(Ok(Reply::Executed { failures }))?
        }
        (
            Pending::Update { .. } | Pending::Release { .. } | Pending::Close { .. },
            Answer::Done,
        ) => Ok(Reply::Done),
        (_, Answer::Failed(fault)) => Err(fault),
        _ => return None,
    })
}
