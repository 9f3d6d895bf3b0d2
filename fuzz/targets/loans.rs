//! A pool whose borrowers return what they like, while accounts close and segments go: a block that somebody
//! holds is never handed out, and in the end all of them are back.
//!
//! The input is a list of steps: a byte, modulo 10, and the bytes that the step takes, as
//! `src/fuzzing.rs` reads them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring::fuzzing::loans(bytes));
