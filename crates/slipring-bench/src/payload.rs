//! What the messages carry: every word different in every message, and a sum to check it by.
//!
//! Floors and subjects fill and sum with these same loops, so that only the transport differs.

use crate::Outcome;

/// The seed of the message with this number. The two directions use different salts.
pub fn seed(number: u64, salt: u64) -> u64 {
    number.wrapping_add(salt).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

pub const FROM_LEADER: u64 = 1;
pub const FROM_FOLLOWER: u64 = 1 << 32;

/// Writes every byte: word `i` is `seed + i`. The length must be a multiple of 8.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut value = seed;
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&value.to_ne_bytes());
        value = value.wrapping_add(1);
    }
}

/// Reads every byte.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(8).fold(0, |sum: u64, word| {
        sum.wrapping_add(u64::from_ne_bytes([
            word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
        ]))
    })
}

/// What `sum` answers for `len` bytes filled from `seed`.
pub fn expected(len: usize, seed: u64) -> u64 {
    let words = len as u64 / 8;
    let triangle = (words * words.saturating_sub(1)) / 2;
    seed.wrapping_mul(words).wrapping_add(triangle)
}

#[cold]
fn mismatch(got: u64, expected: u64, number: u64) -> Outcome<()> {
    Err(format!("message {number} sums to {got:#x}, expected {expected:#x}").into())
}

pub fn check(got: u64, expected: u64, number: u64) -> Outcome<()> {
    if got == expected { Ok(()) } else { mismatch(got, expected, number) }
}

/// Words that `mark` writes: enough to vary every message and to notice a wrong or torn copy, few
/// enough not to be seen in the time of copying a MiB.
const MARKS: usize = 16;

/// Changes a few words, spread evenly, of a buffer that is about to be copied.
pub fn mark(bytes: &mut [u8], seed: u64) {
    let stride = bytes.len() / MARKS;
    for (index, part) in bytes.chunks_exact_mut(stride).enumerate() {
        part[..8].copy_from_slice(&seed.wrapping_add(index as u64).to_ne_bytes());
    }
}

/// Checks what `mark` wrote, by its sum.
pub fn check_marks(bytes: &[u8], seed: u64, number: u64) -> Outcome<()> {
    let stride = bytes.len() / MARKS;
    let got =
        bytes.chunks_exact(stride).fold(0, |total: u64, part| total.wrapping_add(sum(&part[..8])));
    check(got, expected(MARKS * 8, seed), number)
}
