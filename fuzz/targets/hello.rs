//! A packet of the socket, of the handshake or after it: judged whatever it is, and written again as it was read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring::fuzzing::packet(bytes));
