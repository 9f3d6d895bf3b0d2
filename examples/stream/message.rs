//! What `producer` and `consumer` agree on: the head of a message, its checksum, their options.

use std::time::Duration;

use lexopt::prelude::{Long, ValueExt};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How often either side says how it goes.
pub const SECOND: Duration = Duration::from_secs(1);

/// How a message starts. The body, any number of bytes, follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// Counts a producer's messages from 0.
    pub number: u64,
    /// [`now`], when the message was written. Both sides run on one machine, so on one clock.
    pub stamp: u64,
    /// [`checksum`] of the other two and the body.
    pub checksum: u64,
}

/// FNV-1a over words of 8 bytes: one xor and one multiplication a word, about 5 GB/s. Both can be
/// undone, so a change of any one word always shows; and unlike a sum it sees words that swapped
/// places. It finds accidents: somebody who means harm can forge it.
pub fn checksum(number: u64, stamp: u64, body: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x100_0000_01b3);
    let (words, rest) = body.as_chunks::<8>();
    let start = step(step(0xcbf2_9ce4_8422_2325, number), stamp);
    let sum = words.iter().fold(start, |sum, word| step(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)))
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The address that `--name` gives, and the numbers that the other options give.
pub fn options<const N: usize>(
    mut known: [(&str, u64); N],
) -> Result<(String, [u64; N]), lexopt::Error> {
    let mut name = "numbers".to_owned();
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        let place = known.iter_mut().find(|(option, _)| argument == Long(option));
        match (argument, place) {
            (_, Some((_, number))) => *number = arguments.value()?.parse()?,
            (Long("name"), _) => name = arguments.value()?.string()?,
            (other, _) => return Err(other.unexpected()),
        }
    }
    Ok((name, known.map(|(_, number)| number)))
}
