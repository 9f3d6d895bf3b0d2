//! Deaths of either side: the other side goes on, and keeps nothing of the dead one.
//!
//! `SLIPRING_TESTS=whole` lets 1000 clients die in the long test, instead of 50.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use slipring::commit::{Buffer, Client, Direction, Model, ServerOptions, Session};
use slipring::{Context, Error, ErrorKind};

use crate::support::census::{Census, shared_bytes};
use crate::support::other::{Other, fork, say, wait_for_death};
use crate::support::sample;
use crate::support::service::Stage;
use crate::support::{HANG, soon, unique_name, wait_until};

fn kind<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorKind {
    answer.unwrap_err().kind().clone()
}

/// Checks that an answer says that the service has gone.
fn is_gone<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let kind = kind(answer);
    assert!(matches!(kind, ErrorKind::PeerDied | ErrorKind::PeerClosed), "{kind:?}");
}

/// Connects to the service at `name`, as soon as it listens.
fn connect(name: &str) -> Client {
    Client::new(Context::new().unwrap().connect_retry(name, soon()).unwrap()).unwrap()
}

/// A model with one session, and its buffers.
struct Ready {
    model: Model,
    session: Session,
    buffers: Vec<Buffer>,
}

impl Ready {
    fn new(client: &Client, model: &str) -> Self {
        let model = client.load(model.as_bytes()).unwrap();
        let session = model.session(0).unwrap();
        let buffers = session.allocate_all().unwrap();
        Self { model, session, buffers }
    }

    fn committed(client: &Client, model: &str) -> Self {
        let ready = Self::new(client, model);
        ready.session.commit().unwrap();
        ready
    }

    fn works(&self, seed: u8) {
        self.buffers[0].write_at(0, &[seed; 8]).unwrap();
        self.session.execute().unwrap();
        assert_eq!(self.buffers[1].to_vec().unwrap(), [seed.wrapping_add(1); 8]);
    }
}

/// Forks a child that holds all descriptors of this process for a while.
fn fork_holder() -> i32 {
    // SAFETY: the child calls nothing but what async-signal-safety allows.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above. The child ends after a minute, however the test ends.
        unsafe { libc::sleep(60) };
        // SAFETY: `_exit` runs no handlers.
        unsafe { libc::_exit(0) };
    }
    child
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The last thing that the dying client does, and the function of the service that runs by then.
const STEPS: [(&str, &str); 10] = [
    ("load", "load"),
    ("set", "load"),
    ("commit", "commit"),
    ("committed", "commit"),
    ("execute", "execute"),
    ("inline", "execute"),
    ("all", "execute"),
    ("update", "update"),
    ("release", "release"),
    ("close", "release"),
];

/// Goes up to a step, in another process, and waits there for its death. `argument` is a name, a step, and `forked` if a
/// child is to hold the socket.
fn die(argument: &str) {
    let words: Vec<&str> = argument.split(' ').collect();
    let client = connect(words[0]);
    let child = if words.len() > 2 { fork_holder() } else { 0 };
    let model = match words[1] {
        "commit" | "update" | "release" | "close" => "slowly 100",
        "execute" | "all" => "slow 100",
        "inline" => "inline",
        _ => "echo",
    };
    let model = client.load(model.as_bytes()).unwrap();
    say(&child.to_string());
    if words[1] == "load" {
        wait_for_death();
    }
    let sessions = model.sessions(2).unwrap();
    let buffers: Vec<_> = sessions.iter().map(|session| session.allocate_all().unwrap()).collect();
    // One of them is memory that its owner could truncate, so that the service holds its descriptor.
    let loose = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&loose, 8).unwrap();
    let loose = Buffer::import(&loose, 8).unwrap();
    sessions[0].set(Direction::In, 0, &loose).unwrap();
    if words[1] == "set" {
        say("there");
        wait_for_death();
    }
    sessions[0].commit().unwrap();
    let _running = match words[1] {
        "execute" | "inline" => Some(sessions[0].start().unwrap()),
        "all" => {
            sessions[1].commit().unwrap();
            drop(model.start_all().unwrap());
            None
        }
        _ => None,
    };
    match words[1] {
        "update" => sessions[0].update(&[(Direction::In, 0, &buffers[0][0])]).unwrap(),
        "release" => sessions[0].release().unwrap(),
        "close" => model.close().unwrap(),
        _ => {}
    }
    if words[1] == "committed" {
        say("there");
    }
    wait_for_death();
}

