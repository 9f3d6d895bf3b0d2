//! How long a publisher waits for subscribers with one message, and when one of them has stalled.
//!
//! 1. The time of all subscribers begins with the first wait of a send. A subscriber that has read something since then has its
//!    time anew. Waits for others take nothing off it.
//! 2. All waits together have an end, also those of sends that published nothing, so subscribers that read on as slowly as they may do not hold the publisher.
//! 3. A subscriber that comes while the send waits has a later end: it answers for none of the time before it came.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::patience::after;
use crate::status::Awaited;

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
    /// Returns what the status page says that the publisher waits for.
    pub(super) fn awaited(self) -> Awaited {
        match self {
            Self::Messages => Awaited::Room,
            Self::Packets => Awaited::Packets,
        }
    }

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

/// The waits for one message, by one send or by several of which all but the last published nothing.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// The number of the message.
    message: u64,
    /// When the last wait ended.
    waited: Option<Instant>,
    /// When a send waits no longer for those that came after the first wait. `None` before that.
    end: Option<Instant>,
    /// For each subscriber what is known of it.
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
    /// Begins a wait for a message. Returns when a subscriber has stalled: `patience` after it was last seen to read on. At the
    /// first wait for the message, `all` returns the numbers and the positions of all that are waited for. The time between two
    /// waits puts all ends off.
    pub(super) fn until(
        &mut self,
        message: u64,
        (id, position): (u64, u64),
        patience: Duration,
        all: impl FnOnce() -> Vec<(u64, u64)>,
    ) -> Instant {
        if self.message != message {
            *self = Self { message, ..Self::default() };
        }
        if let Some(waited) = self.waited.take() {
            self.put_off(waited.elapsed());
        }
        let Self { end, seen, .. } = self;
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

    /// Ends a wait.
    pub(super) fn end_wait(&mut self) {
        self.waited = Some(Instant::now());
    }

    /// Puts the ends off by a time in which no send waited.
    fn put_off(&mut self, time: Duration) {
        let ends = self.seen.values_mut().map(|seen| &mut seen.end);
        for end in self.end.iter_mut().chain(ends) {
            *end = end.checked_add(time).unwrap_or(*end);
        }
    }
}

#[cfg(test)]
mod tests;
