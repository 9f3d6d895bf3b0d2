//! Connections inside other people's event loops.

#[cfg(feature = "mio")]
mod mio;
#[cfg(feature = "tokio")]
pub mod tokio;
