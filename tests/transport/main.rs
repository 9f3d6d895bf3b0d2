//! A connection carries every message once, whole and in order. It ends with the reason. A peer that dies, lies or
//! hoards costs its own link, and nothing else in the process.

mod accounts;
mod ahead;
mod cost;
mod death;
mod exchange;
mod handshake;
mod interop;
mod lies;
mod limits;
mod log;
mod memory;
mod metadata;
mod named;
mod polling;
mod processes;
mod readiness;
mod regressions;
mod revocation;
mod second_ring;
mod shares;
mod slow_descriptors;
#[path = "../support/mod.rs"]
mod support;
mod wire;
