//! Sessions: what each call answers in each state, on both sides.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use slipring::commit::{
    Buffer, CommitFault, Direction, Model, ServerOptions, Session, SessionState, Slot, Unset,
};
use slipring::{Error, ErrorKind};

use crate::support::service::{Stage, classifier};
use crate::support::{HANG, wait_until};

fn fault<T: std::fmt::Debug>(answer: Result<T, Error>) -> CommitFault {
    match answer.unwrap_err().kind() {
        ErrorKind::Commit(fault) => fault.clone(),
        other => panic!("{other:?}"),
    }
}

/// A complete session of a model with one input and one output.
struct Ready {
    model: Model,
    session: Session,
    x: Buffer,
    y: Buffer,
}

impl Ready {
    fn new(stage: &Stage, model: &str) -> Self {
        let model = stage.client().load(model.as_bytes()).unwrap();
        let session = model.session(0).unwrap();
        let (x, y) = (Buffer::alloc(8).unwrap(), Buffer::alloc(8).unwrap());
        session.set(Direction::In, 0, &x).unwrap();
        session.set(Direction::Out, 0, &y).unwrap();
        Self { model, session, x, y }
    }

    fn committed(stage: &Stage, model: &str) -> Self {
        let ready = Self::new(stage, model);
        ready.session.commit().unwrap();
        ready
    }

