//! A process that is killed after so many instructions of one operation.
//!
//! [`run`] starts the test binary again, in the manner of [`trace`](super::trace): its body asks to be
//! watched, prepares, and says where the operation begins and ends. In between its thread makes one
//! instruction at a time (`PTRACE_SINGLESTEP` of `ptrace(2)`); its other threads run.
//!
//! ```text
//!   test                                   other process
//!   run ── starts ───────────────────────▶ body: watch_me, preparation
//!   begun(its thread) ◀─────────────────── begin
//!   a step, a step, a step … ◀───────────▶ the operation
//!   kills it there, or here ◀───────────── end
//! ```
//!
//! A system call is one step. A step takes a microsecond or two, in a virtual machine up to twenty. On x86-64 only: elsewhere a loop of load-exclusive and store-exclusive
//! never succeeds in steps.

#![allow(unsafe_code)]

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use super::trace::{NOT_PERMITTED, Watchdog, order};
use super::{other, wait_until};

/// In the other process: the operation begins.
pub fn begin() {
    stop();
}

/// In the other process: the operation has ended. Does not return.
pub fn end() -> ! {
    stop();
    unreachable!("it is killed here");
}

fn stop() {
    let (process, thread) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero());
    // SAFETY: stops this thread; whoever watches it lets it go on or kills it.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread.get(), libc::SIGSTOP) };
}

/// How far a process came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Instructions that were made.
    pub count: usize,
    /// Whether it was killed where that was planned; not at the operation's end, or by somebody else.
    pub reached: bool,
}

/// Runs the body of `test` for `argument` in another process until it has made `at` instructions, or
/// all of them, and kills it. `begun` is told its thread and has its time. `None`: this machine does not
/// let us watch, which is said aloud.
///
/// # Panics
///
/// If the process ends before it is killed.
#[expect(clippy::zombie_processes, reason = "it is waited for as the thread that it is")]
pub fn run(
    test: &str,
    argument: &str,
    at: Option<usize>,
    begun: impl FnOnce(libc::pid_t),
) -> Option<Steps> {
    let mut command = other::command(test, argument);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let process = child.id() as libc::pid_t;
    let start = Instant::now();
    let watchdog = Watchdog::over(&child);
    let followed = follow(process, at, begun);
    assert!(!watchdog.bit(), "{argument}: does not end, after {:?}", start.elapsed());
    followed
        .map_err(|status| {
            let not_permitted =
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == NOT_PERMITTED;
            assert!(not_permitted, "{argument}: ended by itself with {status:#x}");
            eprintln!("skipped: ptrace is not permitted here");
        })
        .ok()
}

/// The error is how the process ended that did so by itself.
fn follow(
    process: libc::pid_t,
    at: Option<usize>,
    begun: impl FnOnce(libc::pid_t),
) -> Result<Steps, i32> {
    let thread = next_stop()?.0;
    order(libc::PTRACE_SETOPTIONS, thread, 0, libc::PTRACE_O_EXITKILL as usize);
    order(libc::PTRACE_CONT, thread, 0, 0);
    next_stop()?;
    begun(thread);
    let (mut count, mut reached) = (0, at == Some(0));
    while !reached {
        order(libc::PTRACE_SINGLESTEP, thread, 0, 0);
        match next_stop() {
            Ok((_, libc::SIGTRAP)) => count += 1,
            // Its end, as it says.
            Ok((_, libc::SIGSTOP)) => break,
            Ok((_, signal)) => panic!("step {count} raises signal {signal}"),
            // Somebody else has killed it.
            Err(status) if libc::WIFSIGNALED(status) => return Ok(Steps { count, reached }),
            Err(status) => return Err(status),
        }
        reached = at == Some(count);
    }
    // SAFETY: the process is ours and not waited for yet.
    unsafe { libc::kill(process, libc::SIGKILL) };
    while next_stop().is_ok() {}
    Ok(Steps { count, reached })
}

/// The thread that stops next and the signal it stops for. The error is how the process ended.
fn next_stop() -> Result<(libc::pid_t, i32), i32> {
    loop {
        let mut status = 0;
        // Children of other threads are other tests'.
        let flags = libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: `status` is a valid place to write to.
        let thread = unsafe { libc::waitpid(-1, &mut status, flags) };
        if thread < 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::EINTR), "waitpid: {error}");
        } else if libc::WIFSTOPPED(status) {
            return Ok((thread, libc::WSTOPSIG(status)));
        } else {
            return Err(status);
        }
    }
}

/// Whether a thread sleeps in the kernel. One that was stopped does not; one that is gone does not.
pub fn is_asleep(thread: libc::pid_t) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{thread}/stat")) else { return false };
    // pid (name) state …; the name may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// Waits until the thread of this process with this name sleeps. The kernel keeps 15 bytes of it.
pub fn wait_until_named_sleeps(name: &str) {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut named = tasks.filter_map(|task| {
        let task = task.unwrap();
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        (comm.trim_end() == &name[..name.len().min(15)])
            .then(|| task.file_name().to_str().unwrap().parse().unwrap())
    });
    let thread = named.next().expect("such a thread");
    wait_until("sleep", || is_asleep(thread));
}
