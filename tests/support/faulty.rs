//! Processes whose system calls fail: which calls are meant, and what may come of it.
//!
//! A body prepares, asks to be watched, and does its work in phase 1, where calls fail ([`disturbed`]).
//! The test runs it once for each place and error ([`sweep`]).

use std::error::Error;
use std::time::{Duration, Instant};

use super::census::Census;
use super::sample;
use super::trace::{self, Call, Meant, Plan};

/// How long an operation of the work may wait for another that failed.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The exit code of a process whose work ended in an error.
pub const FAILED: i32 = 1;

pub type Ended = Result<(), Box<dyn Error>>;

/// When an operation of the work must have ended.
pub fn patience() -> Instant {
    Instant::now() + PATIENCE
}

/// In the other process: does the work twice, disturbed and undisturbed. The process must hold the same before and
/// after, with one more segment if `spare`.
pub fn disturbed(spare: bool, mut work: impl FnMut() -> Ended) -> ! {
    // The first work makes everything that a process makes once.
    work().unwrap();
    let census = Census::take();
    let comes_back = || match spare {
        true => census.comes_back_but_for_a_spare(),
        false => census.comes_back(),
    };
    trace::watch_me();
    trace::enter(1);
    let ended = work();
    trace::enter(0);
    comes_back();
    work().unwrap();
    comes_back();
    std::process::exit(if ended.is_ok() { 0 } else { FAILED });
}

/// How a call fails: once, or from then on.
pub type How = fn(Meant, usize, i32) -> Plan;

pub fn once(meant: Meant, at: usize, errno: i32) -> Plan {
    Plan::Fail { meant, at, errno }
}

pub fn from_then_on(meant: Meant, at: usize, errno: i32) -> Plan {
    Plan::FailFrom { meant, at, errno }
}

/// Lets calls that are meant fail, one place after another: each place with each of `errors`, or a sample of both.
/// Returns how often the call was made in an undisturbed life.
pub fn sweep(
    (test, life): (&str, &str),
    (meant, errors): (Meant, &[i32]),
    how: How,
    places: usize,
) -> usize {
    // A machine that does not let us watch has said so.
    let Some(outcome) = trace::run(test, life, Plan::Watch) else { return 1 };
    assert_eq!(outcome.code, Some(0), "undisturbed: {outcome:?}");
    let count = outcome.count(meant);
    let (mut reached, mut told) = (0, 0);
    let mut wrong = Vec::new();
    for (number, at) in sample::places(count, places).enumerate() {
        for &errno in sample::errors(errors, number) {
            let outcome = trace::run(test, life, how(meant, at, errno)).unwrap();
            // Another time it may make fewer calls.
            reached += usize::from(outcome.reached);
            told += usize::from(outcome.code == Some(FAILED));
            let fine = matches!(outcome.code, Some(0 | FAILED));
            // An interrupted call is made a second time.
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

/// Which of them is called is the C library's choice.
#[cfg(target_arch = "x86_64")]
const EPOLL_WAITS: [libc::c_long; 2] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait];
#[cfg(target_arch = "aarch64")]
const EPOLL_WAITS: [libc::c_long; 1] = [libc::SYS_epoll_pwait];

pub fn is_wait(call: &Call) -> bool {
    EPOLL_WAITS.contains(&call.number)
        || [libc::SYS_ppoll, libc::SYS_connect].contains(&call.number)
}

/// Calls that are made now and then.
pub fn is_other(call: &Call) -> bool {
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
pub fn is_new_thread(call: &Call) -> bool {
    [libc::SYS_clone3, libc::SYS_clone].contains(&call.number)
}

/// Not the allocator's, nor a thread's stack: those fail elsewhere.
pub fn is_mmap_of_ours(call: &Call) -> bool {
    let [_, len, _, flags, fd, _] = call.arguments;
    let anonymous = flags == (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    call.number == libc::SYS_mmap && (fd as i32 >= 0 || anonymous && len == 4096)
}

/// Not the allocator's, nor a thread's stack.
pub fn is_madvise_of_ours(call: &Call) -> bool {
    let advice = call.arguments[2] as i32;
    let others = [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_HUGEPAGE];
    call.number == libc::SYS_madvise && !others.contains(&advice)
}

/// Calls that give a descriptor.
pub fn needs_a_descriptor(call: &Call) -> bool {
    // F_DUPFD_CLOEXEC alone of its kind.
    let duplicates =
        call.number == libc::SYS_fcntl && call.arguments[1] as libc::c_int == libc::F_DUPFD_CLOEXEC;
    duplicates
        || [
            libc::SYS_memfd_create,
            libc::SYS_socket,
            libc::SYS_accept4,
            libc::SYS_epoll_create1,
            libc::SYS_eventfd2,
            libc::SYS_openat,
            libc::SYS_pidfd_open,
        ]
        .contains(&call.number)
}

/// Calls for which the kernel needs memory.
pub fn needs_memory(call: &Call) -> bool {
    is_mmap_of_ours(call)
        || is_madvise_of_ours(call)
        || [
            libc::SYS_memfd_create,
            libc::SYS_ftruncate,
            libc::SYS_fallocate,
            libc::SYS_sendmsg,
            libc::SYS_socket,
            libc::SYS_epoll_ctl,
        ]
        .contains(&call.number)
}

/// Calls that are refused where a file system or a user's share of the kernel is full.
pub fn needs_space(call: &Call) -> bool {
    [libc::SYS_fallocate, libc::SYS_epoll_ctl].contains(&call.number)
}
