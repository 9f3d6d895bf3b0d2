//! The two directions of a link: what a sender puts into its ring and pool, and what a receiver takes out.
//!
//! A [`Sender`] writes short messages into its ring ([`sender`]), and long ones into blocks of the pool
//! (`sender::pool_writer`). A [`Receiver`] reads through its [`inbox`], which checks every record before it uses it.

pub(crate) mod announced;
pub(crate) mod attachment;
pub(crate) mod backlog;
pub(crate) mod calls;
pub(crate) mod envelope;
pub(crate) mod extension;
pub(crate) mod inbox;
pub(crate) mod loan_descriptor;
pub(crate) mod message;
#[cfg(all(test, slipring_loom))]
mod models;
pub(crate) mod pipeline;
pub(crate) mod readiness;
pub(crate) mod segment_cache;
pub(crate) mod sender;
pub(crate) mod stats;
pub(crate) mod token;

pub use attachment::LentRange;
pub(crate) use attachment::{Attachment, Claims, SINGLE};
pub use extension::ExtensionSlot;
pub(crate) use inbox::receiver::SetAside;
pub use inbox::receiver::{Received, Receiver};
pub(crate) use loan_descriptor::ALIGNMENT;
pub use message::{MessageKind, Request, RequestId};
pub(crate) use readiness::Watch;
pub use sender::Sender;
pub(crate) use sender::attachments::OutgoingAttachment;
pub use sender::reservation::{Batch, Reservation};
pub use stats::{RecvStats, SendStats};
pub use token::Token;
