//! A link of two processes after the handshake: two mappings, a socket, and the end of either side.
//!
//! 1. A [`Link`](link::Link) lives as long as a half, a loan or the peer needs it.
//! 2. A [`Session`](session::Session) is its use by this process. When the last half and loan are gone, the session
//!    tells the peer.
//! 3. One thread a context, the [`watcher`], sees the end of peers.

pub(crate) mod allocations;
pub(crate) mod control_socket;
pub(crate) mod deadlines;
pub(crate) mod env;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
pub(crate) mod health;
#[expect(clippy::module_inception, reason = "a link is the object that this folder is about")]
pub(crate) mod link;
pub(crate) mod link_socket;
pub(crate) mod parts;
pub(crate) mod passed;
pub(crate) mod registry;
pub(crate) mod session;
pub(crate) mod share;
pub(crate) mod waiter;
pub(crate) mod watcher;

#[cfg(feature = "cuda")]
pub use allocations::AnnouncedAllocations;
pub use allocations::{PassedAllocation, SharedAllocation};
pub use link_socket::LinkSocket;
