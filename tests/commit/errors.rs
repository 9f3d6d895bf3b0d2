//! Errors change nothing: after each of them the states of client and server are as before, and the next call works.

use slipring::commit::{
    Buffer, Client, CommitFault, Direction, Model, ServerOptions, ServerStats, Session,
    SessionState, Slot, Unset,
};
use slipring::{Error, ErrorKind};

use crate::support::census::{limit_files, shared_bytes};
use crate::support::other::{Other, alone};
use crate::support::raw;
use crate::support::service::Stage;
use crate::support::wait_until;

fn fault<T: std::fmt::Debug>(answer: Result<T, Error>) -> CommitFault {
    match answer.unwrap_err().kind() {
        ErrorKind::Commit(fault) => fault.clone(),
        other => panic!("{other:?}"),
    }
}

/// A session of a model with one input and one output, and its state on both sides.
struct Scene {
    stage: Stage,
    client: Client,
    model: Model,
    session: Session,
    x: Buffer,
    y: Buffer,
}

/// The state of a session at its client, the server's counts, and the calls of the service.
type HealthWord = (SessionState, Option<u64>, Vec<Unset>, ServerStats, [usize; 2]);

impl Scene {
    fn new(name: &str) -> Self {
        Self::with(name, ServerOptions::new().workers(2))
    }

    fn with(name: &str, options: ServerOptions) -> Self {
        let stage = Stage::with(options);
        let client = stage.client();
        let model = client.load(name.as_bytes()).unwrap();
        let session = model.session(0).unwrap();
        let (x, y) = (Buffer::alloc(8).unwrap(), Buffer::alloc(8).unwrap());
        session.set_all(&[&x, &y]).unwrap();
        Self { stage, client, model, session, x, y }
    }

    fn standing(&self) -> HealthWord {
        let Self { session, stage, .. } = self;
        let mut stats = stage.server.stats();
        stats.failures = 0;
        let asked = ["execute", "release"].map(|what| stage.counts.of(what));
        (session.state().unwrap(), session.id().ok(), session.missing().unwrap(), stats, asked)
    }

    /// Checks that a call fails with this fault, and changes nothing.
    fn refuses<T: std::fmt::Debug>(
        &self,
        expected: &CommitFault,
        act: impl FnOnce() -> Result<T, Error>,
    ) {
        let before = self.standing();
        assert_eq!(fault(act()), *expected);
        assert_eq!(self.standing(), before, "after {expected}");
    }

    fn works(&self, seed: u8) {
        self.x.write_at(0, &[seed; 8]).unwrap();
        self.session.execute().unwrap();
        assert_eq!(self.y.to_vec().unwrap(), [seed + 1; 8]);
    }
}

/// What errors call the first buffer of a direction.
fn slot(label: &str, direction: Direction) -> Slot {
    Slot::Buffer { direction, index: 0, label: label.into() }
}

#[test]
fn a_set_that_is_refused_sets_nothing() {
    let scene = Scene::new("echo");
    let Scene { session, x, y, .. } = &scene;
    let nine = Buffer::alloc(9).unwrap();
    let size = |slot| CommitFault::Size { slot, len: 9, expected: 8 };
    let (input, output) = (slot("x", Direction::In), slot("y", Direction::Out));
    let unknown = |direction, index, count| CommitFault::UnknownBuffer { direction, index, count };
    let label = |label: &str| CommitFault::UnknownLabel { label: label.into() };
    for committed in [false, true] {
        scene.refuses(&unknown(Direction::In, 1, 1), || session.set(Direction::In, 1, x));
        scene.refuses(&unknown(Direction::Ext, 0, 0), || session.set(Direction::Ext, 0, x));
        for wrong in ["X", "x ", ""] {
            scene.refuses(&label(wrong), || session.set_by_label(wrong, x));
        }
        if committed {
            let committed = CommitFault::AlreadyCommitted { id: session.id().unwrap() };
            scene.refuses(&committed, || session.set(Direction::In, 0, &nine));
            scene.refuses(&committed, || session.set_by_label("x", x));
            scene.refuses(&committed, || session.set_all(&[x, y]));
            scene.refuses(&committed, || session.set_region(0, x));
            scene.refuses(&committed, || session.allocate_all());
            scene.refuses(&committed, || session.commit());
            scene.refuses(&committed, || session.commit_with_ext());
            scene.refuses(&committed, || scene.model.sessions(2));
        } else {
            scene.refuses(&size(input.clone()), || session.set(Direction::In, 0, &nine));
            scene.refuses(&size(output.clone()), || session.set_by_label("y", &nine));
            scene.refuses(&size(output.clone()), || session.set_all(&[x, &nine]));
            let region = Slot::Region { index: 0 };
            scene.refuses(&size(region), || session.set_region(0, &nine));
            let region = CommitFault::UnknownRegion { index: 2, count: 2 };
            scene.refuses(&region, || session.set_region(2, x));
            let count = |count| CommitFault::Count { count, expected: 2 };
            scene.refuses(&count(1), || session.set_all(&[x]));
            scene.refuses(&count(3), || session.set_all(&[x, y, x]));
            for act in [Session::execute, Session::release] {
                scene.refuses(&CommitFault::NotCommitted, || act(session));
            }
            scene.refuses(&CommitFault::NotCommitted, || session.update(&[]));
            scene.refuses(&CommitFault::NotCommitted, || scene.model.execute_all());
            session.commit().unwrap();
        }
    }
    scene.works(1);
}

