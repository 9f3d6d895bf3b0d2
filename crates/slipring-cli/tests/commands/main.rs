//! The commands of `slipring`, as processes.

mod round_trips;
mod support;
mod topics;
