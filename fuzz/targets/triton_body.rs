//! A request to infer over HTTP, of JSON and the bytes of tensors behind it: every answer can be read, and is the same
//! however the body is cut, coded and counted.
//!
//! The input is `model | flags | bytes at a time | length of the JSON u16 | body`, as `crates/slipring-triton/src/http/fuzzing.rs` reads it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring_triton::fuzzing::body(bytes));
