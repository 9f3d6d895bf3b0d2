//! A peer that is killed at every one of its system calls.
//!
//! ```text
//!   survivor (one process for a whole sweep)        victim (a process for each place)
//!   listens, or connects ◀──────────────────────▶   phase 1: connects, or listens and accepts
//!   echoes ◀────────────────────────────────────▶   phase 2: short messages
//!   echoes ◀────────────────────────────────────▶   phase 3: long messages, its pool grows
//!   holds, sends one back ◀─────────────────────▶   phase 4: tensors
//!   sees the end ◀──────────────────────────────    phase 5: closes
//! ```
//!
//! Wherever the victim dies, the survivor sees it, another link of the same context works, and all loans
//! come back. A few places of each phase are tried, or
//! all of them (`SLIPRING_TESTS=whole`).

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use slipring::{Connection, Context, Error, ErrorKind, Listener, Options, Tensor};

use crate::support::census::Census;
use crate::support::other;
use crate::support::trace::{self, Outcome, Plan};
use crate::support::{Witness, sample, soon, unique_name};

/// How late a death may be seen on a busy machine, and how long a step of a live victim may take.
const SEEN: Duration = Duration::from_secs(8);

/// How long a look at a listener takes at most before the victim's state is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Places of each phase that are tried where not all are.
const PLACES: usize = 12;

const PHASES: std::ops::RangeInclusive<u64> = 1..=5;

/// The message that ends the messages.
const LAST: &[u8] = b"tensors now";

/// The survivor's memory: what is lost of it is missed.
const QUOTA: usize = 4 << 20;

fn late() -> Instant {
    Instant::now() + SEEN
}

/// The side that connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    VictimConnects,
    VictimAccepts,
}

/// In the victim: a link's whole life.
fn victim(role: Role, name: &str) {
    trace::watch_me();
    trace::enter(1);
    let context = Context::new().unwrap();
    let mut link = match role {
        Role::VictimConnects => context.connect_deadline(name, soon()).unwrap(),
        Role::VictimAccepts => {
            let mut listener = context.listen(name).unwrap();
            listener.accept_deadline(soon()).unwrap()
        }
    };
    trace::enter(2);
    let echo = |link: &mut Connection, len: usize| {
        let message = vec![len as u8; len];
        link.sender().send_deadline(&message, soon()).unwrap();
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), message);
    };
    [0, 48, 300].into_iter().for_each(|len| echo(&mut link, len));
    // More than the first ring holds: both sides go on in their second one.
    let messages = || (1000..1040).map(|len| vec![len as u8; len]);
    for message in messages() {
        link.sender().send_deadline(&message, soon()).unwrap();
    }
    for message in messages() {
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), message);
    }
    trace::enter(3);
    [5000, 20_000, 100_000, 400_000, 1_000_000].into_iter().for_each(|len| echo(&mut link, len));
    trace::enter(4);
    link.sender().send_deadline(LAST, soon()).unwrap();
    let mut lent = context.alloc::<u32>([5000]).unwrap();
    lent.fill(4);
    link.sender().send_tensor_deadline(lent, soon()).unwrap();
    let mut frozen = context.alloc_frozen::<u32>([5000]).unwrap();
    frozen.fill(4);
    link.sender().send_tensor_deadline(frozen, soon()).unwrap();
    let private = Tensor::from_slice([5000], &[4u32; 5000]).unwrap();
    link.sender().send_tensor_deadline(&private, soon()).unwrap();
    let held = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    trace::enter(5);
    link.close().unwrap();
    drop((held, context));
    trace::enter(0);
}

/// Where the survivor meets victims.
enum Stage<'a> {
    Listening(Box<Listener>),
    Connecting(&'a Context, &'a str),
}

type Run<'a> = ScopedJoinHandle<'a, Option<Outcome>>;

/// In the survivor: the link to the victim. `None`: it died before there was one.
fn meet(stage: &mut Stage<'_>, run: &Run<'_>) -> Option<Connection> {
    loop {
        // A victim that is dead now neither connects nor listens.
        let dead = run.is_finished();
        let nobody = match stage {
            Stage::Listening(listener) => match listener.accept_deadline(Instant::now() + LOOK) {
                Ok(link) => return Some(link),
                // Whatever else peers do is no error of a listener.
                Err(error) => match error.kind() {
                    ErrorKind::TimedOut { .. } => Ok(()),
                    _ => Err(error),
                },
            },
            Stage::Connecting(context, name) => match context.connect_deadline(*name, late()) {
                Ok(link) => return Some(link),
                Err(error) => match error.kind() {
                    ErrorKind::NobodyListens { .. } => {
                        // As in `connect_retry`.
                        thread::sleep(Duration::from_millis(1));
                        Ok(())
                    }
                    ErrorKind::PeerClosed | ErrorKind::PeerDied => return None,
                    _ => Err(error),
                },
            },
        };
        nobody.unwrap();
        if dead {
            return None;
        }
    }
}

