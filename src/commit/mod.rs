//! Committed buffers: memory that a client registers with a service once, and executes on by id.
//!
//! A service that runs models should not receive descriptors and map memory on every request. Here a client
//! [loads](Client::load) a model and learns which buffers it needs; [allocates or imports](Buffer) them; sets them into a
//! [`Session`]; and [commits](Session::commit) the session: the descriptors travel, and the server checks and maps them,
//! once. From then on an [execution](Session::execute) is one message of 24 bytes, and its answer one of 16.
//!
//! ```text
//!   client process                                     service process
//!   Client ── Model ── Session ── Execution            Server ── Service (yours)
//!      │        │         │                               │
//!      │  description   buffers                        one receiving thread, N workers
//!      └── load ────────────────────── bytes ─────────▶ load      → buffers, regions
//!          commit ──────────────────── descriptors ───▶ check, map, commit → id
//!          execute ─────────────────── id ────────────▶ execute   → done
//!          update, release, close ───────────────────▶ ...
//! ```
//!
//! A *region* is memory that the client provides, exactly as long as the model says. A *buffer* of a model is a named
//! tensor inside a region; several buffers may share one region.
//!
//! 1. An error changes nothing, on either side.
//! 2. The server trusts nothing that a client sends: it checks sizes, offsets, descriptors and ids itself.
//! 3. Either side may write committed memory at any moment, so both access it through [views](View), which copy. The
//!    server maps inputs to read only.
//! 4. When one side dies, the other goes on: clients of a dead service get an error and keep their buffers; a server
//!    ends the models, commits and mappings of a dead client.
//!
//! `docs/commit.md` describes the states of a session, the limits, inline and queued execution, and the names that the
//! ENN document uses.

mod buffer;
mod client;
mod description;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod memory;
mod server;
mod slots;
mod wire;

#[doc(no_inline)]
pub use crate::error::CommitFault;
pub use crate::error::{Direction, Slot, Unset};
pub use buffer::Buffer;
pub use client::{Client, Execution, Model, Outcomes, Session, SessionState};
pub use description::{BufferInfo, Description, RegionInfo};
pub use memory::View;
pub use server::{
    Buffers, Caller, Execute, ModelSource, Refused, Server, ServerOptions, ServerStats, Service,
};
pub(crate) use server::{REQUEST_BYTES, REQUESTS};