    /// Executes, and checks the output.
    fn works(&self, seed: u8) {
        self.x.write_at(0, &[seed; 8]).unwrap();
        self.session.execute().unwrap();
        assert_eq!(self.y.to_vec().unwrap(), [seed.wrapping_add(1); 8]);
    }
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("slipring-test", flags).unwrap();
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn the_documents_scenario_runs() {
    let stage = Stage::new();
    let client = stage.client();
    let model = client.load(b"classifier").unwrap();
    assert_eq!(*model.description(), classifier());
    assert_eq!(Direction::ALL.map(|direction| model.count(direction)), [1, 1, 2]);
    let image = model.buffer(Direction::In, 0).unwrap();
    assert_eq!((image.size, image.buffer_type, image.channel()), (268203, 3, 3));
    assert_eq!(model.buffer_by_label("690").unwrap().direction, Direction::Out);

    let session = model.session(0).unwrap();
    assert_eq!(session.state().unwrap(), SessionState::Empty);
    let image = Buffer::alloc(268203).unwrap();
    session.set_by_label("IFM", &image).unwrap();
    assert_eq!(session.state().unwrap(), SessionState::Partial);
    let logits = Buffer::alloc(4000).unwrap();
    session.set(Direction::Out, 0, &logits).unwrap();
    let id = session.commit_with_ext().unwrap();
    assert_eq!((session.id().unwrap(), session.state().unwrap()), (id, SessionState::Committed));
    for value in [1u8, 2] {
        image.write_at(0, &[value; 268203]).unwrap();
        session.execute().unwrap();
        let mut first = [0; 4];
        logits.read_at(0, &mut first).unwrap();
        assert_eq!(f32::from_le_bytes(first), 268203.0 * f32::from(value));
    }
    session.release().unwrap();
    model.close().unwrap();
    let stats = stage.server.stats();
    assert_eq!((stats.models, stats.commits, stats.mappings, stats.executions), (0, 0, 0, 2));
    drop((client, model, session));
    wait_until("the client's end", || stage.counts.of("gone") == 1);
}

#[test]
fn a_model_that_is_refused_or_inconsistent_leaves_nothing() {
    let stage = Stage::new();
    let client = stage.client();
    let refused = CommitFault::Refused { code: 404, why: "no such model".into() };
    assert_eq!(fault(client.load(b"unknown")), refused);
    let bad = fault(client.load(b"bad"));
    assert!(matches!(&bad, CommitFault::Description { why } if why.contains("input 7")), "{bad}");
    assert_eq!((stage.counts.of("unload"), stage.server.stats().models), (1, 0));
    Ready::committed(&stage, "echo").works(1);
}

#[test]
fn a_model_is_loaded_from_a_descriptor_at_any_offset() {
    let stage = Stage::new();
    let fd = memfd(4096, SealFlags::SHRINK);
    rustix::io::pwrite(&fd, b"classifier", 1001).unwrap();
    let model = stage.client().load_descriptor(&fd, 1001, 10).unwrap();
    assert_eq!(model.count(Direction::Ext), 2);
    let fault = fault(stage.client().load_descriptor(&fd, 4090, 10));
    assert_eq!(fault, CommitFault::Range { region: None, offset: 4090, len: 10, size: 4096 });
}

#[test]
fn a_commit_of_an_incomplete_session_lists_all_that_is_unset_and_is_not_sent() {
    let stage = Stage::new();
    let model = stage.client().load(b"classifier").unwrap();
    let session = model.session(0).unwrap();
    session.set(Direction::Out, 0, &Buffer::alloc(4000).unwrap()).unwrap();
    let unset = |direction, index, released| Unset::Buffer { direction, index, released };
    let missing = vec![
        unset(Direction::In, 0, false),
        unset(Direction::Out, 0, true),
        unset(Direction::Ext, 0, false),
        unset(Direction::Ext, 1, false),
    ];
    assert_eq!(fault(session.commit()), CommitFault::Incomplete { unset: missing.clone() });
    assert_eq!((session.missing().unwrap(), stage.counts.of("commit")), (missing, 0));
    // Automatic ext buffers do not fill inputs and outputs.
    let CommitFault::Incomplete { unset } = fault(session.commit_with_ext()) else { panic!() };
    assert_eq!((unset.len(), session.state().unwrap()), (2, SessionState::Partial));
}

#[test]
fn automatic_ext_buffers_are_undone_when_the_commit_fails() {
    let stage = Stage::with(ServerOptions::new().commits(0));
    let ready = Ready::new(&stage, "ext");
    let quota = CommitFault::Quota { what: "commits", used: 0, needed: 1, limit: 0 };
    assert_eq!(fault(ready.session.commit_with_ext()), quota);
    let scratch = Unset::Buffer { direction: Direction::Ext, index: 0, released: false };
    assert_eq!(ready.session.missing().unwrap(), [scratch]);

    let stage = Stage::new();
    let ready = Ready::new(&stage, "ext");
    ready.session.commit_with_ext().unwrap();
    ready.works(3);
    let scratch = Buffer::alloc(16).unwrap();
    let committed = fault(ready.session.set(Direction::Ext, 0, &scratch));
    assert!(matches!(committed, CommitFault::AlreadyCommitted { .. }));
}

#[test]
fn a_commit_is_made_once_and_its_id_is_never_used_again() {
    let stage = Stage::new();
    let ready = Ready::new(&stage, "echo");
    assert_eq!(fault(ready.session.execute()), CommitFault::NotCommitted);
    assert_eq!(fault(ready.session.release()), CommitFault::NotCommitted);
    let mut ids = std::collections::HashSet::new();
    for round in 0..20 {
        let id = ready.session.commit().unwrap();
        assert!(id != 0 && ids.insert(id));
        assert_eq!(fault(ready.session.commit()), CommitFault::AlreadyCommitted { id });
        ready.works(round);
        ready.session.release().unwrap();
        assert_eq!(fault(ready.session.execute()), CommitFault::NotCommitted);
        assert_eq!(ready.session.state().unwrap(), SessionState::Complete);
    }
    assert_eq!((stage.counts.of("commit"), stage.counts.of("release")), (20, 20));
    assert_eq!((stage.counts.of("execute"), stage.server.stats().mappings), (20, 0));
}

#[test]
fn a_commit_that_the_service_refuses_leaves_the_session_complete() {
    let stage = Stage::new();
    let ready = Ready::new(&stage, "refuse");
    let refused = CommitFault::Refused { code: 7, why: "not today".into() };
    assert_eq!(fault(ready.session.commit()), refused);
    let startled = Ready::new(&stage, "startle");
    assert_eq!(fault(startled.session.commit()), CommitFault::Panicked);
    for ready in [ready, startled] {
        assert_eq!(ready.session.state().unwrap(), SessionState::Complete);
    }
    let stats = stage.server.stats();
    assert_eq!((stats.commits, stats.mappings, stats.descriptors), (0, 0, 0));
    Ready::committed(&stage, "echo").works(1);
}

#[test]
fn an_execution_that_fails_or_panics_fails_no_other_one() {
    let stage = Stage::new();
    let good = Ready::committed(&stage, "echo");
    let failing = Ready::committed(&stage, "fail");
    let panicking = Ready::committed(&stage, "panic");
    for round in 0..3 {
        let refused = CommitFault::Refused { code: 5, why: "it fails".into() };
        assert_eq!(fault(failing.session.execute()), refused);
        assert_eq!(fault(panicking.session.execute()), CommitFault::Panicked);
        good.works(round);
    }
    let stats = stage.server.stats();
    assert_eq!((stats.executions, stats.failures, stats.commits), (3, 6, 3));
}

#[test]
fn an_import_is_executed_from_its_offset_on() {
    let stage = Stage::new();
    let ready = Ready::new(&stage, "echo");
    let fd = memfd(3 * 4096, SealFlags::SHRINK | SealFlags::GROW);
    let (x, y) =
        (Buffer::import_at(&fd, 8, 4097).unwrap(), Buffer::import_at(&fd, 8, 8191).unwrap());
    ready.session.set_all(&[&x, &y]).unwrap();
    ready.session.commit().unwrap();
    rustix::io::pwrite(&fd, b"offsets!", 4097).unwrap();
    ready.session.execute().unwrap();
    let mut bytes = [0; 8];
    rustix::io::pread(&fd, &mut bytes, 8191).unwrap();
    assert_eq!(&bytes, b"pggtfut\"");
    assert_eq!(y.to_vec().unwrap(), bytes);
}

#[test]
fn memory_that_its_owner_can_truncate_is_refused_unless_it_is_allowed() {
    let loose = memfd(8, SealFlags::empty());
    let (stage, lax) = (Stage::new(), Stage::with(ServerOptions::new().allow_unsealed(true)));
    let refused = Ready::new(&stage, "echo");
    refused.session.set(Direction::In, 0, &Buffer::import(&loose, 8).unwrap()).unwrap();
    let gone = Unset::Buffer { direction: Direction::In, index: 0, released: true };
    assert_eq!(fault(refused.session.commit()), CommitFault::Incomplete { unset: vec![gone] });
    let imported = Buffer::import(&loose, 8).unwrap();
    refused.session.set(Direction::In, 0, &imported).unwrap();
    assert_eq!(fault(refused.session.commit()), CommitFault::Unsealed { region: 0 });
    refused.session.set(Direction::In, 0, &refused.x).unwrap();
    refused.session.commit().unwrap();
    refused.works(9);

    let taken = Ready::new(&lax, "echo");
    taken.session.set(Direction::In, 0, &imported).unwrap();
    taken.session.commit().unwrap();
    assert_eq!(lax.server.stats().descriptors, 1);
    imported.write_at(0, b"loosened").unwrap();
    taken.session.execute().unwrap();
    assert_eq!(taken.y.to_vec().unwrap(), b"mpptfofe");
    // The owner truncates the memory under the service, and that execution fails.
    rustix::fs::ftruncate(&loose, 0).unwrap();
    let truncated = fault(taken.session.execute());
    assert!(
        matches!(&truncated, CommitFault::Refused { why, .. } if why.contains("truncated")),
        "{truncated}"
    );
    Ready::committed(&lax, "echo").works(1);
}

#[test]
fn sealed_memory_with_holes_and_a_model_that_its_owner_can_truncate_are_refused_for_what_they_are()
{
    let seals = SealFlags::SHRINK | SealFlags::GROW;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let sparse = rustix::fs::memfd_create("slipring-test", flags).unwrap();
    rustix::fs::ftruncate(&sparse, 8).unwrap();
    rustix::fs::fcntl_add_seals(&sparse, seals).unwrap();
    let stage = Stage::new();
    let ready = Ready::new(&stage, "echo");
    let holes = Buffer::wrap(&sparse, 8, 0).unwrap();
    ready.session.set(Direction::In, 0, &holes).unwrap();
    let text = fault(ready.session.commit()).to_string();
    assert!(text.starts_with("region 0: sealed, but not all"), "{text}");
    // The remedy of the text.
    rustix::fs::fallocate(&sparse, FallocateFlags::empty(), 0, 8).unwrap();
    ready.session.commit().unwrap();

    let loose = memfd(8, SealFlags::empty());
    rustix::io::pwrite(&loose, b"echo", 0).unwrap();
    let refused = fault(stage.client().load_descriptor(&loose, 0, 4));
    assert!(
        matches!(&refused, CommitFault::Model { why } if why.contains("F_SEAL_SHRINK")),
        "{refused}"
    );
    rustix::fs::fcntl_add_seals(&loose, SealFlags::SHRINK).unwrap();
    stage.client().load_descriptor(&loose, 0, 4).unwrap();
}

#[test]
fn a_closed_descriptor_is_an_error_of_the_system() {
    // SAFETY: no descriptor has this number, as none is below the limit of any process; the calls only name it.
    let closed = unsafe { BorrowedFd::borrow_raw(1 << 30) };
    let answers =
        [Buffer::import(closed, 8), Buffer::import_at(closed, 8, 1), Buffer::wrap(closed, 8, 0)];
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Os { .. }), "{error:?}");
        assert!(format!("{error:#}").contains("Bad file descriptor"), "{error:#}");
    }
}

