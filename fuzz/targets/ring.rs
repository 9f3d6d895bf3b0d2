//! Both ends of a ring, and of a sleep, over words that change while they are looked at.
//!
//! The input is `start | step …`. A step is a byte, modulo 8: change a word, read (1 to 3), publish the position,
//! write, write a batch, sleep and look. Every load of a peer's word takes another byte; of those that end
//! in 7 a word is changed first: `place, 2 bytes | word`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slipring::fuzzing::ring(bytes));
