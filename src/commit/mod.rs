//! Committed buffers: memory that is registered with a service once, and executed on by id.
//!
//! A service that runs models should not get descriptors and map memory on every request. Here a client [loads](Client::load)
//! a model and is told which buffers it needs; [allocates or imports](Buffer) them; sets them into a [`Session`]; and
//! [commits](Session::commit) that: the descriptors travel, and the service checks and maps them, once. From then on an
//! [execution](Session::execute) is one message of 24 bytes, and its answer one of 16.
//!
//! ```text
//!   client                                             service
//!   Client ── Model ── Session ── Execution            Server ── Service (yours)
//!      │        │         │                               │
//!      │  description   buffers                        workers, a loop
//!      └── load ────────────────────── bytes ─────────▶ load      → buffers, regions
//!          commit ──────────────────── descriptors ───▶ check, map, commit → id
//!          execute ─────────────────── id ────────────▶ execute   → done
//!          update, release, close ───────────────────▶ ...
//! ```
//!
//! A *region* is memory that the client provides, exactly as long as the model says. A *buffer* of a model is a named
//! tensor inside of a region; several may share one.
//!
//! 1. An error changes nothing, on either side.
//! 2. The service trusts nothing: it checks sizes, offsets, descriptors and ids itself.
//! 3. Either side may write committed memory at any moment, so both see it as [views](View), which copy. Inputs are
//!    mapped to read only.
//! 4. Whatever dies, the other side goes on: a service's clients get an error and keep their buffers, a client's models,
//!    commits and mappings go with it.
//!
//! `docs/commit.md` has the states of a session, the quotas, and the names that these things have elsewhere.

mod acts;
mod book;
mod buffer;
mod client;
mod crew;
mod description;
mod desk;
mod encoding;
mod execution;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod guest;
mod ledger;
mod limits;
mod memory;
mod message;
mod model;
mod pocket;
mod refusal;
mod server;
mod service;
mod session;
mod state;

#[doc(no_inline)]
pub use crate::error::CommitFault;
pub use crate::error::{Direction, Unset};
pub use buffer::{Buffer, Caching};
pub use client::Client;
pub use description::{BufferInfo, Counts, Description, RegionInfo};
pub use execution::{Execution, Executions, Outcomes};
pub use limits::{ServerOptions, ServerStats};
pub use memory::View;
pub use model::Model;
pub use server::Server;
pub use service::{Buffers, Caller, Execute, ModelSource, Refused, Service};
pub use session::Session;
pub use state::SessionState;
