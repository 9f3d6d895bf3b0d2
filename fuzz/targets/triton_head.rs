//! The JSON of an inference request. Data that was read survives a write and a second read, and every input that
//! validation accepts has the length of its shape.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring_triton::fuzzing::head(bytes));
