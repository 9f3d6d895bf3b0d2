//! A message of committed buffers, of a client or of a server: it is refused, or encoded as it was read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring::fuzzing::message(bytes));
