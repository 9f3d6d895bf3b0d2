//! Streams of gRPC: requests to decoupled and other models, messages and bytes of any kind, pauses, a shutdown, and clients
//! that leave. Each request has its answers in order, and after each stream nothing is in flight.
//!
//! The input is `flags | answers until the client leaves | bytes at a time | step …`. A step is a byte, modulo 8, and the
//! bytes that it takes, behind their number, as `crates/slipring-triton/src/grpc/stream_fuzzing.rs` reads them: a request to
//! the decoupled model, a request to another one, a message, bytes, a request that is refused, the shutdown, or a pause.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring_triton::fuzzing::stream(bytes));