#[test]
fn a_session_is_cleared_unless_it_is_committed() {
    let stage = Stage::new();
    let ready = Ready::committed(&stage, "echo");
    assert!(matches!(fault(ready.session.clear()), CommitFault::AlreadyCommitted { .. }));
    ready.session.release().unwrap();
    assert_eq!(ready.session.missing().unwrap(), []);
    ready.session.clear().unwrap();
    assert_eq!(ready.session.state().unwrap(), SessionState::Empty);
    assert_eq!(ready.session.missing().unwrap().len(), 2);
}

#[test]
fn all_of_a_models_executions_may_fail_and_their_first_error_is_at_hand() {
    let stage = Stage::new();
    let failing = Ready::committed(&stage, "fail");
    let outcomes = failing.model.execute_all().unwrap();
    assert_eq!(outcomes.len(), 1);
    let refused = CommitFault::Refused { code: 5, why: "it fails".into() };
    assert_eq!(fault(outcomes.into_result()), refused);
    Ready::committed(&stage, "echo").model.execute_all().unwrap().into_result().unwrap();
}

#[test]
fn the_server_checks_wrapped_memory() {
    let stage = Stage::new();
    let (pipe, _other) = std::io::pipe().unwrap();
    let readable = memfd(8, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
    let small = memfd(8, SealFlags::SHRINK);
    let wraps = [
        (Direction::In, Buffer::wrap(&pipe, 8, 0).unwrap(), "region 0: not a memfd"),
        (
            Direction::In,
            Buffer::wrap(std::fs::File::open("/").unwrap(), 8, 0).unwrap(),
            "region 0: not a memfd",
        ),
        (Direction::In, Buffer::wrap(&small, 8, 1).unwrap(), "8 bytes at 1 go past the end at 8"),
        (Direction::Out, Buffer::wrap(&readable, 8, 0).unwrap(), "region 1 is read-only"),
    ];
    for (direction, buffer, why) in wraps {
        let ready = Ready::new(&stage, "echo");
        ready.session.set(direction, 0, &buffer).unwrap();
        let fault = fault(ready.session.commit());
        assert!(fault.to_string().contains(why), "{fault}: not {why}");
        assert_eq!(ready.session.state().unwrap(), SessionState::Complete);
        ready.session.set_all(&[&ready.x, &ready.y]).unwrap();
        ready.session.commit().unwrap();
        ready.works(1);
    }
    // An input may be memory that cannot be written.
    let ready = Ready::new(&stage, "echo");
    let wrapped = Buffer::wrap(&readable, 8, 0).unwrap();
    ready.session.set(Direction::In, 0, &wrapped).unwrap();
    ready.session.commit().unwrap();
    ready.session.execute().unwrap();
    assert_eq!(ready.y.to_vec().unwrap(), [1; 8]);
}

#[test]
fn tensors_share_a_region_as_a_whole_or_by_views_of_one_buffer() {
    let stage = Stage::new();
    let model = stage.client().load(b"shared").unwrap();
    assert_eq!(
        (model.region(0).unwrap().name.as_str(), model.region(0).unwrap().attributes),
        ("both", 7)
    );
    let session = model.session(0).unwrap();
    let (both, copy) = (Buffer::alloc(32).unwrap(), Buffer::alloc(24).unwrap());
    both.write_at(0, &(0..32).collect::<Vec<u8>>()).unwrap();
    let (low, high) = (both.view(0, 8).unwrap(), both.view(16, 16).unwrap());
    session.set_all(&[&low, &high, &copy]).unwrap();
    let expected: Vec<u8> = (0..8).chain(16..32).collect();
    for whole in [false, true] {
        if whole {
            session.set_region(0, &both).unwrap();
        }
        session.commit().unwrap();
        session.execute().unwrap();
        assert_eq!(copy.to_vec().unwrap(), expected);
        session.release().unwrap();
        copy.write_at(0, &[0; 24]).unwrap();
    }
    let slot = Slot::Buffer { direction: Direction::In, index: 0, label: "low".into() };
    let placement = CommitFault::Placement { slot: slot.clone(), offset: 8, expected: 0, size: 32 };
    assert_eq!(fault(session.set(Direction::In, 0, &both.view(8, 8).unwrap())), placement);
    let size = CommitFault::Size { slot, len: 9, expected: 8 };
    assert_eq!(fault(session.set(Direction::In, 0, &both.view(0, 9).unwrap())), size);
}

#[test]
fn memory_of_an_output_is_part_of_no_other_region() {
    let stage = Stage::new();
    let model = stage.client().load(b"echo").unwrap();
    let sessions = model.sessions(3).unwrap();
    let all = Buffer::alloc(64).unwrap();
    let at = |offset| all.view(offset, 8).unwrap();
    let (x, y) = (at(0), at(8));
    sessions[0].set_all(&[&x, &y]).unwrap();
    let first = sessions[0].commit().unwrap();
    // The output overlaps the input of its own session, another session's output, another session's input.
    let (z, w) = (at(16), at(15));
    for (buffers, region, other) in [([&y, &z], 0, 1), ([&x, &y], 1, 1), ([&z, &w], 1, 0)] {
        sessions[1].set_all(&buffers).unwrap();
        let CommitFault::Overlap { region: is, other: with, id } = fault(sessions[1].commit())
        else {
            panic!("no overlap")
        };
        let same = buffers[0].offset() == 16;
        assert_eq!(
            (is, with, id),
            (region, if same { with } else { other }, if same { id } else { first })
        );
    }
    // Several sessions may share an input.
    sessions[1].set_all(&[&x, &z]).unwrap();
    sessions[1].commit().unwrap();
    x.write_at(0, &[4; 8]).unwrap();
    assert!(model.execute_all().unwrap().iter().all(|(_, outcome)| outcome.is_ok()));
    assert_eq!(all.to_vec().unwrap()[8..24], [5; 16]);
    // The release frees the memory.
    sessions[0].release().unwrap();
    sessions[2].set_all(&[&x, &y]).unwrap();
    sessions[2].commit().unwrap();
}

#[test]
fn sessions_are_replaced_unless_one_is_committed() {
    let stage = Stage::new();
    let ready = Ready::new(&stage, "echo");
    for count in [0, 17, u32::MAX] {
        assert_eq!(
            fault(ready.model.sessions(count)),
            CommitFault::SessionCount { count, max: 16 }
        );
    }
    ready.session.commit().unwrap();
    assert!(matches!(fault(ready.model.sessions(2)), CommitFault::AlreadyCommitted { .. }));
    ready.works(5);
    ready.session.release().unwrap();
    let sessions = ready.model.sessions(16).unwrap();
    assert_eq!(fault(ready.session.state()), CommitFault::StaleSession);
    assert_eq!(fault(ready.session.commit()), CommitFault::StaleSession);
    assert_eq!(sessions[15].state().unwrap(), SessionState::Empty);
    assert_eq!(
        fault(ready.model.session(16)),
        CommitFault::UnknownSession { index: 16, count: 16 }
    );
}

#[test]
fn all_committed_sessions_run_at_once_and_each_has_its_answer() {
    let stage = Stage::new();
    let model = stage.client().load(b"gate 4").unwrap();
    assert_eq!(fault(model.execute_all()), CommitFault::NotCommitted);
    let sessions = model.sessions(6).unwrap();
    let mut buffers = Vec::new();
    for session in &sessions[1..5] {
        buffers.push(session.allocate_all().unwrap());
        session.commit().unwrap();
    }
    // Each of the four waits for the three others.
    let outcomes = model.execute_all().unwrap();
    let indexes: Vec<u32> = outcomes.iter().map(|(index, _)| *index).collect();
    assert_eq!(indexes, [1, 2, 3, 4]);
    assert!(outcomes.iter().all(|(_, outcome)| outcome.is_ok()));
    assert!(buffers.iter().all(|buffers| buffers[1].to_vec().unwrap() == [1; 8]));
    // Each executes alone, too.
    let started: Vec<_> = sessions[1..5].iter().map(|session| session.start().unwrap()).collect();
    started.into_iter().for_each(|execution| execution.wait().unwrap());
}

#[test]
fn a_session_that_runs_is_busy_and_the_others_are_not() {
    let stage = Stage::new();
    let slow = Ready::committed(&stage, "slow 100");
    let other = slow.model.clone();
    let mut execution = slow.session.start().unwrap();
    assert_eq!(slow.session.state().unwrap(), SessionState::Executing);
    assert_eq!(fault(slow.session.start()), CommitFault::Busy);
    assert_eq!(fault(other.execute_all()), CommitFault::Busy);
    let update = slow.session.update(&[(Direction::In, 0, &slow.x)]);
    assert_eq!(fault(update), CommitFault::Busy);
    assert!(execution.try_wait().is_none());
    let late = execution.wait_deadline(Instant::now() + Duration::from_millis(1)).unwrap_err();
    assert!(late.is_timeout(), "{late}");
    Ready::committed(&stage, "echo").works(1);
    execution.wait_deadline(Instant::now() + HANG).unwrap();
    assert_eq!(slow.y.to_vec().unwrap(), [1; 8]);
    slow.works(2);
}

#[test]
fn dropping_an_execution_does_not_cancel_it() {
    let stage = Stage::new();
    let slow = Ready::committed(&stage, "slow 20");
    drop(slow.session.start().unwrap());
    wait_until("the execution", || slow.y.to_vec().unwrap() == [1; 8]);
    // The next request finds the session free.
    wait_until("the answer", || slow.session.execute().is_ok());
}

#[test]
fn the_descriptor_of_an_execution_becomes_readable_at_its_end() {
    let stage = Stage::new();
    let slow = Ready::committed(&stage, "slow 30");
    for _ in 0..5 {
        let mut execution = slow.session.start().unwrap();
        let mut outcome = None;
        while outcome.is_none() {
            let fd = execution.as_fd().try_clone_to_owned().unwrap();
            outcome = execution.try_wait();
            if outcome.is_none() {
                let fds = &mut [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let ready = rustix::event::poll(fds, Some(&HANG.try_into().unwrap())).unwrap();
                assert_eq!(ready, 1, "nobody told");
            }
        }
        outcome.unwrap().unwrap();
    }
}

#[test]
fn threads_wait_for_their_own_executions_of_one_client() {
    let stage = Stage::new();
    let client = stage.client();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let client = client.clone();
            scope.spawn(move || {
                let model = client.load(if thread % 2 == 0 { b"echo" } else { b"slow 1" }).unwrap();
                let session = model.session(0).unwrap();
                let buffers = session.allocate_all().unwrap();
                session.commit().unwrap();
                for round in 0..100 {
                    buffers[0].write_at(0, &[round ^ thread; 8]).unwrap();
                    session.execute().unwrap();
                    assert_eq!(buffers[1].to_vec().unwrap(), [(round ^ thread).wrapping_add(1); 8]);
                }
                model.close().unwrap();
            });
        }
    });
    assert_eq!(stage.server.stats().executions, 400);
}

