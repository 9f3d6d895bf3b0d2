//! A system call of the library fails. The operation returns an error or recovers, and nothing leaks.
//!
//! A process makes a context, a link, and an exchange of every kind ([`scenario`]), and one of its calls fails. The
//! exchange must end in time and without a panic, in an error or in success. Then everything must be released, and the
//! same exchange must succeed in the same process. Each call is tried with new contexts, and in a context that has
//! another link, which must not notice.
//!
//! A few places of each call are tried, or all of them with each error (`SLIPRING_TESTS=whole`).

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::thread;
use std::time::{Duration, Instant};

use slipring::{Connection, Context, Options, Tensor};

use crate::support::census::Census;
use crate::support::faulty::*;
use crate::support::other;
use crate::support::trace::{self, Meant};
use crate::support::{Witness, trim, unique_name};

/// Places of each call that are tried where not all are.
const PLACES: usize = 12;

/// The lives in which a call fails: of contexts that are new, and of one that has another link.
const FRESH: &str = "fresh";
const LIVING: &str = "living";

/// Two ends, of two contexts, that have met at a listener.
fn meet(
    near: &Context,
    far: &Context,
) -> Result<(Connection, Connection), Box<dyn std::error::Error>> {
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
fn messages(near: &mut Connection, far: &mut Connection) -> Ended {
    for len in [0, 48, 3000, 20_000, 300_000] {
        let message = vec![7; len];
        near.sender().send_deadline(&message, patience())?;
        assert_eq!(far.receiver().recv_deadline(patience())?.as_deref(), Some(&*message));
        far.sender().send_deadline(&message, patience())?;
        assert_eq!(near.receiver().recv_deadline(patience())?.as_deref(), Some(&*message));
    }
    Ok(())
}

/// Tensors of every kind, one way.
fn tensors(context: &Context, near: &mut Connection, far: &mut Connection) -> Ended {
    let mut lent = context.alloc::<u32>([5000])?;
    lent.fill(5);
    near.sender().send_tensor_deadline(lent, patience())?;
    let mut frozen = context.alloc_frozen::<u32>([5000])?;
    frozen.fill(6);
    near.sender().send_tensor_deadline(frozen, patience())?;
    near.sender().send_tensor_deadline(&Tensor::from_slice([5000], &[7u32; 5000])?, patience())?;
    let mut held = Vec::new();
    for value in [5, 6, 7] {
        let tensor = far
            .receiver()
            .recv_tensor_deadline(patience())?
            .ok_or("the end instead of a tensor")?;
        assert_eq!(tensor.to_vec::<u32>()?, [value; 5000]);
        held.push(tensor);
    }
    Ok(())
}

/// All that a link does in its life.
fn scenario(near_context: &Context, far_context: &Context) -> Ended {
    let (mut near, mut far) = meet(near_context, far_context)?;
    messages(&mut near, &mut far)?;
    tensors(near_context, &mut near, &mut far)?;
    near.close()?;
    assert_eq!(far.receiver().recv_deadline(patience())?, None);
    near_context.trim();
    Ok(())
}

fn options() -> Options {
    Options::new().handshake_timeout(PATIENCE).send_timeout(PATIENCE)
}

/// A scenario with contexts of its own.
fn fresh() -> Ended {
    scenario(&Context::with_options(options())?, &Context::with_options(options())?)
}

/// A scenario of a context that has another link.
fn living(context: &Context, innocent: &mut Witness) -> Ended {
    let ended = scenario(context, context);
    trace::enter(0);
    // Whatever became of it, the other link goes on.
    innocent.check();
    trim(context);
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
    let fails_in = |life| sweep((test, life), (meant, errors), once, PLACES);
    let met: usize = [FRESH, LIVING].map(fails_in).iter().sum();
    assert!(met > 0, "no such call is made");
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
