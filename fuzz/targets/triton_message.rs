//! Requests to infer over gRPC: frames of any bytes, or one frame with a message of any bytes. What is decoded takes about
//! what it was weighed at, and is executed.
//!
//! The input is `flags | bytes at a time | body`, as `crates/slipring-triton/src/grpc/fuzzing.rs` reads it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring_triton::fuzzing::message(bytes));
