//! `membarrier` for loom, by what it promises: each running thread issues a full fence at some point of its program
//! before the call returns.
//!
//! The threads that may be interrupted pass [`point`] wherever the interrupt may meet them.

use loom::sync::atomic::{Ordering, fence};
use loom::sync::{Condvar, Mutex};

#[derive(Default)]
struct Cpu {
    /// Threads that may be interrupted.
    running: u32,
    requested: u64,
    served: u64,
}

#[derive(Default)]
struct Interrupts {
    cpu: Mutex<Cpu>,
    served: Condvar,
}

std::thread_local! {
    /// The model interrupts. loom runs a model's threads as coroutines of one thread.
    static IS_INTERRUPTED: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

/// Sets whether the models of this thread interrupt; the others are spared the points.
pub(super) fn set_interrupted(yes: bool) {
    IS_INTERRUPTED.set(yes);
}

loom::lazy_static! {
    static ref INTERRUPTS: Interrupts = Interrupts::default();
}

/// Runs a thread's program, in which it may be interrupted. The model has one such thread.
pub(super) fn interruptible(program: impl FnOnce()) {
    INTERRUPTS.cpu.lock().unwrap().running += 1;
    program();
    // A thread that is not running has passed a full fence.
    fence(Ordering::SeqCst);
    INTERRUPTS.cpu.lock().unwrap().running -= 1;
    INTERRUPTS.served.notify_all();
}

/// Marks a point at which an interrupt may meet the thread.
pub(super) fn point() {
    if !IS_INTERRUPTED.get() {
        return;
    }
    let mut cpu = INTERRUPTS.cpu.lock().unwrap();
    if cpu.running > 0 && cpu.served < cpu.requested {
        fence(Ordering::SeqCst);
        cpu.served = cpu.requested;
        INTERRUPTS.served.notify_all();
    }
}

/// Models the system call.
pub(super) fn interrupt() {
    let mut cpu = INTERRUPTS.cpu.lock().unwrap();
    cpu.requested += 1;
    while cpu.running > 0 && cpu.served < cpu.requested {
        cpu = INTERRUPTS.served.wait(cpu).unwrap();
    }
}
