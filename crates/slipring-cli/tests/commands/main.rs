//! The commands of `slipring`, as processes.

mod descriptions;
mod diagnoses;
mod recordings;
mod round_trips;
mod support;
mod topics;
