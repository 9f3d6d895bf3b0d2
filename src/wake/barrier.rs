//! The barrier of a thread that is about to sleep.
//!
//! 1. The thread always issues a full fence.
//! 2. A thread that was hot also has the kernel issue one on each waker's CPU.

use std::sync::OnceLock;

use rustix::thread::MembarrierCommand;

use crate::sync::Edge;

/// Returns whether this process can issue `membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)` (Linux 4.16), and is
/// registered for its interrupts.
pub(crate) fn is_registered() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
            && rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    })
}

/// Issues the barrier between the store of a sleeper's state and its last look.
///
/// If the sleeper `was_hot`, its waker may issue no fence (see [`Sleeper`](super::Sleeper)). The system call then
/// issues one on every CPU that runs a registered process. It takes some 12 µs beside one running peer.
pub(crate) fn before_last_look(was_hot: bool) {
    // Pairs with Waker::look: if the waker misses the state, the last look sees what it made visible.
    Edge::Park.barrier();
    if was_hot {
        Edge::Interrupt.run(interrupt);
    }
}

/// Where the system call fails, the sleeper waits for as long instead: a store leaves its CPU within microseconds.
#[cfg(not(all(test, slipring_loom)))]
const STORED: std::time::Duration = std::time::Duration::from_millis(1);

#[cfg(not(all(test, slipring_loom)))]
#[cold]
fn interrupt() {
    if rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).is_err() {
        // The kernel lacks memory, or the process entered a sandbox.
        std::thread::sleep(STORED);
    }
}

#[cfg(all(test, slipring_loom))]
use crate::wake::interrupts::interrupt;
