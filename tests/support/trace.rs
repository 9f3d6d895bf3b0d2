//! A process that is watched at its system calls: they are counted, one of them fails, or the
//! process is killed at one.
//!
//! [`run`] starts the test binary again, in the manner of [`Other`](super::other::Other): its body
//! asks to be watched ([`watch_me`]) and says in which phase it is ([`enter`]). All of its threads
//! are stopped by `ptrace(2)` at each entry into the kernel and each exit from it.
//!
//! ```text
//!   test                                   other process
//!   run ── starts ───────────────────────▶ body: preparation, not watched
//!                                          watch_me
//!   every thread stops at each call ◀───── enter(1), what is tested
//!   no call counts or is touched ◀──────── enter(0), what follows
//!   how it ended ◀──────────────────────── exit
//! ```

#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::{self, MaybeUninit};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::HANG;
use super::other;

/// The call that says a phase; no kernel knows it, and it answers `ENOSYS`.
const MARKER: libc::c_long = 0x51_19;

/// How a process ends that must not be watched here.
pub(super) const NOT_PERMITTED: i32 = 77;

/// How a process ends in which something panicked.
const PANICKED: i32 = 101;

/// A system call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The thread that makes it.
    pub thread: libc::pid_t,
    /// How many phases had begun.
    pub round: usize,
    pub number: libc::c_long,
    pub arguments: [u64; 6],
}

/// Which calls are meant.
pub type Meant = fn(&Call) -> bool;

/// The plan for the process. Numbers count from 0, over all of its threads.
#[derive(Clone, Copy)]
pub enum Plan {
    /// It is only watched.
    Watch,
    /// In phase 1 call `at` of those that are `meant` is not made, and fails with `errno`.
    Fail { meant: Meant, at: usize, errno: i32 },
    /// The same of call `at` and all that follow it, to the end of phase 1.
    FailFrom { meant: Meant, at: usize, errno: i32 },
    /// It is killed at stop `at` of this phase: even ones enter the kernel, roughly, odd ones leave it.
    Kill { phase: u64, at: usize },
}

/// How a watched process ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Whether what was planned came about.
    pub reached: bool,
    /// The call that it met.
    pub met: Option<libc::c_long>,
    /// The calls of phase 1.
    pub calls: Vec<Call>,
    /// The threads that make them, by name.
    pub names: HashMap<libc::pid_t, String>,
    /// The thread that said the last phase, and how many were said.
    pub speaker: libc::pid_t,
    pub rounds: usize,
    /// Stops by phase.
    pub stops: BTreeMap<u64, usize>,
    /// How long it ran.
    pub took: Duration,
}

impl Outcome {
    /// Calls of phase 1 that are meant.
    pub fn count(&self, meant: Meant) -> usize {
        self.calls.iter().filter(|call| meant(call)).count()
    }
}

/// In the other process: from here on this thread is watched, and each that it starts. A panic of
/// any thread ends the process.
pub fn watch_me() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::exit(PANICKED);
    }));
    // SAFETY: makes this thread one that its parent may stop; no pointer is read.
    let asked = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize) };
    if asked != 0 {
        eprintln!("ptrace: {}", std::io::Error::last_os_error());
        std::process::exit(NOT_PERMITTED);
    }
    // SAFETY: stops this thread; the watching parent lets it go on.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// In the other process: says which phase begins. Phase 0 is left alone.
pub fn enter(phase: u64) {
    // SAFETY: a call that does not exist touches nothing.
    unsafe { libc::syscall(MARKER, phase) };
}

/// Runs the body of `test` for `argument` in another process and watches it to its end. `None`: this
/// machine does not let us watch, which is said aloud.
///
/// # Panics
///
/// If it does not end in time; it is killed then.
#[expect(clippy::zombie_processes, reason = "the tracer waits for it")]
pub fn run(test: &str, argument: &str, plan: Plan) -> Option<Outcome> {
    let mut command = other::command(test, argument);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    let watchdog = Watchdog::over(&child);
    let mut tracer = Tracer::new(child.id() as libc::pid_t, plan);
    tracer.follow();
    let took = start.elapsed();
    // Where calls fail, objects stay.
    other::remove_objects_of(child.id());
    assert!(!watchdog.bit(), "{test} {argument}: does not end, after {took:?}");
    let outcome = Outcome { took, ..tracer.outcome };
    if outcome.code == Some(NOT_PERMITTED) || tracer.deaf {
        eprintln!("skipped: ptrace is not permitted here, or the kernel is older than 5.3");
        return None;
    }
    Some(outcome)
}

/// Kills a process that does not end in time.
#[derive(Debug)]
pub(super) struct Watchdog {
    over: mpsc::Sender<()>,
    bit: thread::JoinHandle<bool>,
}

