//! Random calls of a client to a real service, compared with a model of both.

use std::collections::HashMap;

use proptest::prelude::*;
use slipring::commit::{
    Buffer, Client, CommitFault, Direction, Model, ServerOptions, Session, SessionState,
};
use slipring::{Error, ErrorKind};

use crate::support::service::Stage;

const SESSIONS: usize = 3;
const BUFFERS: usize = 5;

/// A call. Positions in lists name sessions and buffers.
#[derive(Debug, Clone, Copy)]
enum Call {
    Write { buffer: usize, value: u8 },
    Replace { buffer: usize },
    Set { session: usize, output: bool, buffer: usize },
    SetAll { session: usize, x: usize, y: usize },
    Commit { session: usize },
    Update { session: usize, output: bool, buffer: usize },
    Execute { session: usize },
    ExecuteAll,
    Release { session: usize },
    Renew,
    Reload,
}

fn call() -> impl Strategy<Value = Call> {
    let (session, buffer) = (|| 0..SESSIONS, || 0..BUFFERS);
    let output = any::<bool>;
    prop_oneof![
        2 => (buffer(), 11..15u8).prop_map(|(buffer, value)| Call::Write { buffer, value }),
        1 => buffer().prop_map(|buffer| Call::Replace { buffer }),
        3 => (session(), output(), buffer())
            .prop_map(|(session, output, buffer)| Call::Set { session, output, buffer }),
        3 => (session(), buffer(), buffer()).prop_map(|(session, x, y)| Call::SetAll { session, x, y }),
        6 => session().prop_map(|session| Call::Commit { session }),
        3 => (session(), output(), buffer())
            .prop_map(|(session, output, buffer)| Call::Update { session, output, buffer }),
        5 => session().prop_map(|session| Call::Execute { session }),
        2 => Just(Call::ExecuteAll),
        3 => session().prop_map(|session| Call::Release { session }),
        1 => Just(Call::Renew),
        1 => Just(Call::Reload),
    ]
}

/// The reason why a call fails, as far as the model knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Incomplete,
    Overlap,
    AlreadyCommitted,
    NotCommitted,
    Refused,
}

fn wrong(error: &Error) -> Wrong {
    match error.kind() {
        ErrorKind::Commit(CommitFault::Incomplete { .. }) => Wrong::Incomplete,
        ErrorKind::Commit(CommitFault::Overlap { .. }) => Wrong::Overlap,
        ErrorKind::Commit(CommitFault::AlreadyCommitted { .. }) => Wrong::AlreadyCommitted,
        ErrorKind::Commit(CommitFault::NotCommitted) => Wrong::NotCommitted,
        ErrorKind::Commit(CommitFault::Refused { .. }) => Wrong::Refused,
        other => panic!("{other:?}"),
    }
}

/// A session: input and output as set and as committed. Numbers name buffers.
#[derive(Debug, Clone, Copy, Default)]
struct ExpectedSession {
    set: [Option<usize>; 2],
    committed: Option<[usize; 2]>,
}

/// The expected state of client and service.
#[derive(Debug, Default)]
struct Expected {
    sessions: [ExpectedSession; SESSIONS],
    /// The number of each buffer that exists, and the bytes of all that ever existed.
    buffers: [usize; BUFFERS],
    bytes: HashMap<usize, u8>,
    last: usize,
    executions: u64,
}

impl Expected {
    fn fresh(&mut self, buffer: usize) {
        self.last += 1;
        self.buffers[buffer] = self.last;
        self.bytes.insert(self.last, 0);
    }

    fn is_set(&self, session: usize) -> [bool; 2] {
        self.sessions[session]
            .set
            .map(|set| set.is_some_and(|number| self.buffers.contains(&number)))
    }

    /// Returns whether the memory of an output would be part of another region.
    fn overlaps(&self, session: usize, [x, y]: [usize; 2]) -> bool {
        let others = (0..SESSIONS).filter(|other| *other != session);
        x == y
            || others
                .filter_map(|other| self.sessions[other].committed)
                .any(|[input, output]| y == input || y == output || x == output)
    }

    fn execute(&mut self, session: usize) -> Result<(), Wrong> {
        let [x, y] = self.sessions[session].committed.ok_or(Wrong::NotCommitted)?;
        let byte = self.bytes[&x].wrapping_add(1);
        self.bytes.insert(y, byte);
        self.executions += 1;
        Ok(())
    }

