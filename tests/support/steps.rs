//! A process that is killed before a certain instruction of one operation.
//!
//! [`walk`] and [`kill`] start the test binary again, in the manner of [`trace`](super::trace): its body
//! asks to be watched, prepares, and says where the operation begins and ends. One walk goes through it
//! step by step (`PTRACE_SINGLESTEP` of `ptrace(2)`) and notes every instruction; each kill lets another
//! process run up to one of them, which a debug register of its thread stops at. Other threads of it run.
//!
//! ```text
//!   test                                   other process
//!   walk, kill ── start ─────────────────▶ body: watch_me, preparation
//!   begun(its thread) ◀─────────────────── begin
//!   a step, a step, a step … ◀───────────▶ the operation
//!   kills it there, or here ◀───────────── end
//! ```
//!
//! A system call is one instruction. On x86-64 only: elsewhere a loop of load-exclusive and
//! store-exclusive never succeeds in steps.

#![allow(unsafe_code)]

use std::fs;
use std::mem;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

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
    // SAFETY: stops this thread; the watching process continues or kills it.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread.get(), libc::SIGSTOP) };
}

/// The instructions of an operation, in the order in which they were made.
#[derive(Debug)]
pub struct Walk {
    images: Vec<Image>,
    addresses: Vec<u64>,
}

/// Code that a process has mapped.
#[derive(Debug)]
struct Image {
    start: u64,
    end: u64,
    /// Where `start` is in the file.
    offset: u64,
    name: String,
}

/// An instruction, in every process of the same program.
#[derive(Debug, Clone)]
pub struct Place {
    image: String,
    offset: u64,
    /// How often it is made before.
    earlier: usize,
}

impl Walk {
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// Instruction `at`, from 0.
    pub fn place(&self, at: usize) -> Place {
        let address = self.addresses[at];
        let holds = |image: &&Image| (image.start..image.end).contains(&address);
        let image = self.images.iter().find(holds).expect("code is mapped");
        let earlier = self.addresses[..at].iter().filter(|one| **one == address).count();
        Place { image: image.name.clone(), offset: address - image.start + image.offset, earlier }
    }
}

fn images(process: libc::pid_t) -> Vec<Image> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let executable =
        |line: &&str| line.split(' ').nth(1).is_some_and(|rights| rights.contains('x'));
    let number = |hex: &str| u64::from_str_radix(hex, 16).unwrap();
    let image = |line: &str| {
        // start-end rights offset device inode name
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = fields[0].split_once('-').unwrap();
        let name = fields.get(5).unwrap_or(&"").to_string();
        Image { start: number(start), end: number(end), offset: number(fields[2]), name }
    };
    maps.lines().filter(executable).map(image).collect()
}

/// Where the kernel keeps the address of a stopped thread's next instruction.
const INSTRUCTION: usize = mem::offset_of!(libc::user, regs.rip);

/// Runs the body of `test` for `argument` in another process through its operation, and kills it there.
/// `begun` is told its thread and has its time. `None`: this machine does not let us watch, which is
/// said aloud.
///
/// With `thread` the operation is that of the process's thread with this name, from where it sleeps when the
/// body says that the operation begins. It has no end: somebody kills the process.
///
/// # Panics
///
/// If the process ends before it is killed.
pub fn walk(
    test: &str,
    argument: &str,
    thread: Option<&str>,
    begun: impl FnOnce(libc::pid_t),
) -> Option<Walk> {
    follow(test, argument, thread, begun, |victim| {
        let mut walk = Walk { images: images(victim.process), addresses: Vec::new() };
        loop {
            walk.addresses.push(peek(victim.thread, INSTRUCTION));
            if !victim.traps(libc::PTRACE_SINGLESTEP) {
                return walk;
            }
        }
    })
}

/// As [`walk`], but the process is killed in front of the instruction at `place`. `Some(false)`: it did
/// not come there, and was killed at the operation's end, or by somebody else.
///
/// # Panics
///
/// As [`walk`].
pub fn kill(
    test: &str,
    argument: &str,
    thread: Option<&str>,
    place: &Place,
    begun: impl FnOnce(libc::pid_t),
) -> Option<bool> {
    follow(test, argument, thread, begun, |victim| {
        let within = |image: &&Image| {
            let len = image.end - image.start;
            image.name == place.image && (image.offset..image.offset + len).contains(&place.offset)
        };
        let images = images(victim.process);
        let image = images.iter().find(within).expect("the same program");
        let address = image.start + (place.offset - image.offset);
        let registers = mem::offset_of!(libc::user, u_debugreg);
        poke(victim.thread, registers, address);
        // Register 7: stop where register 0 says, before that instruction (AMD64 manual 2, 13.1).
        poke(victim.thread, registers + 7 * size_of::<u64>(), 1);
        // Where it stands already it does not stop once more.
        let here = usize::from(peek(victim.thread, INSTRUCTION) == address);
        (here..=place.earlier).all(|_| victim.traps(libc::PTRACE_CONT))
    })
}

