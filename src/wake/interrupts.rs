//! `membarrier` for loom, by what it promises: each running thread issues a full fence at some point of its program
//! before the call returns.
//!
//! The threads that may be interrupted pass [`point`] wherever the interrupt may meet them.

use core::cell::Cell;

use loom::sync::atomic::{Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread::ThreadId;

#[derive(Default)]
struct Cpus {
    /// The threads that may be interrupted, each with the latest request that it has served.
    running: Vec<(ThreadId, u64)>,
    requested: u64,
}

#[derive(Default)]
struct Interrupts {
    cpus: Mutex<Cpus>,
    served: Condvar,
}

loom::lazy_static! {
    static ref INTERRUPTS: Interrupts = Interrupts::default();
}

loom::thread_local! {
    /// The thread runs, and may be interrupted. The other threads are spared the points.
    static IS_RUNNING: Cell<bool> = Cell::new(false);
}

/// Runs a thread's program, in which it may be interrupted.
pub(super) fn interruptible(program: impl FnOnce()) {
    let thread = loom::thread::current().id();
    let mut cpus = INTERRUPTS.cpus.lock().unwrap();
    let requested = cpus.requested;
    cpus.running.push((thread, requested));
    drop(cpus);
    IS_RUNNING.with(|running| running.set(true));
    program();
    IS_RUNNING.with(|running| running.set(false));
    // A thread that is not running has passed a full fence.
    fence(Ordering::SeqCst);
    INTERRUPTS.cpus.lock().unwrap().running.retain(|(running, _)| *running != thread);
    INTERRUPTS.served.notify_all();
}

/// Marks a point at which an interrupt may meet the thread.
pub(super) fn point() {
    if !IS_RUNNING.with(Cell::get) {
        return;
    }
    let thread = loom::thread::current().id();
    let mut cpus = INTERRUPTS.cpus.lock().unwrap();
    let requested = cpus.requested;
    for (running, served) in &mut cpus.running {
        if *running == thread && *served < requested {
            fence(Ordering::SeqCst);
            *served = requested;
            INTERRUPTS.served.notify_all();
        }
    }
}

/// Models the system call.
pub(super) fn interrupt() {
    let mut cpus = INTERRUPTS.cpus.lock().unwrap();
    cpus.requested += 1;
    let request = cpus.requested;
    while cpus.running.iter().any(|(_, served)| *served < request) {
        cpus = INTERRUPTS.served.wait(cpus).unwrap();
    }
}
