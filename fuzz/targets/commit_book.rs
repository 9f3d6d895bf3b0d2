//! What a client of committed buffers makes of answers that are whatever the service likes, while its user sets, commits,
//! executes, updates and releases: each session stands as what was asked of it says, and every answer is to something
//! that was asked, once.
//!
//! The input is a list of steps: a byte that picks a ticket that was given, a byte, modulo 20, and the bytes that the step
//! takes, as `src/commit/fuzzing.rs` reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring::fuzzing::book(bytes));