    fn call(&mut self, call: Call) -> Result<(), Wrong> {
        match call {
            Call::Write { buffer, value } => {
                self.bytes.insert(self.buffers[buffer], value);
            }
            Call::Replace { buffer } => self.fresh(buffer),
            Call::Set { session, output, buffer } => {
                let session = &mut self.sessions[session];
                if session.committed.is_some() {
                    return Err(Wrong::AlreadyCommitted);
                }
                session.set[usize::from(output)] = Some(self.buffers[buffer]);
            }
            Call::SetAll { session, x, y } => {
                let session = &mut self.sessions[session];
                if session.committed.is_some() {
                    return Err(Wrong::AlreadyCommitted);
                }
                session.set = [Some(self.buffers[x]), Some(self.buffers[y])];
            }
            Call::Commit { session } => {
                if self.sessions[session].committed.is_some() {
                    return Err(Wrong::AlreadyCommitted);
                }
                let (true, [Some(x), Some(y)]) =
                    (self.is_set(session) == [true; 2], self.sessions[session].set)
                else {
                    return Err(Wrong::Incomplete);
                };
                if self.overlaps(session, [x, y]) {
                    return Err(Wrong::Overlap);
                }
                self.sessions[session].committed = Some([x, y]);
            }
            Call::Update { session, output, buffer } => {
                let mut new = self.sessions[session].committed.ok_or(Wrong::NotCommitted)?;
                new[usize::from(output)] = self.buffers[buffer];
                if self.overlaps(session, new) {
                    return Err(Wrong::Overlap);
                }
                if self.bytes[&new[0]] == 13 {
                    return Err(Wrong::Refused);
                }
                let session = &mut self.sessions[session];
                session.committed = Some(new);
                session.set[usize::from(output)] = Some(self.buffers[buffer]);
            }
            Call::Execute { session } => self.execute(session)?,
            Call::ExecuteAll => {
                let committed = |session: &usize| self.sessions[*session].committed.is_some();
                let all: Vec<usize> = (0..SESSIONS).filter(committed).collect();
                if all.is_empty() {
                    return Err(Wrong::NotCommitted);
                }
                all.into_iter().try_for_each(|session| self.execute(session))?;
            }
            Call::Release { session } => {
                self.sessions[session].committed.take().ok_or(Wrong::NotCommitted)?;
            }
            Call::Renew => {
                if self.sessions.iter().any(|session| session.committed.is_some()) {
                    return Err(Wrong::AlreadyCommitted);
                }
                self.sessions = Default::default();
            }
            Call::Reload => self.sessions = Default::default(),
        }
        Ok(())
    }
}

/// The client and its service.
struct Real {
    client: Client,
    model: Model,
    sessions: Vec<Session>,
    buffers: Vec<Buffer>,
}

fn load(client: &Client) -> Result<(Model, Vec<Session>), Error> {
    let model = client.load(b"echo")?;
    let sessions = model.sessions(SESSIONS as u32)?;
    Ok((model, sessions))
}

fn direction(output: bool) -> Direction {
    if output { Direction::Out } else { Direction::In }
}

impl Real {
    fn call(&mut self, call: Call) -> Result<(), Error> {
        let Self { client, model, sessions, buffers } = self;
        match call {
            Call::Write { buffer, value } => buffers[buffer].write_at(0, &[value; 8]),
            Call::Replace { buffer } => {
                buffers[buffer] = Buffer::alloc(8)?;
                Ok(())
            }
            Call::Set { session, output, buffer } => {
                sessions[session].set(direction(output), 0, &buffers[buffer])
            }
            Call::SetAll { session, x, y } => {
                sessions[session].set_all(&[&buffers[x], &buffers[y]])
            }
            Call::Commit { session } => sessions[session].commit().map(drop),
            Call::Update { session, output, buffer } => {
                sessions[session].update(&[(direction(output), 0, &buffers[buffer])])
            }
            Call::Execute { session } => sessions[session].execute(),
            Call::ExecuteAll => {
                model.execute_all()?.into_iter().try_for_each(|(_, outcome)| outcome)
            }
            Call::Release { session } => sessions[session].release(),
            Call::Renew => {
                *sessions = model.sessions(SESSIONS as u32)?;
                Ok(())
            }
            Call::Reload => {
                model.close()?;
                (*model, *sessions) = load(client)?;
                Ok(())
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_calls_are_answered_as_the_model_answers(
        calls in proptest::collection::vec(call(), 0..80),
    ) {
        let stage = Stage::with(ServerOptions::new().workers(2));
        let client = stage.client();
        let (model, sessions) = load(&client).unwrap();
        let buffers = (0..BUFFERS).map(|_| Buffer::alloc(8).unwrap()).collect();
        let mut real = Real { client, model, sessions, buffers };
        let mut expected = Expected::default();
        (0..BUFFERS).for_each(|buffer| expected.fresh(buffer));
        for call in calls {
            let due = expected.call(call);
            let is = real.call(call).map_err(|error| wrong(&error));
            prop_assert_eq!(is, due, "{:?} in {:?}", call, expected);
            for (buffer, number) in real.buffers.iter().zip(expected.buffers) {
                prop_assert_eq!(buffer.to_vec().unwrap(), vec![expected.bytes[&number]; 8]);
            }
            for (at, session) in real.sessions.iter().enumerate() {
                let state = match (expected.sessions[at].committed, expected.sessions[at].set) {
                    (Some(_), _) => SessionState::Committed,
                    (None, [None, None]) => SessionState::Empty,
                    _ if expected.is_set(at) == [true; 2] => SessionState::Complete,
                    _ => SessionState::Partial,
                };
                prop_assert_eq!(session.state().unwrap(), state, "after {:?}", call);
            }
            let commits = expected.sessions.iter().flat_map(|session| session.committed).count();
            let stats = stage.server.stats();
            prop_assert_eq!((stats.clients, stats.models, stats.commits), (1, 1, commits));
            prop_assert_eq!((stats.mappings, stats.descriptors), (2 * commits, 0));
            prop_assert_eq!((stats.executions, stats.failures), (expected.executions, 0));
        }
    }
}
