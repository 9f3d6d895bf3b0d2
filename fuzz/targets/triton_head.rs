//! The JSON of a request to infer: data that was read is written and read again as the same bytes, and what a model's
//! check has passed is as long as its shape says.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring_triton::fuzzing::head(bytes));
