//! The public face of a link: contexts, listeners, connections, and their options.
//!
//! A [`Context`] makes [`Listener`]s and connects; a [`Connection`] is one outbox, written by its
//! [`Sender`](crate::Sender), and one inbox, read by its [`Receiver`](crate::Receiver). Each side owns one segment per
//! link:
//!
//! ```text
//!        our segment                                 the peer's segment
//!   ┌───────────────────────┐                    ┌───────────────────────┐
//!   │ control: our position │◀─ reads ─ peer     │ control: its position │
//!   │   state words, bells, │                    │   state words, bells, │
//!   │   returned loans      │                    │   returned loans      │
//!   ├───────────────────────┤                    ├───────────────────────┤
//!   │ ring: our outbox      │═ read by the peer  │ ring: our inbox       │
//!   └───────────────────────┘                    └───────────────────────┘
//!     only we write                                only the peer writes
//! ```
//!
//! 1. Only its creator writes a segment.
//! 2. After the handshake the socket carries descriptors of pool segments and of the user's, wake-ups, and the end of
//!    the peer. It carries no messages.

pub(crate) mod allowance;
mod connection;
mod context;
mod core;
mod establish;
mod listener;
mod options;
mod socket_path;

pub use connection::{Connection, Stats};
pub use context::Context;
pub(crate) use establish::{Established, LINK_DESCRIPTORS};
pub use listener::{Listener, ListenerStats};
pub(crate) use listener::{PAUSE as ACCEPT_PAUSE, SHORT_SLICE as ACCEPT_SLICE};
pub use options::Options;
pub use socket_path::SocketPath;
