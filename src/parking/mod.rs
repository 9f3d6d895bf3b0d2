//! Sleeping and waking across two processes.

#[cfg(all(test, slipring_loom))]
mod models;
mod words;

pub(crate) use words::{Attention, Barrier, Sleeper, Waker, has_left, is_parked};
