//! What two processes share after the handshake: two mappings, a socket, and the end of either side.
//!
//! A [`Link`](link::Link) lives as long as a half, a loan or the peer needs it. A [`Session`](session::Session) is its
//! use by this process: when the last half and loan are gone, the peer is told. One thread a context, the
//! [`watcher`], sees the end of peers.

pub(crate) mod control_socket;
pub(crate) mod env;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
pub(crate) mod health;
#[expect(clippy::module_inception, reason = "a link is the object that this folder is about")]
pub(crate) mod link;
pub(crate) mod link_socket;
pub(crate) mod passed;
pub(crate) mod registry;
pub(crate) mod session;
pub(crate) mod waiter;
pub(crate) mod watcher;

pub use link_socket::LinkSocket;
