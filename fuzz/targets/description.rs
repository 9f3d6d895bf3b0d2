//! The description of tensors that a peer wrote: judged whatever it is, and written again as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| slipring::fuzzing::description(bytes));
