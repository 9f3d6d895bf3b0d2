//! How two processes meet, and what they then do.
//!
//! A [`Context`] makes [`Listener`]s and connects; a [`Connection`] is one outbox, written by its
//! [`Sender`], and one inbox, read by its [`Receiver`]. Each side owns one segment per link:
//!
//! ```text
//!        our segment                                 the peer's segment
//!   ┌───────────────────────┐                    ┌───────────────────────┐
//!   │ control: our position │◀─ reads ─ peer     │ control: its position │
//!   │   parking, bells,     │                    │   parking, bells,     │
//!   │   returned loans      │                    │   returned loans      │
//!   ├───────────────────────┤                    ├───────────────────────┤
//!   │ ring: our outbox      │═ read by the peer  │ ring: our inbox       │
//!   └───────────────────────┘                    └───────────────────────┘
//!     only we write                                only the peer writes
//! ```
//!
//! After the handshake the socket carries descriptors of pool segments and the end of the peer, no
//! data.

mod address;
mod ahead;
mod arrivals;
mod backlog;
mod calls;
mod connection;
mod context;
mod control;
mod enclosure;
mod envelope;
mod foreign;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod hello;
mod inbox;
mod lenders;
mod lending;
mod link;
mod listener;
mod looping;
mod luggage;
mod meeting;
#[cfg(all(test, slipring_loom))]
mod models;
mod options;
mod parcel;
mod peer;
mod pooled;
mod rare;
mod receiver;
mod reservation;
mod roll;
mod sender;
mod sent;
mod shelf;
mod socket;
mod standing;
mod token;
mod wait;
mod watcher;

pub use address::Address;
pub use connection::{Connection, Stats};
pub use context::Context;
pub(crate) use enclosure::Enclosure;
pub use foreign::Foreign;
pub(crate) use listener::PAUSE as ACCEPT_PAUSE;
pub use listener::{Listener, ListenerStats};
pub use looping::LinkSocket;
pub(crate) use looping::{SetAside, Watch};
pub use options::{Numa, Options, PeerPolicy};
pub use parcel::LentRange;
pub(crate) use parcel::{Attachment, Claims, SINGLE};
pub(crate) use peer::has_ended;
pub use peer::{Credentials, Peer};
pub(crate) use pooled::ALIGNMENT;
pub use receiver::{MessageKind, Received, Receiver, RecvStats, Request, RequestId, TryRecvError};
pub use reservation::{Batch, Reservation};
pub(crate) use sender::Patience as SendPatience;
pub use sender::{SendStats, Sender, TrySendError};
pub use shelf::Shelf;
pub use token::Token;
pub(crate) use wait::Patience as RecvPatience;