#[test]
fn a_release_finishes_what_runs_and_refuses_the_rest() {
    let stage = Stage::new();
    let slow = Ready::committed(&stage, "slow 50");
    let execution = slow.session.start().unwrap();
    slow.session.release().unwrap();
    assert_eq!((stage.counts.of("execute"), stage.counts.of("release")), (1, 1));
    assert_eq!(stage.server.stats().mappings, 0);
    execution.wait().unwrap();
    assert_eq!(slow.y.to_vec().unwrap(), [1; 8]);
    assert_eq!(slow.session.state().unwrap(), SessionState::Complete);
}

#[test]
fn a_release_right_after_an_execution_is_never_too_early() {
    let stage = Stage::new();
    let ready = Ready::new(&stage, "echo");
    for round in 0..500u32 {
        ready.session.commit().unwrap();
        ready.works(round as u8 % 10);
        ready.session.update(&[(Direction::In, 0, &ready.x)]).unwrap();
        ready.works(round as u8 % 10 + 1);
        ready.session.release().unwrap();
    }
}

#[test]
fn the_outcome_of_an_execution_is_returned_once() {
    let stage = Stage::new();
    let ready = Ready::committed(&stage, "echo");
    let mut execution = ready.session.start().unwrap();
    let soon = || Instant::now() + HANG;
    execution.wait_deadline(soon()).unwrap();
    assert_eq!(fault(execution.wait_deadline(soon())), CommitFault::OutcomeTaken);
    assert_eq!(fault(execution.try_wait().unwrap()), CommitFault::OutcomeTaken);
    assert_eq!(fault(execution.wait()), CommitFault::OutcomeTaken);
    let mut all = ready.model.start_all().unwrap();
    wait_until("the outcome", || all.try_wait().is_some());
    assert_eq!(fault(all.wait()), CommitFault::OutcomeTaken);
    ready.works(3);
}

