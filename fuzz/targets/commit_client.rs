//! The state of a client of committed buffers: its user sets, commits, executes, updates and releases, and the server
//! answers anything. The state of each session agrees with the requests under way, and every answer that is accepted is
//! the first one to a request.
//!
//! The input is a list of steps: a byte that picks a ticket, a byte, modulo 20, that picks the step, and the bytes that
//! the step takes, as `src/commit/fuzzing.rs` reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring::fuzzing::client_state(bytes));
