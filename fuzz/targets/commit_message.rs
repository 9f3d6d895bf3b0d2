//! A message of committed buffers, of a client or of a service: judged whatever it is, and written again as it was read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring::fuzzing::message(bytes));
