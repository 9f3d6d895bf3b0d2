//! System calls of ours that fail: each one ends in an error or is made good, and leaves nothing
//! behind.
//!
//! A process makes a context, a link, and an exchange of every kind ([`scenario`]); one of its calls
//! fails. It must say so or go on, within time and without a panic, and afterwards, in the same
//! process, all of it must be given back and the same exchange must succeed. It does so twice: with
//! contexts of its own, and in a context that has another link, which must not notice.
//!
//! A few places of each call are tried; `SLIPRING_FAULTS=all` tries them all, with each error.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

mod support;

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use slipring::{Connection, Context, Options, Tensor};

use support::census::Census;
use support::other;
use support::trace::{self, Call, Meant, Plan};
use support::{Witness, unique_name};

/// How long an operation of the scenario may wait for another that failed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Places of each call that are tried where not all are.
const PLACES: usize = 12;

/// The lives in which a call fails: of contexts that are new, and of one that has another link.
const FRESH: &str = "fresh";
const LIVING: &str = "living";

/// What a process exits with whose scenario ended in an error.
const FAILED: i32 = 1;

fn patience() -> Instant {
    Instant::now() + PATIENCE
}

/// Two ends, of two contexts, that have met at a listener.
fn meet(near: &Context, far: &Context) -> Result<(Connection, Connection), Box<dyn Error>> {
    let name = unique_name();
    let mut listener = far.listen(&name)?;
    thread::scope(|scope| {
        let connector = thread::Builder::new()
            .spawn_scoped(scope, || near.connect_deadline(&name, patience()))?;
        let accepted = loop {
            // Nobody comes after a connector that has failed.
            let last = connector.is_finished();
            match listener.accept_deadline(Instant::now() + Duration::from_millis(10)) {
                Err(error) if matches!(error.kind(), slipring::ErrorKind::TimedOut { .. }) => {
                    if last {
                        break Err(error);
                    }
                }
                accepted => break accepted,
            }
        };
        // A connector in the queue of a listener that is gone is told so.
        drop(listener);
        let connected = connector.join().unwrap();
        Ok((connected?, accepted?))
    })
}

/// Messages of every kind, both ways.
fn messages(near: &mut Connection, far: &mut Connection) -> Result<(), Box<dyn Error>> {
    for len in [0, 48, 3000, 20_000, 300_000] {
        let message = vec![7; len];
        near.send_deadline(&message, patience())?;
        assert_eq!(far.recv_deadline(patience())?.as_deref(), Some(&*message));
        far.send_deadline(&message, patience())?;
        assert_eq!(near.recv_deadline(patience())?.as_deref(), Some(&*message));
    }
    Ok(())
}

/// Tensors of every kind, one way.
fn tensors(
    context: &Context,
    near: &mut Connection,
    far: &mut Connection,
) -> Result<(), Box<dyn Error>> {
    let mut lent = context.alloc::<u32>([5000])?;
    lent.fill(5);
    near.send_tensor_deadline(lent, patience())?;
    let mut frozen = context.alloc_frozen::<u32>([5000])?;
    frozen.fill(6);
    near.send_tensor_deadline(frozen, patience())?;
    near.send_tensor_deadline(&Tensor::from_slice([5000], &[7u32; 5000])?, patience())?;
    let mut held = Vec::new();
    for value in [5, 6, 7] {
        let tensor = far.recv_tensor_deadline(patience())?.ok_or("the end instead of a tensor")?;
        assert_eq!(tensor.to_vec::<u32>()?, [value; 5000]);
        held.push(tensor);
    }
    Ok(())
}

/// All that a link does in its life.
fn scenario(near_context: &Context, far_context: &Context) -> Result<(), Box<dyn Error>> {
    let (mut near, mut far) = meet(near_context, far_context)?;
    messages(&mut near, &mut far)?;
    tensors(near_context, &mut near, &mut far)?;
    near.close()?;
    assert_eq!(far.recv_deadline(patience())?, None);
    near_context.trim();
    Ok(())
}

fn options() -> Options {
    Options::new().handshake_timeout(PATIENCE).send_timeout(PATIENCE)
}

