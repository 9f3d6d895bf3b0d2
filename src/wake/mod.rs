//! Sleep and wake-up across processes. The waker makes no system call while the sleeper is awake.
//!
//! Each reason to sleep has two words, each in its writer's segment:
//!
//! ```text
//!   sleeper's segment                     waker's segment
//!   state: 0 awake                        bell: counts wake-ups; the sleeper's futex
//!          4 awake, and hot
//!          epoch << 3 | 1 parked
//!          epoch << 3 | 5 parked, and eager
//!          epoch << 3 | 2 armed
//!          3 gone (never comes back)
//! ```
//!
//! A *parked* thread sleeps on the bell. An *armed* event loop sleeps on the link's socket, and a packet wakes it. The
//! waker rings an *eager* sleeper for the first part of a long message.
//!
//! | sleeper                          | waker                                |
//! |----------------------------------|--------------------------------------|
//! | load bell                        | make something visible               |
//! | store state = parked, new epoch  | **full fence**                       |
//! | **full fence**                   | load state                           |
//! | last look at what it waits for   | parked, epoch not yet attended:      |
//! | futex wait while bell is as read | add 1 to bell, futex wake            |
//! | store state = awake              | armed: send a packet                 |
//!
//! 1. Either the last look sees what was made visible, or the waker's load sees the parked state: the two fences
//!    exclude that both miss.
//! 2. A wake between the last look and the futex call changes the bell, so the call returns at once.
//! 3. A waker rings once an epoch, so a burst towards a sleeper that is on its way up costs one system call.
//! 4. The state is a hint between processes that need each other: a peer that lies about it loses its own wake-ups, or
//!    is rung for nothing once per lie.
//!
//! A fence a message costs a stream of short messages much of its rate. So a sleeper that has been awake for many
//! messages says that it is *hot*. While the waker finds it hot, the waker issues no fence. Before a hot sleeper
//! sleeps, it has the kernel issue one on the waker's CPU: `membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)`.
//!
//! 5. A waker loads the state once without a fence, and returns if the sleeper is hot. Else it fences and loads the
//!    state a second time: the first load may have been early.
//! 6. A sleeper is hot only if both processes are registered for `membarrier`; each side's Hello says so.

mod barrier;
mod crowd;
#[cfg(all(test, slipring_loom))]
pub(crate) mod interrupts;
#[cfg(all(test, slipring_loom))]
mod models;
mod sleeper;
mod spin;
mod state;
mod waker;

pub(crate) use barrier::{before_last_look, is_registered};
pub(crate) use crowd::Crowd;
pub(crate) use sleeper::Sleeper;
pub use spin::Spin;
pub(crate) use spin::{Polling, SpinPolicy};
pub(crate) use state::{GONE, HOT, is_asleep, is_asleep_word, is_gone};
pub(crate) use waker::{Attention, Waker};
