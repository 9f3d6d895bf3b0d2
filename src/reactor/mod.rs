//! Who must be woken, and how.

#[cfg(all(test, slipring_loom))]
mod models;
mod parking;

pub(crate) use parking::{Attention, Barrier, Sleeper, Waker, has_left, is_parked};
