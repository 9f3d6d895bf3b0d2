//! Committed buffers: what each call answers in each state, and that no lie, no death and no failure changes anything else.
//!
//! `cargo test --features commit --test commit` tries a sample of the deaths, `SLIPRING_TESTS=whole` all of them. Tests
//! that count what a process holds, fork, or lower a limit run in a process of their own ([`support::other`]).
//! `tests/commit_quiet.rs` is a binary of its own, since it needs both processors.

#![allow(unsafe_code)]

mod accounts;
mod deadlines;
mod deaths;
mod dmabuf;
mod errors;
mod fairness;
mod hostile;
mod hostile_memory;
mod hostile_service;
mod random;
mod sessions;
mod shutdown;
#[path = "../support/mod.rs"]
mod support;
mod workers;
