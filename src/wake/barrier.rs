//! The barrier of a thread that is about to sleep.

use std::sync::OnceLock;

use rustix::thread::MembarrierCommand;

use crate::sync::Edge;

/// Whether this process can issue `membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)` (Linux 4.16), and is
/// registered to be interrupted by it.
pub(crate) fn is_registered() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
            && rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    })
}

/// The barrier between saying that we sleep and the last look at what we wait for.
///
/// `was_hot`: one of those to whom we said so may issue no fence (see [`Sleeper`](super::Sleeper)). The system call
/// then issues one on every CPU that runs a registered process. It takes some 12 µs beside one running peer.
pub(crate) fn before_last_look(was_hot: bool) {
    // Pairs with Waker::look: a waker that misses our state is seen by our last look.
    Edge::Park.barrier();
    if was_hot {
        Edge::Interrupt.run(interrupt);
    }
}

#[cfg(not(all(test, slipring_loom)))]
#[cold]
fn interrupt() {
    // Cannot fail once it has worked: the command has no arguments and allocates nothing that it could not do without.
    let _ = rustix::thread::membarrier(MembarrierCommand::GlobalExpedited);
}

#[cfg(all(test, slipring_loom))]
use crate::wake::interrupts::interrupt;
