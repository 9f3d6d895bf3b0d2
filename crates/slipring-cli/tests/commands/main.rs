//! The commands of `slipring`, as processes.

mod recordings;
mod round_trips;
mod support;
mod topics;