/// In the survivor: the victim's partner, until the victim's end.
fn accompany(context: &Context, link: &mut Connection) -> Result<(), Error> {
    loop {
        let Some(message) = link.receiver().recv_deadline(late())? else { return Ok(()) };
        if message == LAST {
            break;
        }
        assert!(message.iter().all(|byte| *byte == message.len() as u8), "a torn message");
        link.sender().send_deadline(&message, late())?;
    }
    let mut held = Vec::new();
    let end = tensors(context, link, &mut held);
    for tensor in &held {
        assert_eq!(tensor.to_vec::<u32>().unwrap(), [4; 5000], "it outlives its sender");
    }
    end
}

fn tensors(context: &Context, link: &mut Connection, held: &mut Vec<Tensor>) -> Result<(), Error> {
    for _ in 0..3 {
        let Some(tensor) = link.receiver().recv_tensor_deadline(late())? else { return Ok(()) };
        held.push(tensor);
    }
    link.sender().send_tensor_deadline(context.alloc::<u64>([100_000])?, late())?;
    assert_eq!(link.receiver().recv_deadline(late())?, None, "there is nothing more to come");
    Ok(())
}

/// One life and death of a victim. `None`: it cannot be watched here.
fn once(context: &Context, test: &str, role: Role, plan: Plan) -> Option<Outcome> {
    let name = unique_name();
    // Before the victim is there.
    let mut stage = match role {
        Role::VictimConnects => Stage::Listening(Box::new(context.listen(&*name).unwrap())),
        Role::VictimAccepts => Stage::Connecting(context, &name),
    };
    let argument = format!("victim {name}");
    let start = Instant::now();
    thread::scope(|scope| {
        let run = scope.spawn(|| trace::run(test, &argument, plan));
        let link = meet(&mut stage, &run);
        let end = link.map(|mut link| accompany(context, &mut link));
        let outcome = run.join().unwrap()?;
        // A side that is not woken notices at its deadline.
        assert!(start.elapsed() < SEEN, "seen after {:?}", start.elapsed());
        let phase = match plan {
            Plan::Kill { phase, .. } if outcome.reached => phase,
            _ => 6,
        };
        match &end {
            None => assert_eq!(phase, 1, "only while they meet there may be no link"),
            Some(Ok(())) => assert!(phase >= 5, "a killed peer has not closed in order"),
            Some(Err(error)) => {
                assert_eq!(*error.kind(), ErrorKind::PeerDied, "killed in phase {phase}");
                assert!(phase <= 5, "a live peer did not die");
            }
        }
        Some(outcome)
    })
}

/// All memory of the survivor is there again.
fn settle(context: &Context, innocent: &mut Witness) {
    innocent.check();
    drop(context.allocation().until(soon()).typed::<u8>([QUOTA]).unwrap());
    context.trim();
}

/// In the survivor: victims, each killed one place later.
fn survive(test: &str, role: Role) {
    let context = Context::with_options(Options::new().pool_quota(QUOTA as u64)).unwrap();
    let mut innocent = Witness::new(&context);
    let Some(whole) = once(&context, test, role, Plan::Watch) else { return };
    assert_eq!(whole.code, Some(0), "undisturbed: {whole:?}");
    settle(&context, &mut innocent);
    let census = Census::take();
    let (mut tried, mut killed) = (0, 0);
    for phase in PHASES {
        let count = whole.stops.get(&phase).copied().unwrap_or(0);
        for at in sample::places(count, PLACES) {
            let plan = Plan::Kill { phase, at };
            eprintln!("{role:?}: phase {phase}, stop {at} of {count}");
            let outcome = once(&context, test, role, plan).unwrap();
            let end = (outcome.code, outcome.signal);
            match outcome.reached {
                true => assert_eq!(end, (None, Some(libc::SIGKILL)), "{outcome:?}"),
                // Another time it makes fewer calls.
                false => assert_eq!(end, (Some(0), None), "{outcome:?}"),
            }
            settle(&context, &mut innocent);
            census.comes_back_but_for_a_spare();
            tried += 1;
            killed += usize::from(outcome.reached);
        }
    }
    eprintln!("{role:?}: {tried} victims, {killed} killed; stops by phase {:?}", whole.stops);
    assert!(killed > 0);
}

fn sweep(test: &str, role: Role) {
    other::run_here(test, |argument| match argument.split_once(' ') {
        None => survive(test, role),
        Some((_, name)) => victim(role, name),
    });
    // A process of its own, for its census.
    let survivor = other::command(test, "survivor").output().unwrap();
    let said = String::from_utf8_lossy(&survivor.stderr);
    assert!(survivor.status.success(), "{said}");
    println!("{}", said.lines().last().unwrap_or_default());
}

#[test]
fn a_connecting_peer_may_be_killed_at_every_call() {
    sweep("a_connecting_peer_may_be_killed_at_every_call", Role::VictimConnects);
}

#[test]
fn an_accepting_peer_may_be_killed_at_every_call() {
    sweep("an_accepting_peer_may_be_killed_at_every_call", Role::VictimAccepts);
}
