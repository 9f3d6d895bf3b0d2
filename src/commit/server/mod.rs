//! The service's side: a server that receives on one thread, and executes there or on workers.
//!
//! ```text
//!   clients' links ──▶ ClientSession::receive ──┬─ inline model ──▶ Committed::run, on this thread
//!      (reactor)        one thread, for all     │
//!                                               └─ queue ──▶ WorkerPool ──▶ Committed::run
//!                                                                           ControlRequest::handle
//! ```

mod account;
mod batch;
mod client_session;
mod handle;
mod handlers;
mod host;
mod options;
mod service;
mod tally;
mod unsent;
mod workers;

pub use handle::Server;
pub use options::ServerOptions;
pub(crate) use options::{REQUEST_BYTES, REQUESTS};
pub use service::{Buffers, Caller, Execute, ModelSource, Refused, Service};
pub use tally::ServerStats;