impl Watchdog {
    pub(super) fn over(child: &Child) -> Self {
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let (over, done) = mpsc::channel::<()>();
        let bit = thread::spawn(move || {
            // Later than the process's own deadlines, so that it can say what it waits for.
            let late = done.recv_timeout(6 * HANG) == Err(mpsc::RecvTimeoutError::Timeout);
            // It may have ended at last.
            late && rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
        });
        Self { over, bit }
    }

    /// Whether it had to. It sleeps from now on.
    pub(super) fn bit(self) -> bool {
        drop(self.over);
        self.bit.join().unwrap()
    }
}

/// One process and its threads. Only the thread that started them may give them orders.
struct Tracer {
    process: libc::pid_t,
    plan: Plan,
    phase: u64,
    /// Threads that have stopped once.
    known: HashSet<libc::pid_t>,
    /// Threads whose present call fails, and with what.
    failing: HashMap<libc::pid_t, i32>,
    /// Calls that were meant so far.
    meant: usize,
    /// Whether the kernel does not tell what a stop is.
    deaf: bool,
    outcome: Outcome,
}

/// A stop at a system call.
enum Stop {
    Entry(Call),
    Exit,
}

impl Tracer {
    fn new(process: libc::pid_t, plan: Plan) -> Self {
        Self {
            process,
            plan,
            phase: 0,
            known: HashSet::new(),
            failing: HashMap::new(),
            meant: 0,
            deaf: false,
            outcome: Outcome::default(),
        }
    }

    /// Lets the process run from stop to stop until it has ended.
    fn follow(&mut self) {
        loop {
            let mut status = 0;
            // Children of other threads are other tests'.
            let flags = libc::__WALL | libc::__WNOTHREAD;
            // SAFETY: `status` is a valid place to write to.
            let thread = unsafe { libc::waitpid(-1, &mut status, flags) };
            if thread < 0 {
                let error = std::io::Error::last_os_error();
                assert_eq!(error.raw_os_error(), Some(libc::EINTR), "waitpid: {error}");
                continue;
            }
            if libc::WIFSTOPPED(status) {
                let signal = self.stopped(thread, status);
                // A thread that a signal has killed since is not there any more.
                order(libc::PTRACE_SYSCALL, thread, 0, signal as usize);
            } else if thread == self.process {
                self.outcome.code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
                self.outcome.signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
                return;
            }
        }
    }

    /// Deals with a stop, and gives the signal to pass on.
    fn stopped(&mut self, thread: libc::pid_t, status: i32) -> i32 {
        let new = self.known.insert(thread);
        if new && self.known.len() == 1 {
            let options =
                libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
            order(libc::PTRACE_SETOPTIONS, thread, 0, options as usize);
        }
        match libc::WSTOPSIG(status) {
            // A thread that is watched begins with it.
            libc::SIGSTOP if new => 0,
            signal if signal == libc::SIGTRAP | 0x80 => {
                match stop_of(thread) {
                    Some(Stop::Entry(call)) => self.entered(thread, call),
                    Some(Stop::Exit) => self.left(thread),
                    None => self.deaf |= is_deaf(),
                }
                0
            }
            // PTRACE_EVENT_CLONE, or somebody's int3, which we do not have.
            libc::SIGTRAP => 0,
            signal => signal,
        }
    }

    fn entered(&mut self, thread: libc::pid_t, mut call: Call) {
        if call.number == MARKER {
            self.phase = call.arguments[0];
            self.outcome.speaker = thread;
            self.outcome.rounds += 1;
            return;
        }
        self.count(Some(call.number));
        if self.phase != 1 {
            return;
        }
        call.round = self.outcome.rounds;
        self.outcome.calls.push(call);
        self.outcome.names.entry(thread).or_insert_with(|| self::name(self.process, thread));
        let (meant, places, errno) = match self.plan {
            Plan::Fail { meant, at, errno } => (meant, at..=at, errno),
            Plan::FailFrom { meant, at, errno } => (meant, at..=usize::MAX, errno),
            Plan::Watch | Plan::Kill { .. } => return,
        };
        if !meant(&call) {
            return;
        }
        if places.contains(&self.meant) {
            self.outcome.reached = true;
            self.outcome.met = Some(call.number);
            self.failing.insert(thread, errno);
            skip(thread);
        }
        self.meant += 1;
    }

    fn left(&mut self, thread: libc::pid_t) {
        if let Some(errno) = self.failing.remove(&thread) {
            answer(thread, -i64::from(errno));
        }
        self.count(None);
    }

