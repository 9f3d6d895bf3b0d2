//! System calls of executions of an inline model, between two sides that are awake: the client makes none, and the server
//! none for an execution.
//!
//! A binary of its own: two sides that never sleep need both processors, and other tests would disturb every round.

#![allow(unsafe_code)]

mod support;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use slipring::commit::{Buffer, Client, Model, ServerOptions, Session};
use slipring::options::Spin;
use slipring::{Context, Options};

use support::other::{Other, run_here};
use support::quiet;
use support::service::Stage;
use support::{HANG, soon, unique_name};

/// Returns a context whose links never sleep.
fn awake() -> Context {
    Context::with_options(Options::new().spin(Spin::Forever)).unwrap()
}

/// A client and a server that never sleep, and a committed session.
struct Awake {
    _stage: Stage,
    _client: Client,
    _model: Model,
    session: Session,
    buffers: Vec<Buffer>,
}

impl Awake {
    fn new() -> Self {
        let stage = Stage::of(awake(), &unique_name(), ServerOptions::new().workers(2));
        let client = Client::connect(&awake(), &stage.name).unwrap();
        let model = client.load(b"inline").unwrap();
        let session = model.session(0).unwrap();
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        Self { _stage: stage, _client: client, _model: model, session, buffers }
    }

    fn execute(&self, round: u32) {
        let (seed, mut answer) = ((round % 251) as u8, [0; 8]);
        self.buffers[0].write_at(0, &[seed; 8]).unwrap();
        self.session.execute().unwrap();
        self.buffers[1].read_at(0, &mut answer).unwrap();
        assert_eq!(answer, [seed + 1; 8]);
    }
}

/// Executions of one round. A server arms the link of a client that was silent for some 50 µs, and sleeps when
/// all links are armed; the next message wakes it. Beside other load only some rounds are without a pause.
const ROUND: u32 = 2000;

/// Two that never sleep take two processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// How long to wait for a round without a pause.
fn patience() -> Instant {
    soon() + 2 * HANG
}

#[test]
fn a_client_that_executes_makes_no_system_call() {
    let test = "a_client_that_executes_makes_no_system_call";
    run_here(test, |_| {
        let (mut done, told) = std::io::pipe().unwrap();
        thread::spawn(move || {
            let awake = Awake::new();
            (0..5 * ROUND).for_each(|round| awake.execute(round));
            quiet::only_writes();
            (0..ROUND).for_each(|round| awake.execute(round));
            // Not dropped: the service would hear of it.
            std::mem::forget(awake);
            quiet::end(&told)
        });
        done.read_exact(&mut [0; 1]).unwrap();
    });
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (deadline, mut tried) = (patience(), 0);
    loop {
        let status = Other::spawn(test, "").wait();
        tried += 1;
        if status.success() {
            break;
        }
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
        assert!(
            Instant::now() < deadline,
            "in each of {tried} rounds the client makes a system call"
        );
    }
    println!("round {tried} was without a system call of the client's");
}

/// The calls of a server that never sleeps: every 50 µs it yields its CPU and asks for events of other links and of its
/// listener. They go by time, not by executions.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const BY_TIME: [(&str, &[libc::c_long]); 1] =
    [("slipring-commit", &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_sched_yield])];

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn a_service_that_executes_makes_no_system_call_for_an_execution() {
    use support::trace::{Call, Plan, enter, run, watch_me};
    let test = "a_service_that_executes_makes_no_system_call_for_an_execution";
    run_here(test, |_| {
        watch_me();
        let (awake, start) = (Awake::new(), Instant::now());
        (0..5 * ROUND).for_each(|round| awake.execute(round));
        for _ in 0..20 {
            enter(1);
            (0..ROUND).for_each(|round| awake.execute(round));
            // Beside other load each call that the tracer sees takes long. The next process has rounds, too.
            if start.elapsed() > HANG / 2 {
                break;
            }
        }
        enter(0);
    });
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (deadline, mut quiet) = (patience(), Vec::new());
    while quiet.is_empty() {
        assert!(Instant::now() < deadline, "both sides make system calls in each round");
        let Some(outcome) = run(test, "", Plan::Watch) else { return };
        assert_eq!((outcome.code, outcome.signal), (Some(0), None));
        let goes_by_time = |call: &Call| {
            let name = &outcome.names[&call.thread];
            let of = |(who, calls): &(&str, &[libc::c_long])| {
                who == name && calls.contains(&call.number)
            };
            call.thread != outcome.speaker && BY_TIME.iter().any(of)
        };
        for round in 1..outcome.rounds {
            let calls: Vec<&Call> =
                outcome.calls.iter().filter(|call| call.round == round).collect();
            // Fewer than one in four executions.
            if calls.iter().all(|call| goes_by_time(call)) && calls.len() < ROUND as usize / 4 {
                quiet.push(calls.len());
            }
        }
    }
    println!("calls in rounds of {ROUND} executions, all of them by time: {quiet:?}");
}
