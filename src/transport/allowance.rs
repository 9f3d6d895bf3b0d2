//! What the peers of one user may cost a listener: bytes of segments to check, by time.
//!
//! A kernel that counts the pages of a GiB takes up to some 10 ms, and the peer can connect once more at once. A user has
//! an allowance, which fills up with time. A listener keeps one number for each user that has used some of it.

use std::time::Instant;

/// Segments up to this length cost little, and nothing of the allowance.
pub(crate) const FREE: u64 = 16 << 20;

/// The allowance in bytes, which is also what a second adds to it.
pub(crate) const BYTES: u64 = 4 << 30;

/// The bytes that the users of a listener's peers have cost.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    /// The user, the bytes that it had used up at a moment, and the moment.
    used: Vec<(u32, f64, Instant)>,
}

impl Allowance {
    /// Takes the bytes of a segment from a user's allowance. Returns `false` if it has not got as much left.
    pub(super) fn take(&mut self, user: u32, bytes: u64) -> bool {
        bytes <= FREE || self.take_at(user, bytes, Instant::now())
    }

    fn take_at(&mut self, user: u32, bytes: u64, now: Instant) -> bool {
        let left = |used: f64, then: Instant| used - (now - then).as_secs_f64() * BYTES as f64;
        self.used.retain(|(_, used, then)| left(*used, *then) > 0.0);
        let at = self.used.iter().position(|(each, ..)| *each == user).unwrap_or_else(|| {
            self.used.push((user, 0.0, now));
            self.used.len() - 1
        });
        let (_, used, then) = &mut self.used[at];
        let sum = left(*used, *then) + bytes as f64;
        if sum > BYTES as f64 {
            return false;
        }
        (*used, *then) = (sum, now);
        true
    }
}

#[cfg(test)]
mod tests;
