//! Metrics of this process for OpenTelemetry: what its links, topics, listeners and pools do.
//!
//! [`observe`] makes the instruments. They read the [status page](crate::status) of this process when a reader collects, so a
//! message costs nothing more than without them. An application brings the SDK, a reader and an exporter;
//! `examples/metrics.rs` serves a page for Prometheus.
//!
//! # Counters
//!
//! | name | unit | counts | attributes beside address and role |
//! |---|---|---|---|
//! | `slipring.messages` | `{message}` | messages that passed; a publisher counts each once | `network.io.direction` |
//! | `slipring.io` | `By` | their bytes. Those of tensors count where they are sent; a subscriber counts none | `network.io.direction` |
//! | `slipring.wakeups` | `{wakeup}` | system calls that woke the peer | `network.io.direction` |
//! | `slipring.sleeps` | `{sleep}` | times that a half slept | `network.io.direction` |
//! | `slipring.peer.deaths` | `{process}` | links that ended because the peer's process died | |
//! | `slipring.subscriber.missed` | `{message}` | messages that a subscriber of this process missed | |
//! | `slipring.subscriber.evictions` | `{subscriber}` | subscribers that a publisher of this process evicted | `slipring.cause`: `stalled`, `asked`, `overdrawn` |
//! | `slipring.listener.peers` | `{peer}` | peers that came | `slipring.outcome`: `accepted`, `refused`, `silent` |
//!
//! # Levels
//!
//! | name | unit | is | attributes beside address and role |
//! |---|---|---|---|
//! | `slipring.link.count` | `{link}` | links that are alive, subscriptions included | |
//! | `slipring.queue.usage` | `By` | bytes of this side's ring that the peer has not given back, as far as it has told | `slipring.peer.pid` |
//! | `slipring.queue.limit` | `By` | bytes of this ring | `slipring.peer.pid` |
//! | `slipring.loan.count` | `{block}` | blocks that the peer holds | `slipring.peer.pid` |
//! | `slipring.loan.usage` | `By` | bytes of these blocks | `slipring.peer.pid` |
//! | `slipring.wait.duration` | `s` | time that a half has waited so far; none when it does not wait | `slipring.peer.pid`, `network.io.direction`, `slipring.awaited`: `message`, `room`, `memory`, `packets` |
//! | `slipring.subscriber.lag` | `{message}` | messages that a subscriber has yet to read, as far as it has told this publisher | `slipring.peer.pid` |
//! | `slipring.pool.usage` | `By` | bytes of a pool's blocks in use | `slipring.context` alone |
//! | `slipring.pool.size` | `By` | bytes that a pool has taken of its limit | `slipring.context` alone |
//! | `slipring.pool.limit` | `By` | the pool's quota | `slipring.context` alone |
//!
//! `slipring.wait.duration` and `slipring.subscriber.lag` are gauges, all others are up-down counters.
//!
//! # Attributes
//!
//! - `slipring.address`: an abstract name stands behind `@`. A socket pair has none.
//! - `slipring.role`: `connected`, `accepted`, `publisher` or `subscriber`.
//! - `network.io.direction`: `transmit` of a sender or publisher, `receive` of a receiver or subscriber.
//! - `slipring.peer.pid`: the peer's process, as this one sees it. It is missing if it is not known.
//! - `slipring.context`: the number of the context within this process.
//!
//! # What holds
//!
//! 1. A counter covers the life of the process and never falls: it includes links that have ended. It counts by kind of object,
//!    role and address, so its series are bounded: the first 256 of these have their own, and all later ones share the address
//!    `_OTHER`. A topic with subscribers takes three: the topic, its listener, and its side of the subscriptions.
//! 2. Levels are of what exists now. Objects with the same attributes show one sum, of waits and lags the most.
//! 3. A half in a stream counts up to 15 messages late, also those before a pause: until its next message alone, its next sleep
//!    or its end. Each instrument looks by itself, so values of one collection may be some messages apart.
//! 4. The 65,534 first objects of a process that exist at a time are seen. Others are not.
//! 5. A forked child counts for itself, from zero. The parent's counters stay with the parent.

mod gauges;
mod series;

use opentelemetry::metrics::Meter;

use crate::metrics::gauges::{LAG, LEVELS, WAIT};
use crate::metrics::series::COUNTERS;

/// Makes the instruments of this process with a meter. They live as long as the meter's provider.
///
/// A second call for the same meter makes the same instruments once more, with the same values. Meters of several providers each
/// show everything.
///
/// # Examples
///
/// With the meter of the provider that the application has set:
///
/// ```
/// slipring::metrics::observe(&opentelemetry::global::meter("slipring"));
/// ```
pub fn observe(meter: &Meter) {
    COUNTERS.iter().for_each(|counter| counter.make(meter));
    LEVELS.iter().for_each(|level| level.make_level(meter));
    LAG.make_gauge(meter);
    WAIT.make_gauge_of_seconds(meter);
}