#[test]
fn an_execution_beside_a_release_runs_or_is_not_committed() {
    let stage = Stage::new();
    let ready = Ready::new(&stage, "echo");
    let client = stage.client();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let executes = || {
            while !is_over.load(Ordering::Relaxed) {
                match ready.session.execute() {
                    Ok(()) => {}
                    Err(error) => {
                        let fault = fault::<()>(Err(error));
                        let is_right =
                            matches!(fault, CommitFault::NotCommitted | CommitFault::Busy);
                        assert!(is_right, "{fault}");
                    }
                }
            }
        };
        scope.spawn(executes);
        scope.spawn(executes);
        // A long load holds the sender, and the others wait for it in any order.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(client.load(&[b'e'; 200_000]));
            }
        });
        for _ in 0..1000 {
            ready.session.commit().unwrap();
            while ready.session.release().is_err_and(|error| !error.is_disconnected()) {}
        }
        is_over.store(true, Ordering::Relaxed);
    });
    ready.session.commit().unwrap();
    ready.works(9);
}

#[test]
fn an_update_swaps_named_buffers_and_nothing_else() {
    let stage = Stage::new();
    let ready = Ready::committed(&stage, "echo");
    let id = ready.session.id().unwrap();
    let other = Buffer::alloc(8).unwrap();
    other.write_at(0, &[40; 8]).unwrap();
    ready.session.update(&[(Direction::In, 0, &other)]).unwrap();
    ready.session.execute().unwrap();
    assert_eq!((ready.y.to_vec().unwrap(), ready.session.id().unwrap()), (vec![41; 8], id));
    // The service refuses the update, and the old buffers stay.
    let unlucky = Buffer::alloc(8).unwrap();
    unlucky.write_at(0, &[13; 8]).unwrap();
    let refused = CommitFault::Refused { code: 0, why: "thirteen".into() };
    assert_eq!(fault(ready.session.update(&[(Direction::In, 0, &unlucky)])), refused);
    let size = fault(ready.session.update(&[(Direction::In, 0, &Buffer::alloc(9).unwrap())]));
    assert_eq!(size.to_string(), "input 0 (\"x\"): a buffer of 9 bytes, the model needs 8");
    let overlap = fault(ready.session.update(&[(Direction::In, 0, &ready.y)]));
    assert!(matches!(overlap, CommitFault::Overlap { region: 0, other: 1, id: 0 }), "{overlap}");
    ready.session.execute().unwrap();
    assert_eq!((ready.y.to_vec().unwrap(), stage.server.stats().mappings), (vec![41; 8], 2));
    // One update swaps both buffers.
    ready.session.update(&[(Direction::In, 0, &ready.y), (Direction::Out, 0, &other)]).unwrap();
    ready.session.execute().unwrap();
    assert_eq!(other.to_vec().unwrap(), [42; 8]);

    let fixed = stage.client().load(b"shared").unwrap();
    let session = fixed.session(0).unwrap();
    assert_eq!(fault(session.update(&[])), CommitFault::NotCommitted);
    let buffers = session.allocate_all().unwrap();
    session.commit().unwrap();
    let not = CommitFault::NotUpdatable { direction: Direction::Out, index: 0 };
    assert_eq!(fault(session.update(&[(Direction::Out, 0, &buffers[1])])), not);
}