/// Runs `body` in a process of its own, since it counts what the process holds; and `die` in those that it starts.
fn alone(test: &str, body: impl FnOnce()) {
    let mut other = Other::start(test, "", |argument| {
        if !argument.is_empty() {
            return die(argument);
        }
        body();
        say("done");
    });
    // A long test says more words before.
    while other.hear() != "done" {}
    other.succeeds();
}

/// Kills a client at a step while another one executes, and waits until the server keeps nothing of it.
fn lose(test: &str, stage: &Stage, honest: &Ready, step: (&str, &str), forked: bool) {
    let before = stage.server.stats();
    let (how, asked) = step;
    let count = stage.counts.of(asked);
    let argument = format!("{} {how}{}", stage.name, if forked { " forked" } else { "" });
    let mut victim = Other::spawn(test, &argument);
    let child: i32 = victim.hear().parse().unwrap();
    match how {
        "set" | "committed" => victim.expect("there"),
        _ => wait_until(how, || {
            honest.works(3);
            stage.counts.of(asked) > count
        }),
    }
    victim.kill();
    let _ = victim.wait();
    wait_until("the end of the client", || {
        honest.works(4);
        let mut now = stage.server.stats();
        (now.executions, now.failures) = (before.executions, before.failures);
        now == before
    });
    if child != 0 {
        kill(child);
    }
}

#[test]
fn a_client_killed_at_any_step_leaves_nothing_and_disturbs_nobody() {
    let test = "a_client_killed_at_any_step_leaves_nothing_and_disturbs_nobody";
    alone(test, || {
        let stage = Stage::with(ServerOptions::new().workers(4).allow_unsealed(true));
        let honest = Ready::committed(&stage.client(), "echo");
        // The first client makes what the process keeps.
        lose(test, &stage, &honest, STEPS[4], false);
        let (census, bytes) = (Census::take(), shared_bytes());
        for step in STEPS {
            lose(test, &stage, &honest, step, false);
            census.comes_back_but_for_a_spare();
        }
        assert!(shared_bytes() <= bytes + (1 << 20));
        assert_eq!(stage.counts.of("load"), stage.counts.of("unload") + 1);
        assert_eq!(stage.counts.of("commit"), stage.counts.of("release") + 1);
    });
}

#[test]
fn a_client_whose_forked_child_lives_on_leaves_nothing() {
    let test = "a_client_whose_forked_child_lives_on_leaves_nothing";
    alone(test, || {
        let stage = Stage::with(ServerOptions::new().workers(4).allow_unsealed(true));
        let honest = Ready::committed(&stage.client(), "echo");
        lose(test, &stage, &honest, STEPS[4], true);
        let census = Census::take();
        for step in [STEPS[0], STEPS[2], STEPS[3], STEPS[4], STEPS[8]] {
            lose(test, &stage, &honest, step, true);
            census.comes_back_but_for_a_spare();
        }
    });
}

/// Returns the private memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_thousand_commits_and_releases_leave_nothing() {
    let test = "a_thousand_commits_and_releases_leave_nothing";
    alone(test, || {
        let stage = Stage::new();
        let client = stage.client();
        let ready = Ready::new(&client, "echo");
        let round = |round: u32| {
            ready.session.commit().unwrap();
            ready.works(round as u8);
            ready.session.release().unwrap();
            if round.is_multiple_of(10) {
                say("on");
                let other = Ready::committed(&client, "ext");
                other.works(round as u8);
                other.model.close().unwrap();
            }
        };
        (0..200).for_each(round);
        let (census, bytes, before) = (Census::take(), shared_bytes(), resident());
        let start = Instant::now();
        (0..1000).for_each(round);
        let took = start.elapsed() / 1000;
        census.comes_back();
        assert_eq!(shared_bytes(), bytes);
        let after = resident();
        assert!(after < before + (2 << 20), "{before} bytes, and then {after}");
        eprintln!(
            "a commit, an execution and a release: {took:?}; {before} bytes before, {after} after"
        );
        let stats = stage.server.stats();
        assert_eq!((stats.models, stats.commits, stats.mappings), (1, 0, 0));
    });
}

#[test]
fn clients_that_die_with_commits_one_after_another_leave_nothing() {
    let test = "clients_that_die_with_commits_one_after_another_leave_nothing";
    alone(test, || {
        let count = if sample::is_whole() { 1000 } else { 50 };
        let stage = Stage::with(ServerOptions::new().workers(4).allow_unsealed(true));
        let honest = Ready::committed(&stage.client(), "echo");
        (0..5).for_each(|_| lose(test, &stage, &honest, STEPS[3], false));
        let (census, bytes, before) = (Census::take(), shared_bytes(), resident());
        for _ in 0..count {
            lose(test, &stage, &honest, STEPS[3], false);
            say("on");
        }
        census.comes_back_but_for_a_spare();
        assert!(shared_bytes() <= bytes + (1 << 20));
        let after = resident();
        assert!(after < before + (2 << 20), "{before} bytes, and then {after}");
        eprintln!("{count} clients: {before} bytes before, {after} after");
        let stats = stage.server.stats();
        assert_eq!((stats.clients, stats.models, stats.commits, stats.mappings), (1, 1, 1, 2));
        assert_eq!(stage.counts.of("gone"), 5 + count);
    });
}

