//! gRPC inference requests: frames of any bytes, or one frame with a message of any bytes. A decoded message takes about
//! its counted size, and is executed.
//!
//! The input is `flags | bytes at a time | body`. The decoder is in `crates/slipring-triton/src/grpc/fuzzing.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring_triton::fuzzing::message(bytes));
