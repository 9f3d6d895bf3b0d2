//! An HTTP inference request: JSON, and the bytes of tensors behind it. A client can read every response, and the
//! response is the same for every way in which the body is cut, compressed and counted.
//!
//! The input is `model | flags | bytes at a time | length of the JSON u16 | body`. The decoder is in
//! `crates/slipring-triton/src/http/fuzzing.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring_triton::fuzzing::body(bytes));