/// Runs a service at `name`, in another process.
fn serve(name: &str) {
    let stage = Stage::at(name, ServerOptions::new().workers(8));
    say("serving");
    wait_until("the executions", || stage.counts.of("execute") >= 6);
    wait_until("the commit", || stage.counts.of("commit") >= 7);
    say("busy");
    wait_for_death();
}

#[test]
fn a_service_that_is_killed_is_told_to_all_that_wait_and_a_new_one_takes_the_same_buffers() {
    let test =
        "a_service_that_is_killed_is_told_to_all_that_wait_and_a_new_one_takes_the_same_buffers";
    let name = unique_name();
    let mut service = Other::start(test, &name, serve);
    service.expect("serving");
    let client = connect(&name);
    let ready = Ready::committed(&client, "echo");
    ready.works(1);
    let slow: Vec<Ready> = (0..4).map(|_| Ready::committed(&client, "slow 60000")).collect();
    let several = client.load(b"slow 60000").unwrap();
    let session = several.session(0).unwrap();
    let _buffers = session.allocate_all().unwrap();
    session.commit().unwrap();
    let mut executions = several.start_all().unwrap();
    let mut started: Vec<_> =
        slow[1..].iter().map(|ready| ready.session.start().unwrap()).collect();
    let committing = Ready::new(&client, "slowly 60000");
    let releasing = &slow[3];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| is_gone(slow[0].session.execute()));
        let mut polled = started.pop().unwrap();
        let polling = scope.spawn(move || {
            loop {
                let fd = polled.as_fd().try_clone_to_owned().unwrap();
                if let Some(outcome) = polled.try_wait() {
                    return is_gone(outcome);
                }
                let fds = &mut [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let ready = rustix::event::poll(fds, Some(&HANG.try_into().unwrap())).unwrap();
                assert_eq!(ready, 1, "nobody told");
            }
        });
        let commit = scope.spawn(|| is_gone(committing.session.commit()));
        // It waits for the execution.
        let release = scope.spawn(|| is_gone(releasing.session.release()));
        service.expect("busy");
        service.kill();
        for waiting in [waiting, polling, commit, release] {
            wait_until("the end of a wait", || waiting.is_finished());
            waiting.join().unwrap();
        }
    });
    let late = started.pop().unwrap();
    is_gone(late.wait());
    is_gone(started[0].wait_deadline(Instant::now() + HANG));
    is_gone(executions.try_wait().unwrap());
    // Every later call.
    for ready in [&ready, &slow[0], releasing, &committing] {
        let Ready { model, session, buffers } = ready;
        is_gone(session.execute());
        is_gone(session.start());
        is_gone(session.commit());
        is_gone(session.commit_with_ext());
        is_gone(session.update(&[(Direction::In, 0, &buffers[0])]));
        is_gone(session.release());
        is_gone(session.set(Direction::In, 0, &buffers[0]));
        is_gone(session.state());
        is_gone(session.id());
        is_gone(model.execute_all());
        is_gone(model.sessions(2));
        is_gone(model.session(0));
        is_gone(model.close());
        assert_eq!(model.count(Direction::In), 1);
    }
    is_gone(client.load(b"echo"));
    is_gone(client.load_descriptor(std::fs::File::open("/dev/null").unwrap(), 0, 1));
    assert_eq!(ready.buffers[1].to_vec().unwrap(), [2; 8]);

    let _ = service.wait();
    let again = Other::spawn(test, &name);
    again.expect("serving");
    let fresh = connect(&name);
    let model = fresh.load(b"echo").unwrap();
    let session = model.session(0).unwrap();
    session.set_all(&ready.buffers.iter().collect::<Vec<_>>()).unwrap();
    session.commit().unwrap();
    Ready { model, session, buffers: ready.buffers }.works(7);
}

