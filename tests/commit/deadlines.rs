//! Clients of a service that stands still: every call ends at its deadline, and what it began goes on later.

use std::thread;
use std::time::{Duration, Instant};

use slipring::commit::{Buffer, Client, CommitFault, Direction, ServerOptions, SessionState};
use slipring::{Context, Error, ErrorKind};

use crate::support::other::{Other, say, wait_for_death};
use crate::support::service::Stage;
use crate::support::{unique_name, wait_until};

const SHORT: Duration = Duration::from_millis(30);

fn is_late<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
}

fn soon() -> Instant {
    Instant::now() + SHORT
}

fn serve(name: &str) {
    let _stage = Stage::at(name, ServerOptions::new().workers(2));
    say("serving");
    wait_for_death();
}

fn signal(service: &Other, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(service.pid() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Returns whether no thread of the process runs: the signal reaches them one after another.
fn is_stopped(service: &Other) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", service.pid())).unwrap().flatten();
    let stats = threads.map(|thread| std::fs::read_to_string(thread.path().join("stat")).unwrap());
    stats.into_iter().all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
}

#[test]
fn a_service_that_is_stopped_holds_nobody_longer_than_he_wants() {
    let test = "a_service_that_is_stopped_holds_nobody_longer_than_he_wants";
    let name = unique_name();
    let service = Other::start(test, &name, serve);
    service.expect("serving");
    let client = Client::connect(&Context::new().unwrap(), &name).unwrap();
    let models: Vec<_> = (0..5).map(|_| client.load(b"echo").unwrap()).collect();
    let sessions: Vec<_> = models.iter().map(|model| model.session(0).unwrap()).collect();
    let buffers: Vec<_> = sessions.iter().map(|session| session.allocate_all().unwrap()).collect();
    for session in &sessions[..4] {
        session.commit().unwrap();
    }
    let other = Buffer::alloc(8).unwrap();
    signal(&service, rustix::process::Signal::STOP);
    wait_until("every thread to stand still", || is_stopped(&service));

    is_late(sessions[0].execute_deadline(soon()));
    is_late(models[1].execute_all_deadline(soon()));
    is_late(sessions[2].update_deadline(&[(Direction::In, 0, &other)], soon()));
    is_late(sessions[3].release_deadline(soon()));
    is_late(sessions[4].commit_deadline(soon()));
    is_late(client.load_deadline(b"echo", soon()));
    let file = client.clone().timeout(SHORT);
    is_late(file.load(b"echo"));
    is_late(models[3].close_deadline(soon()));
    // What they began is under way.
    let states = [0, 1, 2, 4].map(|at: usize| sessions[at].state().unwrap());
    let [executing, updating, committing] =
        [SessionState::Executing, SessionState::Updating, SessionState::Committing];
    assert_eq!(states, [executing, executing, updating, committing]);
    let is_busy = |answer: Result<(), Error>| {
        assert_eq!(*answer.unwrap_err().kind(), ErrorKind::Commit(CommitFault::Busy));
    };
    is_busy(sessions[0].execute_deadline(soon()));
    is_busy(sessions[4].execute_deadline(soon()));
    // A drop never waits.
    let dropped = client.clone();
    let unused = models[4].clone();
    thread::spawn(move || drop((dropped, unused))).join().unwrap();

    signal(&service, rustix::process::Signal::CONT);
    for (at, end) in [(0, SessionState::Committed), (2, SessionState::Committed)] {
        wait_until("the late answer", || sessions[at].state().unwrap() == end);
    }
    for at in [0, 1, 4] {
        wait_until("the session", || sessions[at].state().unwrap() == SessionState::Committed);
        assert!(sessions[at].id().is_ok());
        buffers[at][0].write_at(0, &[at as u8; 8]).unwrap();
        sessions[at].execute().unwrap();
        assert_eq!(buffers[at][1].to_vec().unwrap(), [at as u8 + 1; 8]);
    }
    // The update has replaced the input.
    other.write_at(0, &[40; 8]).unwrap();
    sessions[2].execute().unwrap();
    assert_eq!(buffers[2][1].to_vec().unwrap(), [41; 8]);
}

#[test]
fn a_client_with_a_timeout_waits_no_longer_in_any_call() {
    let stage = Stage::with(ServerOptions::new().workers(1));
    let client = stage.client().timeout(SHORT);
    let model = client.load(b"hold").unwrap();
    let session = model.session(0).unwrap();
    let buffers = session.allocate_all().unwrap();
    session.commit().unwrap();
    buffers[0].write_at(0, &[255; 8]).unwrap();
    is_late(session.execute());
    // The only worker is held.
    is_late(client.load(b"echo"));
    is_late(session.release());
    let another = stage.client().timeout(SHORT);
    is_late(another.load(b"echo"));
    is_late(model.close());
    assert_eq!(stage.server.stats().models, 1);
    stage.counts.let_go();
    // Models that were loaded too late are unloaded, and the model that was closed.
    wait_until("the end", || {
        // A request has the client receive, and unload what nobody has a handle of.
        let _ = [&client, &another].map(|client| client.load(b"unknown").unwrap_err());
        stage.server.stats().models == 0
    });
    assert_eq!(stage.counts.of("unload"), 3);
}