#[test]
fn a_commit_lacks_a_buffer_that_was_released_before_it_and_keeps_one_released_after_it() {
    let stage = Stage::new();
    let Ready { model: _model, session, x, y } = Ready::new(&stage, "echo");
    x.release();
    let gone = Unset::Buffer { direction: Direction::In, index: 0, released: true };
    assert_eq!(fault(session.commit()), CommitFault::Incomplete { unset: vec![gone] });
    // A new descriptor with the old one's number does not stand for the old buffer.
    let x = Buffer::alloc(8).unwrap();
    assert!(matches!(fault(session.commit()), CommitFault::Incomplete { .. }));
    session.set(Direction::In, 0, &x).unwrap();
    session.commit().unwrap();
    x.write_at(0, &[7; 8]).unwrap();
    drop(x);
    session.execute().unwrap();
    assert_eq!(y.to_vec().unwrap(), [8; 8]);
    session.release().unwrap();
    assert!(matches!(fault(session.commit()), CommitFault::Incomplete { .. }));
}

#[test]
fn a_closed_model_and_its_sessions_answer_model_closed() {
    let stage = Stage::new();
    let slow = Ready::committed(&stage, "slow 30");
    let execution = slow.session.start().unwrap();
    slow.model.close().unwrap();
    assert_eq!((stage.counts.of("release"), stage.counts.of("unload")), (1, 1));
    execution.wait().unwrap();
    assert_eq!(fault(slow.model.close()), CommitFault::ModelClosed);
    assert_eq!(fault(slow.session.execute()), CommitFault::ModelClosed);
    assert_eq!(fault(slow.session.commit()), CommitFault::ModelClosed);
    assert_eq!(fault(slow.session.set(Direction::In, 0, &slow.x)), CommitFault::ModelClosed);
    assert_eq!(fault(slow.model.sessions(2)), CommitFault::ModelClosed);
    assert_eq!(fault(slow.model.execute_all()), CommitFault::ModelClosed);
    assert_eq!(slow.model.count(Direction::In), 1);
}