/// A scenario with contexts of its own.
fn fresh() -> Result<(), Box<dyn Error>> {
    scenario(&Context::with_options(options())?, &Context::with_options(options())?)
}

/// A scenario of a context that has another link.
fn living(context: &Context, innocent: &mut Witness) -> Result<(), Box<dyn Error>> {
    let ended = scenario(context, context);
    trace::enter(0);
    // Whatever became of it, the other link goes on.
    innocent.check();
    context.trim();
    ended
}

/// In the other process: a scenario that is disturbed, and one that is not.
fn disturbed(life: &str) {
    let ended = match life {
        FRESH => {
            let census = Census::take();
            trace::watch_me();
            trace::enter(1);
            let ended = fresh();
            trace::enter(0);
            census.comes_back();
            fresh().unwrap();
            census.comes_back();
            ended
        }
        _ => {
            let context = Context::with_options(options()).unwrap();
            let mut innocent = Witness::new(&context);
            living(&context, &mut innocent).unwrap();
            let census = Census::take();
            trace::watch_me();
            trace::enter(1);
            let ended = living(&context, &mut innocent);
            census.comes_back_but_for_a_spare();
            living(&context, &mut innocent).unwrap();
            census.comes_back_but_for_a_spare();
            ended
        }
    };
    std::process::exit(if ended.is_ok() { 0 } else { FAILED });
}

/// Lets each call that is meant fail, in turn, with each of `errors`.
fn fails(test: &str, meant: Meant, errors: &[i32]) {
    other::run_here(test, disturbed);
    let met: usize = [FRESH, LIVING].map(|life| fails_in(test, life, meant, errors)).iter().sum();
    assert!(met > 0, "no such call is made");
}

/// How often the call was made in an undisturbed life.
fn fails_in(test: &str, life: &str, meant: Meant, errors: &[i32]) -> usize {
    // A machine that does not let us watch has said so.
    let Some(outcome) = trace::run(test, life, Plan::Watch) else { return 1 };
    assert_eq!(outcome.code, Some(0), "undisturbed: {outcome:?}");
    let count = outcome.count(meant);
    let all = std::env::var("SLIPRING_FAULTS").as_deref() == Ok("all");
    let places = if all { count } else { count.min(PLACES) };
    let (mut reached, mut told) = (0, 0);
    let mut wrong = Vec::new();
    for place in 0..places {
        // The first and the last one, and others between them.
        let at = place * (count - 1) / (places - 1).max(1);
        let errors = if all { errors } else { &errors[place % errors.len()..][..1] };
        for &errno in errors {
            let outcome = trace::run(test, life, Plan::Fail { meant, at, errno }).unwrap();
            // Another time it may make fewer calls.
            reached += usize::from(outcome.reached);
            told += usize::from(outcome.code == Some(FAILED));
            let fine = matches!(outcome.code, Some(0 | FAILED));
            // What a signal interrupts is done again.
            let healed = errno != libc::EINTR || outcome.code == Some(0);
            let (code, signal, took) = (outcome.code, outcome.signal, outcome.took);
            if !fine || !healed || took > 2 * PATIENCE {
                wrong.push(format!("{at} of {count}, {errno}: {code:?}, {signal:?}, {took:?}"));
            }
        }
    }
    println!("{test}, {life}: {count} calls, {reached} failed, {told} errors");
    assert!(wrong.is_empty(), "{test}, {life}:\n  {}", wrong.join("\n  "));
    count
}

/// A test that lets one call fail: its name, the calls meant, the errors.
macro_rules! a_call_may_fail {
    ($test:ident, $meant:expr, $errors:expr) => {
        #[test]
        fn $test() {
            fails(stringify!($test), $meant, &$errors);
        }
    };
}

use libc::{EAGAIN, EINTR, EIO, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC, EPERM};