#[test]
fn a_service_that_forks_is_seen_to_die_all_the_same() {
    let test = "a_service_that_forks_is_seen_to_die_all_the_same";
    let name = unique_name();
    let mut service = Other::start(test, &name, |name| {
        let stage = Stage::at(name, ServerOptions::new().workers(2));
        say("serving");
        wait_until("the execution", || stage.counts.of("execute") > 0);
        say(&fork_holder().to_string());
        wait_for_death();
    });
    service.expect("serving");
    let client = connect(&name);
    let ready = Ready::committed(&client, "slow 60000");
    let mut execution = ready.session.start().unwrap();
    let child: i32 = service.hear().parse().unwrap();
    service.kill();
    is_gone(execution.wait_deadline(Instant::now() + HANG));
    is_gone(ready.session.execute());
    kill(child);
}

fn is_forked<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert_eq!(kind(answer), ErrorKind::Forked);
}

#[test]
fn a_forked_child_can_use_nothing_of_a_client_and_harms_nobody() {
    let test = "a_forked_child_can_use_nothing_of_a_client_and_harms_nobody";
    alone(test, || {
        let stage = Stage::new();
        let client = stage.client();
        let ready = Ready::committed(&client, "echo");
        let idle = Ready::new(&client, "echo");
        let slow = Ready::committed(&client, "slow 200");
        ready.works(1);
        let execution = slow.session.start().unwrap();
        let mut kept = Some((client, ready, idle, slow, execution));
        let status = fork(|| {
            let (client, ready, idle, slow, mut execution) = kept.take().unwrap();
            for Ready { model, session, buffers } in [&ready, &idle, &slow] {
                is_forked(session.execute());
                is_forked(session.start());
                is_forked(session.commit());
                is_forked(session.commit_with_ext());
                is_forked(session.update(&[(Direction::In, 0, &buffers[0])]));
                is_forked(session.release());
                is_forked(session.set(Direction::In, 0, &buffers[0]));
                is_forked(session.set_by_label("x", &buffers[0]));
                is_forked(session.set_all(&buffers.iter().collect::<Vec<_>>()));
                is_forked(session.set_region(0, &buffers[0]));
                is_forked(session.state());
                is_forked(session.id());
                is_forked(session.missing());
                is_forked(model.execute_all());
                is_forked(model.sessions(2));
                is_forked(model.session(0));
                is_forked(model.close());
                is_forked(buffers[0].to_vec());
                is_forked(buffers[0].write_at(0, &[9]));
            }
            is_forked(client.load(b"echo"));
            is_forked(client.load_descriptor(std::fs::File::open("/dev/null").unwrap(), 0, 1));
            let _ = client.as_fd();
            is_forked(execution.wait_deadline(Instant::now() + Duration::from_millis(1)));
            is_forked(execution.try_wait().unwrap());
            is_forked(execution.wait());
            drop((ready, idle, slow, client));
        });
        assert_eq!(status, 0, "the forked child failed");
        let (_client, ready, idle, slow, execution) = kept.take().unwrap();
        execution.wait().unwrap();
        ready.works(2);
        idle.session.commit().unwrap();
        idle.works(3);
        slow.works(4);
        let stats = stage.server.stats();
        assert_eq!((stats.clients, stats.models, stats.commits), (1, 3, 3));
    });
}

#[test]
fn a_server_that_is_dropped_ends_its_clients_and_its_threads() {
    let test = "a_server_that_is_dropped_ends_its_clients_and_its_threads";
    alone(test, || {
        let round = || {
            let stage = Stage::new();
            let clients: Vec<Ready> = ["echo", "echo", "slow 20", "slowly 5"]
                .iter()
                .map(|model| Ready::committed(&stage.client(), model))
                .collect();
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                let executing: Vec<_> = clients
                    .iter()
                    .map(|ready| {
                        scope.spawn(|| {
                            let end = loop {
                                if let Err(error) = ready.session.execute() {
                                    break Err::<(), Error>(error);
                                }
                                let _ = ready.session.update(&[]);
                            };
                            assert!(over.load(Ordering::Relaxed), "{end:?}");
                            is_gone(end);
                        })
                    })
                    .collect();
                wait_until("executions", || stage.server.stats().executions > 50);
                let counts = stage.counts.clone();
                over.store(true, Ordering::Relaxed);
                drop(stage);
                assert_eq!(counts.of("load"), counts.of("unload"));
                assert_eq!(counts.of("commit"), counts.of("release"));
                assert_eq!(counts.of("gone"), 4);
                for executing in executing {
                    wait_until("the end of a client", || executing.is_finished());
                    executing.join().unwrap();
                }
            });
            for ready in &clients {
                ready.buffers[1].to_vec().unwrap();
                is_gone(ready.session.execute());
            }
        };
        round();
        let census = Census::take();
        (0..10).for_each(|_| round());
        census.comes_back();
    });
}
