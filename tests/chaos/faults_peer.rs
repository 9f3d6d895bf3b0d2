//! A system call fails in one process, and an honest peer in another process is told in time.
//!
//! ```text
//!   honest (the test)                               victim (a process for each place)
//!   listens, or connects ◀──────────────────────▶   phase 1: meets, exchanges; a call fails, once or
//!   serves until the end ◀──────────────────────▶            from then on; what it has is dropped
//!   sees the end, or its own error                  phase 0: calls succeed again
//!   serves again ◀──────────────────────────────▶   the same exchange, whole
//! ```
//!
//! The honest side serves one link after the other: the second begins when it is told of the end of the first. None of
//! its waits may end by its deadline.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::thread;
use std::time::{Duration, Instant};

use libc::{EAGAIN, EINTR, EIO, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC};
use slipring::{Connection, Context, Error, ErrorKind, Listener, Options};

use crate::support::faulty::*;
use crate::support::trace::{self, Call, Meant, Outcome, Plan};
use crate::support::{Witness, other, sample, soon, unique_name};

/// Places of each call that are tried for each role where not all are.
const PLACES: usize = 6;

/// The message that ends the messages.
const LAST: &[u8] = b"tensors now";

/// The first message of an exchange that is not disturbed.
const AGAIN: &[u8] = b"again";

/// The honest side's memory: what is lost of it is missed.
const QUOTA: usize = 4 << 20;

#[derive(Debug, Clone, Copy)]
enum Role {
    VictimConnects,
    VictimAccepts,
}

const ROLES: [(&str, Role); 2] =
    [("connects", Role::VictimConnects), ("accepts", Role::VictimAccepts)];

fn options() -> Options {
    Options::new().handshake_timeout(PATIENCE).send_timeout(PATIENCE)
}

/// In the victim: an exchange, from the meeting to the end.
fn exchange(role: Role, name: &str, greeting: &[u8]) -> Ended {
    let context = Context::with_options(options())?;
    let mut link = match role {
        Role::VictimConnects => context.connect_deadline(name, patience())?,
        Role::VictimAccepts => context.listen(name)?.accept_deadline(patience())?,
    };
    for len in [48, 5000, 20_000, 1_000_000] {
        let mut message = vec![7; len];
        message[..greeting.len()].copy_from_slice(greeting);
        link.sender().send_deadline(&message, patience())?;
        let back = link.receiver().recv_deadline(patience())?.ok_or("an end instead of an echo")?;
        assert_eq!(back, message);
    }
    link.sender().send_deadline(LAST, patience())?;
    let mut lent = context.alloc::<u32>([5000])?;
    lent.fill(4);
    link.sender().send_tensor_deadline(lent, patience())?;
    let mut frozen = context.alloc_frozen::<u32>([5000])?;
    frozen.fill(4);
    link.sender().send_tensor_deadline(frozen, patience())?;
    let held =
        link.receiver().recv_tensor_deadline(patience())?.ok_or("an end instead of a tensor")?;
    assert_eq!(link.call_deadline(&[5; 30_000], patience())?, [5; 30_000]);
    link.close()?;
    drop(held);
    Ok(())
}

/// In the victim: one exchange that is disturbed, and one that is not.
fn victim(role: Role, name: &str) {
    trace::watch_me();
    trace::enter(1);
    let ended = exchange(role, name, b"first");
    trace::enter(0);
    // The honest side comes when it has seen the end of the first link.
    let deadline = soon();
    loop {
        match exchange(role, name, AGAIN) {
            Ok(()) => break,
            // It may have come back in between, to somebody who was about to leave.
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            Err(error) => panic!("after calls succeed again: {error}"),
        }
    }
    std::process::exit(if ended.is_ok() { 0 } else { FAILED });
}

/// In the honest side: plays the victim's partner until the end. Returns whether the exchange should be whole.
fn serve(context: &Context, link: &mut Connection) -> (bool, Result<(), Error>) {
    let mut again = false;
    let served = (|| {
        loop {
            let Some(message) = link.receiver().recv_deadline(soon())? else { return Ok(()) };
            if message == LAST {
                break;
            }
            again |= message.starts_with(AGAIN);
            assert!(message.iter().skip(5).all(|byte| *byte == 7), "a torn message");
            link.sender().send_deadline(&message, soon())?;
        }
        for _ in 0..2 {
            let Some(tensor) = link.receiver().recv_tensor_deadline(soon())? else { return Ok(()) };
            assert_eq!(tensor.to_vec::<u32>().unwrap(), [4; 5000]);
        }
        link.sender().send_tensor_deadline(context.alloc::<u64>([100_000])?, soon())?;
        while let Some(request) = link.recv_request()? {
            link.respond(request.id, &request.body)?;
        }
        Ok(())
    })();
    (again, served)
}

/// Where the honest side meets the victim.
enum Stage<'a> {
    Listening(Box<Listener>),
    Connecting(&'a Context, &'a str),
}