#[test]
fn a_model_whose_handles_are_gone_is_closed() {
    let stage = Stage::new();
    let client = stage.client();
    let Ready { model, session, .. } = Ready::committed(&stage, "echo");
    let kept = client.load(b"echo").unwrap();
    drop((model, session));
    wait_until("the unload", || stage.counts.of("unload") == 1);
    assert_eq!((stage.counts.of("release"), stage.server.stats().models), (1, 1));
    drop(kept);
    wait_until("the unload", || stage.server.stats().models == 0);
}

#[test]
fn quotas_are_named_and_existing_commits_go_on() {
    let options = ServerOptions::new().models(2).commits(1).bytes(20).regions(100);
    let stage = Stage::with(options);
    let client = stage.client();
    let model = client.load(b"echo").unwrap();
    let sessions = model.sessions(2).unwrap();
    let buffers = sessions[0].allocate_all().unwrap();
    sessions[0].commit().unwrap();
    let more = sessions[1].allocate_all().unwrap();
    let quota = CommitFault::Quota { what: "commits", used: 1, needed: 1, limit: 1 };
    assert_eq!(fault(sessions[1].commit()), quota);
    let second = client.load(b"classifier").unwrap();
    let quota = CommitFault::Quota { what: "models", used: 2, needed: 1, limit: 2 };
    assert_eq!(fault(client.load(b"echo")), quota);
    sessions[0].execute().unwrap();
    assert_eq!(buffers[1].to_vec().unwrap(), [1; 8]);
    sessions[0].release().unwrap();
    let big = second.session(0).unwrap();
    let _big = big.allocate_all().unwrap();
    let quota = CommitFault::Quota { what: "bytes", used: 0, needed: 277203, limit: 20 };
    assert_eq!(fault(big.commit()), quota);
    sessions[1].commit().unwrap();
    sessions[1].execute().unwrap();
    assert_eq!(more[1].to_vec().unwrap(), [1; 8]);
}

#[test]
fn three_hundred_regions_are_committed_from_one_descriptor_or_from_three_hundred() {
    let stage = Stage::new();
    let model = stage.client().load(b"many 300").unwrap();
    let session = model.session(0).unwrap();
    let own = session.allocate_all().unwrap();
    let one = Buffer::alloc(301 * 16).unwrap();
    let mut parts: Vec<Buffer> = (0..300).map(|at| one.view(at * 16, 16).unwrap()).collect();
    parts.push(one.view(300 * 16, 8).unwrap());
    for buffers in [&own, &parts] {
        for (at, buffer) in buffers[..300].iter().enumerate() {
            buffer.write_at(0, &[at as u8]).unwrap();
        }
        session.set_all(&buffers.iter().collect::<Vec<_>>()).unwrap();
        session.commit().unwrap();
        session.execute().unwrap();
        let sum: u64 = (0..300u64).map(|at| at % 256).sum();
        assert_eq!(buffers[300].to_vec().unwrap(), sum.to_le_bytes());
        assert_eq!(stage.server.stats().mappings, 301);
        session.release().unwrap();
    }
}