/// A process that is watched, and its thread that is.
struct Victim {
    process: libc::pid_t,
    thread: libc::pid_t,
    dead: bool,
}

#[expect(clippy::zombie_processes, reason = "it is waited for as the thread that it is")]
fn follow<T>(
    test: &str,
    argument: &str,
    thread: Option<&str>,
    begun: impl FnOnce(libc::pid_t),
    through: impl FnOnce(&mut Victim) -> T,
) -> Option<T> {
    let mut command = other::command(test, argument);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let process = child.id() as libc::pid_t;
    let start = Instant::now();
    let watchdog = Watchdog::over(&child);
    let main = match next_stop(process) {
        Ok((thread, _)) => thread,
        Err(status) => {
            let ended = (libc::WIFEXITED(status), libc::WEXITSTATUS(status));
            assert_eq!(ended, (true, NOT_PERMITTED), "{argument}: ended by itself");
            eprintln!("skipped: ptrace is not permitted here");
            watchdog.bit();
            return None;
        }
    };
    order(libc::PTRACE_SETOPTIONS, main, 0, libc::PTRACE_O_EXITKILL as usize);
    order(libc::PTRACE_CONT, main, 0, 0);
    let announced = next_stop(process);
    assert_eq!(announced, Ok((main, libc::SIGSTOP)), "{argument}: does not come to its operation");
    let thread = thread.map_or(main, |name| stop_where_it_sleeps(process, name));
    begun(thread);
    let mut victim = Victim { process, thread, dead: false };
    let answer = on_one_cpu(thread, || through(&mut victim));
    if !victim.dead {
        // SAFETY: the process is ours and not waited for yet.
        unsafe { libc::kill(process, libc::SIGKILL) };
        while next_stop(process).is_ok() {}
    }
    assert!(!watchdog.bit(), "{argument}: does not end, after {:?}", start.elapsed());
    Some(answer)
}

/// Calls `steps` while this thread and the stopped one run on one CPU. Between two CPUs each step waits for one of them to awake.
fn on_one_cpu<T>(thread: libc::pid_t, steps: impl FnOnce() -> T) -> T {
    let all = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).unwrap();
    // It may be gone.
    let _ = sched_setaffinity(Pid::from_raw(thread), &one);
    let answer = steps();
    sched_setaffinity(None, &all).unwrap();
    answer
}

impl Victim {
    /// Lets the thread go on as `request` says. Whether it stops where it was told to; not where it says
    /// that the operation has ended, and not because somebody has killed it.
    fn traps(&mut self, request: libc::c_uint) -> bool {
        order(request, self.thread, 0, 0);
        match next_stop(self.process) {
            Ok((_, libc::SIGTRAP)) => true,
            Ok((_, libc::SIGSTOP)) => false,
            Ok((_, signal)) => panic!("the operation raises signal {signal}"),
            Err(status) => {
                assert!(libc::WIFSIGNALED(status), "it ends by itself with {status:#x}");
                self.dead = true;
                false
            }
        }
    }
}

/// A word of what the kernel knows of a stopped thread. 0: it is gone.
fn peek(thread: libc::pid_t, at: usize) -> u64 {
    // SAFETY: reads a word of `struct user`; no pointer is written through.
    unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, thread, at, 0usize) as u64 }
}

fn poke(thread: libc::pid_t, at: usize, word: u64) {
    order(libc::PTRACE_POKEUSER, thread, at, word as usize);
}

/// The thread that stops next and the signal it stops for. The error is how the process ended, which is
/// gone then.
fn next_stop(process: libc::pid_t) -> Result<(libc::pid_t, i32), i32> {
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
        } else if thread == process {
            // Not one of its threads, which end before it.
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

/// Waits until the thread of this process with this name sleeps.
pub fn wait_until_named_sleeps(name: &str) {
    wait_until_sleeps(std::process::id() as libc::pid_t, name);
}

/// Waits until the thread of a process with this name sleeps. Returns it. The kernel keeps 15 bytes of a name.
fn wait_until_sleeps(process: libc::pid_t, name: &str) -> libc::pid_t {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut named = tasks.filter_map(|task| {
        let task = task.unwrap();
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        (comm.trim_end() == &name[..name.len().min(15)])
            .then(|| task.file_name().to_str().unwrap().parse().unwrap())
    });
    let thread = named.next().expect("such a thread");
    wait_until("sleep", || is_asleep(thread));
    thread
}

/// Watches one more thread of a process, and stops it in the system call in which it sleeps.
fn stop_where_it_sleeps(process: libc::pid_t, name: &str) -> libc::pid_t {
    let thread = wait_until_sleeps(process, name);
    order(libc::PTRACE_SEIZE, thread, 0, libc::PTRACE_O_EXITKILL as usize);
    order(libc::PTRACE_INTERRUPT, thread, 0, 0);
    assert_eq!(next_stop(process), Ok((thread, libc::SIGTRAP)), "{name} does not stop");
    thread
}
