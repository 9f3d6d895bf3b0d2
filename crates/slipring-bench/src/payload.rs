//! The payload of the messages: every word differs from message to message, and a sum checks it.
//!
//! Floors and subjects fill and sum with the same loops, so that only the transport differs.

use slipring::message::Bytes;

use crate::Outcome;

/// Returns the seed of the message with this number. The two directions use different salts.
pub fn seed(number: u64, salt: u64) -> u64 {
    number.wrapping_add(salt).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The salt of messages from the leader.
pub const FROM_LEADER: u64 = 1;
/// The salt of messages from the follower.
pub const FROM_FOLLOWER: u64 = 1 << 32;

/// Writes every byte: word `i` is `seed + i`. The length is a multiple of 8.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut value = seed;
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&value.to_ne_bytes());
        value = value.wrapping_add(1);
    }
}

/// Reads every byte and returns the sum of all words.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(8).fold(0, |sum: u64, word| {
        sum.wrapping_add(u64::from_ne_bytes([
            word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
        ]))
    })
}

/// As [`sum`], in the peer's memory.
#[inline]
pub fn sum_in_place(bytes: Bytes<'_>) -> u64 {
    let lines = bytes.lines();
    let rest = lines.remainder();
    let mut sum = 0u64;
    for at in (0..rest.len()).step_by(8) {
        let mut word = [0; 8];
        rest.slice(at, 8).copy_to(&mut word);
        sum = sum.wrapping_add(u64::from_ne_bytes(word));
    }
    if bytes.len() < 64 {
        // The lanes would cost a short message as much as its words.
        return sum;
    }
    let mut lanes = [0u64; 8];
    for line in lines {
        for (lane, word) in lanes.iter_mut().zip(line) {
            *lane = lane.wrapping_add(word);
        }
    }
    lanes.iter().fold(sum, |sum, lane| sum.wrapping_add(*lane))
}

/// Returns the sum of `len` bytes that [`fill`] wrote from `seed`.
pub fn expected(len: usize, seed: u64) -> u64 {
    let words = len as u64 / 8;
    let triangle = (words * words.saturating_sub(1)) / 2;
    seed.wrapping_mul(words).wrapping_add(triangle)
}

#[cold]
fn mismatch(got: u64, expected: u64, number: u64) -> Outcome<()> {
    Err(format!("message {number} sums to {got:#x}, expected {expected:#x}").into())
}

/// Compares the sum of the message with this number to the expected one.
pub fn check(got: u64, expected: u64, number: u64) -> Outcome<()> {
    if got == expected { Ok(()) } else { mismatch(got, expected, number) }
}

/// Words that [`mark`] writes. They are enough to vary every message and to notice a wrong or torn copy, and too few to
/// add to the time of copying a MiB.
const MARKS: usize = 16;

/// Changes a few words of a buffer, spread evenly, before it is copied.
pub fn mark(bytes: &mut [u8], seed: u64) {
    let stride = bytes.len() / MARKS;
    for (index, part) in bytes.chunks_exact_mut(stride).enumerate() {
        part[..8].copy_from_slice(&seed.wrapping_add(index as u64).to_ne_bytes());
    }
}

/// Checks the words that [`mark`] wrote, by their sum.
pub fn check_marks(bytes: &[u8], seed: u64, number: u64) -> Outcome<()> {
    let stride = bytes.len() / MARKS;
    let got =
        bytes.chunks_exact(stride).fold(0, |total: u64, part| total.wrapping_add(sum(&part[..8])));
    check(got, expected(MARKS * 8, seed), number)
}
