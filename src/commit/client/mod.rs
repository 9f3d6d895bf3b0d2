//! The client's side: handles of models, sessions and executions, over one connection that all threads share.
//!
//! ```text
//!   Client ── Model ── Session ── Execution      handles, which users hold
//!      └────────┴─────────┴───────────┘
//!                      ▼
//!                  ClientLink                    sends requests, receives answers for all threads
//!                      ▼
//!                  ClientState                   models, sessions, requests under way; no I/O
//! ```

mod execution;
mod fills;
mod handle;
mod link;
mod machine;
mod model;
mod outcomes;
mod session;
pub(super) mod state;

pub use execution::Execution;
pub use handle::Client;
pub use machine::SessionState;
pub use model::Model;
pub use outcomes::Outcomes;
pub use session::Session;