a_call_may_fail!(memfd_create_may_fail, |c| c.number == libc::SYS_memfd_create, [EMFILE, ENOMEM]);
a_call_may_fail!(ftruncate_may_fail, |c| c.number == libc::SYS_ftruncate, [ENOMEM, EIO]);
a_call_may_fail!(fallocate_may_fail, |c| c.number == libc::SYS_fallocate, [ENOMEM, ENOSPC, EINTR]);
a_call_may_fail!(mmap_may_fail, is_mmap_of_ours, [ENOMEM]);
a_call_may_fail!(madvise_may_fail, is_madvise_of_ours, [ENOMEM, EAGAIN]);
a_call_may_fail!(fcntl_may_fail, |c| c.number == libc::SYS_fcntl, [EMFILE, EPERM, EIO]);
a_call_may_fail!(sendmsg_may_fail, |c| c.number == libc::SYS_sendmsg, [ENOMEM, ENOBUFS, EINTR]);
a_call_may_fail!(recvmsg_may_fail, |c| c.number == libc::SYS_recvmsg, [ENOMEM, EIO, EINTR]);
a_call_may_fail!(epoll_create_may_fail, |c| c.number == libc::SYS_epoll_create1, [EMFILE, ENOMEM]);
a_call_may_fail!(epoll_ctl_may_fail, |c| c.number == libc::SYS_epoll_ctl, [ENOMEM, ENOSPC]);
a_call_may_fail!(eventfd_may_fail, |c| c.number == libc::SYS_eventfd2, [EMFILE, ENOMEM]);
a_call_may_fail!(threads_may_fail, is_new_thread, [EAGAIN]);
a_call_may_fail!(socket_may_fail, |c| c.number == libc::SYS_socket, [EMFILE, ENFILE, ENOMEM]);
a_call_may_fail!(
    accept_may_fail,
    |c| c.number == libc::SYS_accept4,
    [EMFILE, ENOMEM, ENFILE, EINTR]
);
a_call_may_fail!(getsockopt_may_fail, |c| c.number == libc::SYS_getsockopt, [ENOMEM, EIO]);
a_call_may_fail!(waits_may_be_interrupted, is_wait, [EINTR]);
a_call_may_fail!(others_may_fail, is_other, [ENOMEM, EIO]);
a_call_may_fail!(setsockopt_may_fail, |c| c.number == libc::SYS_setsockopt, [ENOMEM, EIO]);

/// Which of them is called is the C library's choice.
#[cfg(target_arch = "x86_64")]
const EPOLL_WAITS: [libc::c_long; 2] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait];
#[cfg(target_arch = "aarch64")]
const EPOLL_WAITS: [libc::c_long; 1] = [libc::SYS_epoll_pwait];

fn is_wait(call: &Call) -> bool {
    EPOLL_WAITS.contains(&call.number)
        || [libc::SYS_ppoll, libc::SYS_connect].contains(&call.number)
}

/// Calls that are made now and then.
fn is_other(call: &Call) -> bool {
    // The standard library's own has flags, and panics.
    let ours = call.number == libc::SYS_getrandom && call.arguments[2] == 0;
    ours || [
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_connect,
        libc::SYS_shutdown,
        libc::SYS_fstat,
        libc::SYS_fstatfs,
        libc::SYS_membarrier,
        libc::SYS_getcpu,
        CACHESTAT,
    ]
    .contains(&call.number)
}

/// `cachestat(2)`, Linux 6.5.
const CACHESTAT: libc::c_long = 451;

/// The C library tries the older call where the newer one does not exist, and only there.
fn is_new_thread(call: &Call) -> bool {
    [libc::SYS_clone3, libc::SYS_clone].contains(&call.number)
}

/// Not the allocator's, nor a thread's stack: those fail elsewhere.
fn is_mmap_of_ours(call: &Call) -> bool {
    let [_, len, _, flags, fd, _] = call.arguments;
    let anonymous = flags == (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    call.number == libc::SYS_mmap && (fd as i32 >= 0 || anonymous && len == 4096)
}

/// Not the allocator's, nor a thread's stack.
fn is_madvise_of_ours(call: &Call) -> bool {
    let advice = call.arguments[2] as i32;
    let others = [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_HUGEPAGE];
    call.number == libc::SYS_madvise && !others.contains(&advice)
}
