//! Many links on one thread: callbacks, tokens, and one sleep for all of them.
//!
//! ```text
//!   Reactor, Link ── commands ──▶ Mailbox ──▶ EventLoop ──▶ callbacks
//!     any thread ── writes ─────▶ ring          one thread
//!                                               │ polled links: the next header of each, in turn
//!                                               │ armed links: epoll over their sockets
//! ```
//!
//! The loop *polls* a link that has lately received something: each turn loads its next header. A link that stays silent is
//! *armed*: its peer sends a packet with the next message. Before the loop sleeps it arms every link, with one barrier.
//!
//! Links share the loop's time. A turn of a link ends after a few messages or 256 KiB of them. The loop copies a longer
//! message a slice a turn, and reads no more packets from a socket than its [share](crate::link::share) pays for. A link that has spent its share
//! *rests*: the loop does not poll it, and sleeps meanwhile if nothing else is due.
//!
//! | file | has |
//! |---|---|
//! | `handle`, `link` | the handles, which any thread uses |
//! | `command`, `mailbox`, `command_queue` | the way from the handles to the loop |
//! | `write_queue` | a link's sending half, and the writes that wait for room |
//! | `event_loop` | the loop |
//! | `active_link`, `interest`, `deferred` | a link's receiving half, its callbacks, and messages set aside for them |
//! | `link_table`, `ready_set`, `resting`, `listeners` | the links by place and key, the polled and the resting links, the listeners |
//! | `local` | values of one thread, for callbacks that run on it |
//! | `subscribers` | the subscribers of topics |
//! | `token_table` | the functions that a peer may trigger |
//! | `stats`, `totals` | the counters |

mod active_link;
mod command;
mod command_queue;
mod deferred;
mod event_loop;
mod handle;
mod interest;
mod link;
mod link_table;
mod listeners;
mod local;
mod mailbox;
mod message;
#[cfg(all(test, slipring_loom))]
mod models;
mod ready_set;
mod resting;
mod stats;
mod subscribers;
mod token_table;
mod totals;
mod write_queue;

pub(crate) use active_link::{QUANTUM, TENSOR};
pub use event_loop::EventLoop;
pub(crate) use event_loop::SHARE;
pub use handle::Reactor;
pub use link::Link;
pub use local::Local;
pub use message::Message;
pub use stats::{LinkStats, ReactorStats};