#[test]
fn a_commit_that_is_refused_leaves_nothing_and_the_next_one_works() {
    let scene = Scene::with("echo", ServerOptions::new().workers(2).regions(3).commits(4));
    let Scene { session, x, y, .. } = &scene;
    session.set(Direction::Out, 0, x).unwrap();
    let overlap = CommitFault::Overlap { region: 1, other: 0, id: 0 };
    scene.refuses(&overlap, || session.commit());
    session.set(Direction::Out, 0, y).unwrap();
    session.commit().unwrap();
    scene.works(3);
    // The same holds for another session of the client while this one is committed.
    let other = scene.client.load(b"echo").unwrap().session(0).unwrap();
    let buffers = other.allocate_all().unwrap();
    let quota = CommitFault::Quota { what: "regions", used: 2, needed: 2, limit: 3 };
    scene.refuses(&quota, || other.commit());
    other.set(Direction::In, 0, y).unwrap();
    scene.refuses(&quota, || other.commit());
    assert_eq!(other.state().unwrap(), SessionState::Complete);
    scene.works(4);
    session.release().unwrap();
    other.commit().unwrap();
    let held = CommitFault::Quota { what: "regions", used: 2, needed: 2, limit: 3 };
    scene.refuses(&held, || session.commit());
    other.release().unwrap();
    other.set(Direction::In, 0, &buffers[0]).unwrap();
    session.commit().unwrap();
    scene.works(5);
}

#[test]
fn an_update_that_is_refused_leaves_the_old_buffers() {
    let scene = Scene::new("echo");
    let Scene { session, y, .. } = &scene;
    session.commit().unwrap();
    let (nine, unlucky) = (Buffer::alloc(9).unwrap(), Buffer::alloc(8).unwrap());
    unlucky.write_at(0, &[13; 8]).unwrap();
    let size = CommitFault::Size { slot: slot("x", Direction::In), len: 9, expected: 8 };
    let overlap = CommitFault::Overlap { region: 0, other: 1, id: 0 };
    let refused = CommitFault::Refused { code: 0, why: "thirteen".into() };
    for (fault, buffer) in [(size, &nine), (overlap, y), (refused, &unlucky)] {
        scene.refuses(&fault, || session.update(&[(Direction::In, 0, buffer)]));
        scene.works(5);
    }
    let jumpy = Scene::new("jumpy");
    jumpy.session.commit().unwrap();
    let other = Buffer::alloc(8).unwrap();
    let act = || jumpy.session.update(&[(Direction::In, 0, &other)]);
    jumpy.refuses(&CommitFault::Panicked, act);
    jumpy.works(6);
}

#[test]
fn a_service_that_panics_in_a_release_or_unload_leaves_nothing() {
    let scene = Scene::new("jumpy");
    scene.session.commit().unwrap();
    scene.works(1);
    scene.session.release().unwrap();
    assert_eq!(scene.session.state().unwrap(), SessionState::Complete);
    scene.session.commit().unwrap();
    scene.works(2);
    scene.model.close().unwrap();
    assert_eq!(["release", "unload"].map(|what| scene.stage.counts.of(what)), [2, 1]);
    let stats = scene.stage.server.stats();
    assert_eq!((stats.clients, stats.models, stats.commits, stats.mappings), (1, 0, 0, 0));
    let again = scene.client.load(b"echo").unwrap();
    assert_eq!(again.count(Direction::In), 1);
}

