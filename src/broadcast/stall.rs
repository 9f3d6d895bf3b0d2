//! How long one send waits for subscribers, and when one of them has stalled.
//!
//! 1. The time of all subscribers begins with the first wait of the send. A subscriber that has read something since then has its
//!    time anew. Waits for others take nothing off it.
//! 2. All waits of a send together have an end, so subscribers that read on as slowly as they may do not hold the publisher.
//! 3. A subscriber that comes while the send waits has a later end: it answers for none of the time before it came.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::patience::after;

/// A send waits so many times as long as one subscriber has, and once more as long for those that come meanwhile.
const TIMES: u32 = 4;

/// The longest wait for the packets of a socket without a look at it: nothing tells that they were read.
const PACKETS: Duration = Duration::from_millis(1);

/// What a send waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cause {
    /// That a subscriber reads messages, which take slots or memory.
    Messages,
    /// That a subscriber reads the packets of its socket.
    Packets,
}

impl Cause {
    /// Returns the longest wait without a look, if nothing tells the publisher of what it waits for.
    pub(super) fn slice(self) -> Option<Duration> {
        match self {
            Self::Messages => None,
            Self::Packets => Some(PACKETS),
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Messages => {
                "a subscriber that wants every message has yet to read the oldest one"
            }
            Self::Packets => "a subscriber that wants every message has yet to read its socket",
        }
    }
}

/// A send that has published nothing. The next one goes on with its waits.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// The number of its message, or 0.
    message: u64,
    waits: Stall,
    gave_up: Option<Instant>,
}

impl Unfinished {
    /// Returns that of a send which gives up at this moment.
    pub(super) fn at(message: u64, waits: Stall) -> Self {
        Self { message, waits, gave_up: Some(Instant::now()) }
    }

    /// Returns the waits of the send of a message. The time in which no send waited is not one of its waits.
    pub(super) fn resume(self, message: u64) -> Stall {
        let Self { waits, gave_up, .. } = self;
        match gave_up {
            Some(gave_up) if self.message == message => waits.pause(gave_up.elapsed()),
            _ => Stall::default(),
        }
    }
}

/// The waits of one send.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// When the send waits no longer for those that came after its first wait. `None` before that.
    end: Option<Instant>,
    /// For each subscriber what the send knows of it.
    seen: BTreeMap<u64, Seen>,
}

/// What a send knows of a subscriber.
#[derive(Debug)]
struct Seen {
    /// Its position as last seen.
    position: u64,
    /// When it has stalled unless it reads on.
    stalled: Instant,
    /// When the send waits no longer for it.
    end: Instant,
}

impl Stall {
    /// Puts the ends off by a time in which the send did not wait.
    fn pause(mut self, time: Duration) -> Self {
        let ends = self.seen.values_mut().map(|seen| &mut seen.end);
        for end in self.end.iter_mut().chain(ends) {
            *end = end.checked_add(time).unwrap_or(*end);
        }
        self
    }

    /// Returns when a subscriber has stalled: `patience` after it was last seen to read on. At the first wait of the send, `all`
    /// returns the numbers and the positions of all that are waited for.
    pub(super) fn until(
        &mut self,
        (id, position): (u64, u64),
        patience: Duration,
        all: impl FnOnce() -> Vec<(u64, u64)>,
    ) -> Instant {
        let Self { end, seen } = self;
        let end = *end.get_or_insert_with(|| {
            let (stalled, end) = (after(patience), after(patience.saturating_mul(TIMES)));
            let all = all().into_iter();
            seen.extend(all.map(|(id, position)| (id, Seen { position, stalled, end })));
            after(patience.saturating_mul(2 * TIMES))
        });
        let of_newcomer = || Seen { position, stalled: after(patience), end };
        let seen = seen.entry(id).or_insert_with(of_newcomer);
        if position > seen.position {
            (seen.position, seen.stalled) = (position, after(patience));
        }
        seen.end.min(seen.stalled)
    }
}

#[cfg(test)]
mod tests;
