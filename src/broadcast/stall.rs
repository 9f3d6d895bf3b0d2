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
