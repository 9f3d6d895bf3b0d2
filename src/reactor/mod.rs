//! Who must be woken, and how.

mod parking;

pub(crate) use parking::{Attention, Barrier, Sleeper, Waker, has_left, is_parked};
