//! Executions on a server's threads: which thread runs a handler, and which execution waits for which.

use std::thread;
use std::time::{Duration, Instant};

use slipring::commit::{Buffer, Client, Direction, ServerOptions, Session, SessionState};

use crate::support::census::descriptors;
use crate::support::other::alone;
use crate::support::service::Stage;
use crate::support::wait_until;

/// Executions of each free session, while others are held.
const ROUNDS: usize = 2000;

/// Returns four committed sessions of one model, and their buffers.
pub fn four(client: &Client) -> Vec<(Session, Vec<Buffer>)> {
    let model = client.load(b"hold").unwrap();
    let sessions = model.sessions(4).unwrap().into_iter();
    let commit = |session: Session| {
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        (session, buffers)
    };
    sessions.map(commit).collect()
}

/// Executes a session [`ROUNDS`] times, and returns the time of each execution.
fn execute(session: &Session, buffers: &[Buffer]) -> Vec<Duration> {
    let round = |round: usize| {
        let seed = (round % 200) as u8;
        buffers[0].write_at(0, &[seed; 8]).unwrap();
        let start = Instant::now();
        session.execute().unwrap();
        let took = start.elapsed();
        assert_eq!(buffers[1].to_vec().unwrap(), [seed + 1; 8]);
        took
    };
    (0..ROUNDS).map(round).collect()
}

fn tell(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |part: usize| took[took.len() * part / 1000 - 1];
    println!("{what}: p50 {:?}, p99 {:?}, at most {:?}", at(500), at(990), at(1000));
}

#[test]
fn no_session_waits_for_another_one_of_its_model() {
    for held in 0..4 {
        let stage = Stage::with(ServerOptions::new().workers(4));
        let client = stage.client();
        let sessions = four(&client);
        let mut executions: Vec<_> = sessions[..held]
            .iter()
            .map(|(session, buffers)| {
                buffers[0].write_at(0, &[255; 8]).unwrap();
                session.start().unwrap()
            })
            .collect();
        wait_until("those that are held", || stage.counts.of("execute") == held);
        let took: Vec<Duration> = thread::scope(|scope| {
            let free: Vec<_> = sessions[held..]
                .iter()
                .map(|(session, buffers)| scope.spawn(|| execute(session, buffers)))
                .collect();
            free.into_iter().flat_map(|free| free.join().unwrap()).collect()
        });
        // The free sessions have run while the others were held.
        assert!(executions.iter_mut().all(|execution| execution.try_wait().is_none()));
        stage.counts.let_go();
        executions.into_iter().for_each(|execution| execution.wait().unwrap());
        assert_eq!(stage.server.stats().executions as usize, (4 - held) * ROUNDS + held);
        tell(&format!("{held} of four sessions held, {} execute", 4 - held), took);
    }
}

#[test]
fn four_sessions_run_at_once_on_four_workers() {
    let stage = Stage::with(ServerOptions::new().workers(4));
    let client = stage.client();
    let model = client.load(b"gate 4").unwrap();
    let sessions = model.sessions(4).unwrap();
    let buffers: Vec<_> = sessions.iter().map(|session| session.allocate_all().unwrap()).collect();
    for session in &sessions {
        session.commit().unwrap();
    }
    // The gate stays open after the first round. The later rounds measure the hand-over of four executions.
    let took = (0..ROUNDS).map(|round| {
        let seed = (round % 200) as u8;
        buffers.iter().for_each(|buffers| buffers[0].write_at(0, &[seed; 8]).unwrap());
        let start = Instant::now();
        let outcomes = model.execute_all().unwrap();
        let took = start.elapsed();
        assert!(outcomes.iter().all(|(_, outcome)| outcome.is_ok()) && outcomes.len() == 4);
        assert!(buffers.iter().all(|buffers| buffers[1].to_vec().unwrap() == [seed + 1; 8]));
        took
    });
    tell("four sessions at once", took.collect());
}

#[test]
fn an_inline_model_runs_while_every_worker_is_held_and_deaths_are_seen() {
    let stage = Stage::with(ServerOptions::new().workers(2));
    let client = stage.client();
    let sessions = four(&client);
    let (other, leaving) = (stage.client(), stage.client());
    let model = other.load(b"inline").unwrap();
    let inline = model.session(0).unwrap();
    let buffers = inline.allocate_all().unwrap();
    inline.commit().unwrap();
    let held: Vec<_> = sessions[..2]
        .iter()
        .map(|(session, buffers)| {
            buffers[0].write_at(0, &[255; 8]).unwrap();
            session.start().unwrap()
        })
        .collect();
    wait_until("both workers to be held", || stage.counts.of("execute") == 2);
    execute(&inline, &buffers);
    drop(leaving);
    execute(&inline, &buffers);
    stage.counts.let_go();
    held.into_iter().for_each(|execution| execution.wait().unwrap());
    wait_until("the end of the client that left", || stage.server.stats().clients == 2);
}

#[test]
fn no_release_and_no_unload_is_refused_while_requests_wait() {
    let stage = Stage::with(ServerOptions::new().workers(1));
    let client = stage.client();
    let models: Vec<_> = (0..24).map(|_| client.load(b"hold").unwrap()).collect();
    let sessions: Vec<_> = models
        .iter()
        .map(|model| {
            let session = model.session(0).unwrap();
            let buffers = session.allocate_all().unwrap();
            session.commit().unwrap();
            (session, buffers)
        })
        .collect();
    sessions[0].1[0].write_at(0, &[255; 8]).unwrap();
    let held = sessions[0].0.start().unwrap();
    wait_until("the only worker to be held", || stage.counts.of("execute") == 1);
    thread::scope(|scope| {
        // More than a client may have waiting.
        let releases: Vec<_> =
            sessions[1..].iter().map(|(session, _)| scope.spawn(|| session.release())).collect();
        let is_under_way = |session: &Session| session.state().unwrap() == SessionState::Releasing;
        wait_until("the releases", || {
            sessions[1..].iter().all(|(session, _)| is_under_way(session))
        });
        drop(models);
        stage.counts.let_go();
        releases.into_iter().for_each(|release| release.join().unwrap().unwrap());
    });
    held.wait().unwrap();
    drop(sessions);
    wait_until("the end of all models", || {
        let stats = stage.server.stats();
        (stats.models, stats.commits, stats.mappings) == (0, 0, 0)
    });
    assert_eq!((stage.counts.of("release"), stage.counts.of("unload")), (24, 24));
}

#[test]
fn an_update_lets_go_of_what_it_replaces() {
    alone("an_update_lets_go_of_what_it_replaces", || {
        let stage = Stage::new();
        let model = stage.client().load(b"echo").unwrap();
        let session = model.session(0).unwrap();
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        let before = descriptors();
        for round in 0..3000u32 {
            let (fresh, seed) = (Buffer::alloc(8).unwrap(), (round % 100) as u8 + 20);
            fresh.write_at(0, &[seed; 8]).unwrap();
            session.update(&[(Direction::In, 0, &fresh)]).unwrap();
            session.execute().unwrap();
            assert_eq!(buffers[1].to_vec().unwrap(), [seed + 1; 8]);
        }
        // The commit keeps the last one, and the server may keep a spare.
        wait_until("the descriptors to be closed", || descriptors() <= before + 2);
        assert_eq!(stage.server.stats().mappings, 2);
        session.release().unwrap();
        wait_until("the last one to be closed", || descriptors() <= before + 1);
    });
}