/// A link to the victim, or why there is none now.
fn meet(stage: &mut Stage<'_>) -> Result<Connection, Error> {
    match stage {
        Stage::Listening(listener) => {
            listener.accept_deadline(Instant::now() + Duration::from_millis(5))
        }
        Stage::Connecting(context, name) => {
            thread::sleep(Duration::from_millis(1));
            context.connect_deadline(*name, soon())
        }
    }
}

/// One victim with its honest peer. `None`: it cannot be watched here.
fn run(context: &Context, test: &str, role: &str, plan: Plan) -> Option<(Outcome, Vec<String>)> {
    let name = unique_name();
    let mut stage = match role {
        "connects" => Stage::Listening(Box::new(context.listen(&*name).unwrap())),
        _ => Stage::Connecting(context, &name),
    };
    let argument = format!("{role} {name}");
    let mut wrong = Vec::new();
    thread::scope(|scope| {
        let run = scope.spawn(|| trace::run(test, &argument, plan));
        loop {
            let ended = run.is_finished();
            let met = meet(&mut stage);
            let start = Instant::now();
            let end = match met {
                Ok(mut link) => {
                    let (again, end) = serve(context, &mut link);
                    if again && end.is_ok() {
                        break;
                    }
                    end
                }
                Err(error) if error.is_timeout() && role == "connects" => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = end {
                let fine = matches!(
                    error.kind(),
                    ErrorKind::PeerDied
                        | ErrorKind::PeerClosed
                        | ErrorKind::NotAdmittedByPeer
                        | ErrorKind::RefusedByPeer { .. }
                        | ErrorKind::NobodyListens { .. }
                );
                if !fine {
                    wrong.push(format!("the peer met {error}"));
                }
            }
            // The victim's own patience comes before its end.
            if start.elapsed() > 3 * PATIENCE {
                wrong.push(format!("the peer was told after {:?}", start.elapsed()));
            }
            if ended {
                break;
            }
        }
        drop(stage);
        Some((run.join().unwrap()?, wrong))
    })
}

fn peers_are_told(test: &str, meant: Meant, errors: &[i32], how: How) {
    other::run_here(test, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        victim(ROLES.iter().find(|(each, _)| *each == role).unwrap().1, name);
    });
    let context = Context::with_options(options().pool_quota(QUOTA as u64)).unwrap();
    let mut innocent = Witness::new(&context);
    let mut all_wrong = Vec::new();
    for (role, _) in ROLES {
        let Some((whole, wrong)) = run(&context, test, role, Plan::Watch) else { return };
        assert_eq!((whole.code, &*wrong), (Some(0), &[][..]), "undisturbed: {whole:?}");
        let count = whole.count(meant);
        let (mut reached, mut told) = (0, 0);
        for (number, at) in sample::places(count, PLACES).enumerate() {
            for &errno in sample::errors(errors, number) {
                let (outcome, wrong) = run(&context, test, role, how(meant, at, errno)).unwrap();
                reached += usize::from(outcome.reached);
                told += usize::from(outcome.code == Some(FAILED));
                let healed = errno != EINTR || outcome.code == Some(0);
                if !matches!(outcome.code, Some(0 | FAILED)) || !healed || !wrong.is_empty() {
                    let (code, took) = (outcome.code, outcome.took);
                    all_wrong.push(format!(
                        "{role}, {at} of {count}, {errno}: {code:?}, {took:?}, {wrong:?}"
                    ));
                }
                innocent.check();
                // All that it lent is there again.
                drop(context.allocation().until(soon()).typed::<u8>([QUOTA]).unwrap());
                context.trim();
            }
        }
        println!("{test}, victim {role}: {count} calls, {reached} failed, {told} errors");
    }
    assert!(all_wrong.is_empty(), "{test}:\n  {}", all_wrong.join("\n  "));
}

macro_rules! the_peer_is_told {
    ($($test:ident: $meant:expr, $errors:expr, $how:expr;)*) => {$(
        #[test]
        fn $test() {
            peers_are_told(stringify!($test), $meant, &$errors, $how);
        }
    )*};
}

fn is_of_a_socket(call: &Call) -> bool {
    [
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_accept4,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        libc::SYS_epoll_ctl,
    ]
    .contains(&call.number)
}

fn is_of_memory(call: &Call) -> bool {
    is_mmap_of_ours(call)
        || is_madvise_of_ours(call)
        || [libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_fstat, libc::SYS_fcntl]
            .contains(&call.number)
}

the_peer_is_told! {
    of_descriptors_that_are_refused: needs_a_descriptor, [EMFILE, ENFILE], once;
    of_memory_that_is_refused: is_of_memory, [ENOMEM, EIO], once;
    of_calls_on_sockets_that_fail: is_of_a_socket, [ENOMEM, ENOBUFS], once;
    of_threads_that_are_refused: is_new_thread, [EAGAIN], once;
    of_descriptors_that_are_refused_for_long: needs_a_descriptor, [EMFILE, ENFILE], from_then_on;
    of_memory_that_is_refused_for_long: needs_memory, [ENOMEM], from_then_on;
    of_space_that_is_refused_for_long: needs_space, [ENOSPC], from_then_on;
    of_nothing_where_waits_are_interrupted: is_wait, [EINTR], once;
}
