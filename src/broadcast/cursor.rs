//! The place of a subscriber in the sequence of messages: the arithmetic, without memory.

use crate::handshake::Policy;

/// The number of a message that no publisher reaches. A subscriber counts on from here for ever without an overflow.
pub(super) const END: u64 = 1 << 62;

/// The place of a subscriber.
#[derive(Debug)]
pub(super) struct Cursor {
    policy: Policy,
    slots: u64,
    /// The number of the message that comes next.
    next: u64,
    /// Messages that were skipped, and of which the caller has not been told.
    missed: u64,
    /// The position that the publisher knows.
    told: u64,
    /// A message was taken.
    has_begun: bool,
}

impl Cursor {
    /// Returns a cursor in front of the message `next`.
    pub(super) fn new(policy: Policy, slots: u64, next: u64) -> Self {
        Self { policy, slots, next, missed: 0, told: 0, has_begun: false }
    }

    /// Returns the number of the message that comes next.
    #[inline(always)]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns whether messages may be missed.
    #[inline(always)]
    pub(super) fn is_lossy(&self) -> bool {
        self.policy != Policy::Every
    }

    /// Returns whether the publisher keeps the next message until it knows a position behind it.
    #[inline(always)]
    pub(super) fn is_kept(&self) -> bool {
        !self.is_lossy() && self.has_begun
    }

    /// Returns the number of the message that comes next, if the policy skips some now. `newest` is the publisher's word.
    #[inline(always)]
    pub(super) fn skips_to(&self, newest: u64) -> Option<u64> {
        let behind = newest.saturating_sub(self.next);
        match self.policy {
            Policy::Newest(count) if behind >= count.into() => Some(newest - u64::from(count) + 1),
            Policy::Latest if behind > 0 => Some(newest),
            _ => None,
        }
    }

    /// Returns where to go on after a message was overwritten. The oldest quarter of the slots may be overwritten next.
    pub(super) fn after_overrun(&self, newest: u64) -> u64 {
        let oldest = newest.saturating_sub(self.slots - self.slots / 4) + 1;
        self.skips_to(newest).unwrap_or(0).max(oldest).max(self.next + 1)
    }

    /// Goes on at `message`, and counts those before it as missed.
    pub(super) fn skip_to(&mut self, message: u64) {
        self.missed = self.missed.saturating_add(message.saturating_sub(self.next));
        self.next = self.next.max(message);
    }

    /// Goes on behind the message. Returns its number, and how many before it were missed.
    #[inline(always)]
    pub(super) fn take(&mut self) -> (u64, u64) {
        let message = self.next;
        self.has_begun = true;
        self.next += 1;
        (message, std::mem::take(&mut self.missed))
    }

    /// Returns whether it [stopped](Self::stop).
    pub(super) fn has_stopped(&self) -> bool {
        self.next >= END
    }

    /// Goes to a place where no message comes, of which the publisher is not told.
    pub(super) fn stop(&mut self) {
        self.next = END;
        self.told = END;
    }

    /// Returns the position to tell the publisher of, if it is far behind, or behind at all and `now` is set.
    #[inline(always)]
    pub(super) fn tell(&mut self, now: bool) -> Option<u64> {
        let untold = self.next - self.told;
        let is_due = untold > 0 && (now || untold >= self.slots / 8);
        is_due.then(|| {
            self.told = self.next;
            self.next
        })
    }
}

#[cfg(test)]
mod tests;