#[test]
fn one_failed_execution_of_all_is_one_failed_outcome() {
    let stage = Stage::new();
    let model = stage.client().load(b"thirteen").unwrap();
    let sessions = model.sessions(3).unwrap();
    let buffers: Vec<_> = sessions.iter().map(|session| session.allocate_all().unwrap()).collect();
    for (session, buffers) in sessions.iter().zip(&buffers) {
        session.commit().unwrap();
        buffers[0].write_at(0, &[12 + session.index() as u8; 8]).unwrap();
    }
    let outcomes = model.execute_all().unwrap();
    let refused = CommitFault::Refused { code: 13, why: "thirteen".into() };
    let said: Vec<_> = outcomes.into_iter().map(|(at, outcome)| (at, outcome.err())).collect();
    assert_eq!(said.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(said[0].1.is_none() && said[2].1.is_none());
    assert_eq!(said[1].1.as_ref().unwrap().kind(), &ErrorKind::Commit(refused));
    let bytes = |at: usize| buffers[at][1].to_vec().unwrap();
    assert_eq!([bytes(0), bytes(1), bytes(2)], [vec![13; 8], vec![0; 8], vec![15; 8]]);
    for session in &sessions {
        assert_eq!(session.state().unwrap(), SessionState::Committed);
    }
    let stats = stage.server.stats();
    assert_eq!((stats.executions, stats.failures, stats.commits), (2, 1, 3));
}

#[test]
fn a_handler_cannot_write_an_input() {
    let scene = Scene::new("scribble");
    scene.session.commit().unwrap();
    scene.x.write_at(0, &[4; 8]).unwrap();
    let refused = fault(scene.session.execute());
    assert!(matches!(refused, CommitFault::Refused { .. }), "{refused}");
    assert_eq!(scene.x.to_vec().unwrap(), [4; 8]);
    assert_eq!(scene.session.state().unwrap(), SessionState::Committed);
}

#[test]
fn queries_are_answered_from_the_load_reply_also_after_the_service_has_gone() {
    let stage = Stage::new();
    let client = stage.client().max_sessions(3);
    let model = client.load(b"twins").unwrap();
    let too_many = CommitFault::SessionCount { count: 4, max: 3 };
    assert_eq!(fault(model.sessions(4)), too_many);
    let session = &model.sessions(3).unwrap()[2];
    // Query and set both find the first of several equal labels.
    session.set_by_label("x", &Buffer::alloc(8).unwrap()).unwrap();
    let sixteen = Buffer::alloc(16).unwrap();
    let size = CommitFault::Size { slot: slot("x", Direction::In), len: 16, expected: 8 };
    assert_eq!(fault(session.set_by_label("x", &sixteen)), size);
    drop(stage);
    for _ in 0..2 {
        assert_eq!(Direction::ALL.map(|direction| model.count(direction)), [2, 1, 0]);
        assert_eq!(model.description().regions.len(), 3);
        let first = model.buffer_by_label("x").unwrap();
        assert_eq!((first.direction, first.index, first.size), (Direction::In, 0, 8));
        assert_eq!(model.buffer(Direction::In, 1).unwrap().size, 16);
        assert_eq!(model.region(1).unwrap().size, 16);
        for (direction, index, count) in
            [(Direction::In, 2, 2), (Direction::Out, 1, 1), (Direction::Ext, 0, 0)]
        {
            let unknown = CommitFault::UnknownBuffer { direction, index, count };
            assert_eq!(fault(model.buffer(direction, index)), unknown);
        }
        for label in ["X", "", "x\0"] {
            let unknown = CommitFault::UnknownLabel { label: label.into() };
            assert_eq!(fault(model.buffer_by_label(label)), unknown);
        }
        let region = CommitFault::UnknownRegion { index: 3, count: 3 };
        assert_eq!(fault(model.region(3)), region);
        // The answers are the same when the client has seen the end of the service.
        assert!(session.execute().is_err());
    }
}

#[test]
fn a_buffer_that_is_dropped_after_its_commit_goes_with_the_release() {
    let test = "a_buffer_that_is_dropped_after_its_commit_goes_with_the_release";
    Other::start(test, "", |_| {
        let Scene { stage, session, x, y, model: _model, .. } = Scene::new("echo");
        session.commit().unwrap();
        let before = shared_bytes();
        drop((x, y));
        session.execute().unwrap();
        assert_eq!(shared_bytes(), before, "they are in use");
        session.release().unwrap();
        // Each buffer takes one page, which both sides in this process share.
        wait_until("the memory", || shared_bytes() == before - 2 * raw::page());
        let gone = fault(session.commit());
        assert!(matches!(&gone, CommitFault::Incomplete { unset } if unset.len() == 2), "{gone}");
        assert_eq!(stage.server.stats().mappings, 0);
    })
    .succeeds();
}

#[test]
fn a_buffer_that_was_released_is_unset_although_another_session_has_it_committed() {
    let Scene { stage, session, x, y, model: _model, client } = Scene::new("echo");
    session.commit().unwrap();
    let second = client.load(b"echo").unwrap();
    let other = second.session(0).unwrap();
    let z = Buffer::alloc(8).unwrap();
    other.set_all(&[&x, &z]).unwrap();
    assert_eq!(other.state().unwrap(), SessionState::Complete);
    x.write_at(0, &[6; 8]).unwrap();
    x.release();
    let gone = Unset::Buffer { direction: Direction::In, index: 0, released: true };
    assert_eq!(fault(other.commit()), CommitFault::Incomplete { unset: vec![gone] });
    // The commit goes on with the buffer.
    session.execute().unwrap();
    assert_eq!((y.to_vec().unwrap(), stage.server.stats().commits), (vec![7; 8], 1));
    let x = Buffer::alloc(8).unwrap();
    other.set(Direction::In, 0, &x).unwrap();
    other.commit().unwrap();
    other.execute().unwrap();
    assert_eq!(z.to_vec().unwrap(), [1; 8]);
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    alone("a_limit_on_the_size_of_files_is_an_error_and_no_signal", || {
        limit_files(4096);
        let error = slipring::commit::Buffer::alloc(8192).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::FileSizeLimit { bytes: 8192, limit: 4096 });
        slipring::commit::Buffer::alloc(4096).unwrap().write_at(0, &[1; 4096]).unwrap();
    });
}
