//! One process falls asleep at the moment when another wakes it, many times. No wake-up is lost.
//!
//! There are 20,000 of each kind, or ten million with `SLIPRING_TESTS=whole`. A hang is a failure. With
//! `SLIPRING_JUDGE=1` an answer that takes more than 100 ms is one, too.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::other::Other;
use crate::support::{sample, soon, unique_name};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use slipring::error::TryRecvError;
use slipring::options::Spin;
use slipring::{Connection, Context, EventLoop, Options};

/// The longest answer that is no stall.
const STALL: Duration = Duration::from_millis(100);

/// How long the answering side may idle before it answers, in spin hints: from before the asking side
/// has begun to go to sleep to after it sleeps.
const IDLE: u64 = 400;

/// Returns how many races there are, and whether times are judged.
fn races() -> (u64, bool) {
    (if sample::is_whole() { 10_000_000 } else { 20_000 }, sample::is_judged())
}

/// A fixed sequence that looks random.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A link to another process, which answers each message after another idle time.
fn answered(test: &str) -> (Connection, Other) {
    let name = unique_name();
    let other = Other::start(test, &name, |name| {
        let mut far =
            Context::with_options(sleepless()).unwrap().connect_retry(name, soon()).unwrap();
        let (mut message, mut state) = (Vec::new(), 0x2545_F491_4F6C_DD1D_u64);
        while far.receiver().recv_into(&mut message).unwrap().is_some() {
            idle(&mut state);
            far.send(&message).unwrap();
        }
    });
    let context = Context::with_options(sleepless()).unwrap();
    let near = context.listen(&name).unwrap().accept_deadline(soon()).unwrap();
    (near, other)
}

fn idle(state: &mut u64) {
    for _ in 0..next(state) % IDLE {
        std::hint::spin_loop();
    }
}

/// Asks for round trips, each after another idle time.
fn race(what: &str, mut ask: impl FnMut(&[u8; 8]) -> Vec<u8>, mut other: Other) {
    let (count, judged) = races();
    let mut longest = Duration::ZERO;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for number in 0..count {
        idle(&mut state);
        let start = Instant::now();
        assert_eq!(ask(&number.to_le_bytes()), number.to_le_bytes());
        longest = longest.max(start.elapsed());
    }
    drop(ask);
    other.succeeds();
    println!("{what}: {count} races, the longest answer took {longest:?}");
    assert!(!judged || longest < STALL, "{what}: an answer took {longest:?}");
}

fn sleepless() -> Options {
    Options::new().spin(Spin::Never)
}

#[test]
fn threads_that_sleep_on_a_bell_are_woken() {
    let (mut near, other) = answered("threads_that_sleep_on_a_bell_are_woken");
    let ask = move |message: &[u8; 8]| {
        near.send(message).unwrap();
        near.recv().unwrap().unwrap()
    };
    race("futex", ask, other);
}

#[test]
fn loops_that_sleep_on_a_descriptor_are_woken() {
    for edge in [EventFlags::empty(), EventFlags::ET] {
        let (mut near, other) = answered("loops_that_sleep_on_a_descriptor_are_woken");
        let events = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let flags = EventFlags::IN | edge;
        epoll::add(&events, near.as_fd(), EventData::new_u64(0), flags).unwrap();
        let ask = move |message: &[u8; 8]| {
            near.send(message).unwrap();
            loop {
                match near.receiver().try_recv() {
                    Ok(answer) => return answer.unwrap(),
                    Err(TryRecvError::Empty) => {
                        let mut space = [MaybeUninit::<Event>::uninit(); 1];
                        epoll::wait(&events, &mut space, None).unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        race(if edge.is_empty() { "level" } else { "edge" }, ask, other);
    }
}

#[test]
fn a_reactor_that_sleeps_is_woken() {
    let (near, other) = answered("a_reactor_that_sleeps_is_woken");
    let context = Context::with_options(sleepless()).unwrap();
    let mut events = EventLoop::new(&context).unwrap();
    let link = events.reactor().adopt(near).unwrap();
    let (answered, answers) = mpsc::channel();
    link.on_message(move |_, message| answered.send(message.to_vec()).unwrap());
    let ask = move |message: &[u8; 8]| {
        link.try_send(message).unwrap();
        let mut answer = None;
        events
            .run_until(|| {
                answer = answer.take().or_else(|| answers.try_recv().ok());
                answer.is_some()
            })
            .unwrap();
        answer.unwrap()
    };
    race("reactor", ask, other);
}
