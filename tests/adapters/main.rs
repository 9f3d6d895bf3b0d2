//! Connections and listeners work inside event loops of others: mio and tokio.

mod faults;
mod fork;
mod mio;
#[path = "../support/mod.rs"]
mod support;
mod tokio;
