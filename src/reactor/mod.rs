//! Many links on one thread: callbacks, tokens, and sleeping until one of them has something.
//!
//! ```text
//!   Reactor, Link ── commands, writes ──▶ Shared ──▶ EventLoop ──▶ callbacks
//!     any thread                                       one thread
//!                                                      │ hot links: the next header of each, in turn
//!                                                      │ armed links: epoll over their sockets
//! ```
//!
//! A link is *hot* while it has lately brought something: its next header is looked at in every turn,
//! which costs a load. A link that is silent, or one of too many, is *armed*: its peer sends a packet
//! with the next message. Before the loop sleeps it arms all of them, with one barrier.

mod commands;
mod doors;
mod event_loop;
mod events;
mod handle;
mod hot;
mod letters;
mod link;
mod links;
#[cfg(all(test, slipring_loom))]
mod models;
mod obey;
mod outgoing;
mod queue;
mod served;
mod shared;
mod table;
mod tensors;
mod wants;

pub use event_loop::EventLoop;
pub use handle::Reactor;
pub use link::{Link, Message};
