//! One direction of a link: a [`Sender`] in one process, and the [`Receiver`] of its messages in the other.
//!
//! ```text
//!   Sender ── short message ──► ring ───────────────────► Inbox ──► Receiver
//!          └─ long message ──► pool block ◄─ descriptor ─┘  │
//!                              in the ring                  └──► Backlog (messages of other kinds)
//! ```
//!
//! 1. A `Sender` writes its own ring and its own pool. The peer maps both read-only.
//! 2. The [`inbox`] copies each record's header and descriptor once and checks the copy before it uses it.
//! 3. A record that cannot be right ends this link with a fault, and no other link.

pub(crate) mod announced;
pub(crate) mod attachment;
pub(crate) mod backlog;
pub(crate) mod calls;
pub(crate) mod detached;
pub(crate) mod envelope;
pub(crate) mod extension;
pub(crate) mod hold;
pub(crate) mod inbox;
pub(crate) mod loan_descriptor;
pub(crate) mod long_copy;
pub(crate) mod message;
pub(crate) mod metadata;
#[cfg(all(test, slipring_loom))]
mod models;
pub(crate) mod pipeline;
pub(crate) mod readiness;
pub(crate) mod second_ring;
pub(crate) mod segment_cache;
pub(crate) mod sender;
#[cfg(feature = "traces")]
pub(crate) mod spans;
#[cfg(not(feature = "traces"))]
#[path = "spans/off.rs"]
pub(crate) mod spans;
pub(crate) mod stats;
pub(crate) mod token;
#[cfg(feature = "traces")]
pub(crate) mod trace_context;

#[cfg(feature = "cuda")]
pub use crate::link::AnnouncedAllocations;
pub(crate) use crate::link::env::LinkEnv;
pub use crate::link::{LinkSocket, PassedAllocation, SharedAllocation};
pub(crate) use attachment::{Attachment, Claims, SINGLE, SINGLE_LENS};
pub use attachment::{LentRange, MappingCharge};
pub(crate) use backlog::{KeptMessage, OVERHEAD};
pub use detached::{DetachedReceived, DetachedReservation, attach_batch};
pub(crate) use envelope::{Envelope, PLAIN_TENSORS, TENSOR_REQUEST, TENSOR_RESPONSE};
pub use extension::ExtensionSlot;
pub use inbox::receiver::{Received, Receiver};
pub(crate) use inbox::tensor_calls::AnyResponse;
pub(crate) use loan_descriptor::ALIGNMENT;
pub(crate) use long_copy::{Copied, SLICE};
pub use message::{MessageKind, Request, RequestId};
pub use metadata::{Metadata, Value};
pub(crate) use readiness::Watch;
pub use sender::Sender;
pub use sender::at_once::AtOnce;
pub(crate) use sender::attachments::OutgoingAttachment;
pub(crate) use sender::lacking_room::LackingRoom;
pub use sender::reservation::{Batch, Reservation};
pub(crate) use spans::{CallSpan, HandlerSpan};
pub use stats::HalfStats;
pub use token::Token;
#[cfg(feature = "traces")]
pub use trace_context::remote_context;
