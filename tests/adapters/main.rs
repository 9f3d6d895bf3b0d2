//! Connections, listeners and subscribers work inside event loops of others: mio and tokio.

mod broadcast;
mod faults;
mod floods;
mod fork;
mod mio;
mod shares;
#[path = "../support/mod.rs"]
mod support;
mod tokio;
#[cfg(feature = "traces")]
mod traces;