    /// Counts a stop, and kills the process if this is the one.
    fn count(&mut self, number: Option<libc::c_long>) {
        let stops = self.outcome.stops.entry(self.phase).or_default();
        let now = *stops;
        *stops += 1;
        if let Plan::Kill { phase, at } = self.plan
            && (phase, at) == (self.phase, now)
        {
            self.outcome.reached = true;
            self.outcome.met = number;
            // SAFETY: the process is ours and not waited for yet.
            unsafe { libc::kill(self.process, libc::SIGKILL) };
        }
    }
}

/// Gives a stopped thread an order. Returns `false` if the thread is gone.
pub(super) fn order(
    request: libc::c_uint,
    thread: libc::pid_t,
    address: usize,
    data: usize,
) -> bool {
    // SAFETY: callers pass what `request` asks for; pointers among it are valid for its length.
    let done = unsafe { libc::ptrace(request as _, thread, address, data) };
    if done >= 0 {
        return true;
    }
    let error = std::io::Error::last_os_error();
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "ptrace {request:#x}: {error}");
    false
}

/// `PTRACE_GET_SYSCALL_INFO` of `ptrace(2)`, Linux 5.3.
const GET_SYSCALL_INFO: libc::c_uint = 0x420e;

/// `struct ptrace_syscall_info`, as far as its first union member `entry`.
#[repr(C)]
#[derive(Default)]
struct SyscallInfo {
    operation: u8,
    pad: [u8; 3],
    architecture: u32,
    instruction: u64,
    stack: u64,
    number: u64,
    arguments: [u64; 6],
}

/// `None`: the thread is gone, or the kernel does not tell ([`is_deaf`]).
fn stop_of(thread: libc::pid_t) -> Option<Stop> {
    let mut info = SyscallInfo::default();
    let (len, to) = (size_of::<SyscallInfo>(), &raw mut info);
    // SAFETY: the kernel writes up to `len` bytes, any of which are numbers.
    let written = unsafe { libc::ptrace(GET_SYSCALL_INFO as _, thread, len, to) };
    match (written, info.operation) {
        (1.., 1) => Some(Stop::Entry(Call {
            thread,
            round: 0,
            number: info.number as libc::c_long,
            arguments: info.arguments,
        })),
        (1.., 2) => Some(Stop::Exit),
        _ => None,
    }
}

/// Returns the name of a thread.
fn name(process: libc::pid_t, thread: libc::pid_t) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/comm"));
    name.unwrap_or_default().trim_end().to_owned()
}

/// After [`stop_of`] gave nothing: whether it never will.
fn is_deaf() -> bool {
    let error = std::io::Error::last_os_error().raw_os_error();
    matches!(error, Some(libc::EIO | libc::EINVAL))
}

type Registers = libc::user_regs_struct;

/// `NT_PRSTATUS` of `elf.h`: the general registers.
const GENERAL: usize = 1;

fn registers(thread: libc::pid_t) -> Option<Registers> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    let mut to =
        libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of::<Registers>() };
    let read =
        order(libc::PTRACE_GETREGSET as _, thread, GENERAL, (&raw mut to).expose_provenance());
    // SAFETY: zero is a valid register, and the kernel wrote nothing else.
    read.then(|| unsafe { registers.assume_init() })
}

fn set_registers(thread: libc::pid_t, kind: usize, from: &mut impl Sized) {
    let mut from =
        libc::iovec { iov_len: mem::size_of_val(from), iov_base: (&raw mut *from).cast() };
    order(libc::PTRACE_SETREGSET as _, thread, kind, (&raw mut from).expose_provenance());
}

/// At its entry: makes a call one that does not exist.
#[cfg(target_arch = "x86_64")]
fn skip(thread: libc::pid_t) {
    let Some(mut registers) = registers(thread) else { return };
    registers.orig_rax = u64::MAX;
    set_registers(thread, GENERAL, &mut registers);
}

/// At its exit: what a call answers.
#[cfg(target_arch = "x86_64")]
fn answer(thread: libc::pid_t, value: i64) {
    let Some(mut registers) = registers(thread) else { return };
    registers.rax = value as u64;
    set_registers(thread, GENERAL, &mut registers);
}

#[cfg(target_arch = "aarch64")]
fn skip(thread: libc::pid_t) {
    /// `NT_ARM_SYSTEM_CALL` of `elf.h`: the number of the call.
    const NUMBER: usize = 0x404;
    set_registers(thread, NUMBER, &mut -1i32);
}

#[cfg(target_arch = "aarch64")]
fn answer(thread: libc::pid_t, value: i64) {
    let Some(mut registers) = registers(thread) else { return };
    registers.regs[0] = value as u64;
    set_registers(thread, GENERAL, &mut registers);
}
