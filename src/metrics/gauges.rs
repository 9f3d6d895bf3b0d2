//! What exists now: links, queues, loans, waits, lags and pools.

use std::collections::{BTreeMap, HashMap};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};

use crate::metrics::series::{DIRECTION, RECEIVE, TRANSMIT, address, place};
use crate::status::census::{self, Live, Look};
use crate::status::{Awaited, Health, Kind, Role, Snapshot};

/// An instrument of what exists now.
pub(super) struct Gauge {
    name: &'static str,
    unit: &'static str,
    description: &'static str,
    /// Returns the value of objects with the same attributes.
    join: fn(u64, u64) -> u64,
    /// Tells the values of all objects.
    tell: fn(&Look, &mut dyn FnMut(Series, u64)),
}

/// One series: an object, and what tells two values of it apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    kind: Kind,
    role: Role,
    address: Vec<u8>,
    peer: u32,
    context: u64,
    more: Vec<(&'static str, &'static str)>,
}

/// Up-down counters.
pub(super) const LEVELS: &[Gauge] = &[
    Gauge {
        name: "slipring.link.count",
        unit: "{link}",
        description: "Links that are alive",
        join: u64::saturating_add,
        tell: |look, tell| {
            for row in links(look).filter(|row| row.health == Health::Alive) {
                tell(Series { peer: 0, ..Series::of(row) }, 1);
            }
        },
    },
    Gauge {
        name: "slipring.queue.usage",
        unit: "By",
        description: "Bytes of the ring that the peer has not given back",
        join: u64::saturating_add,
        tell: |look, tell| {
            for (row, told, capacity) in queues(look) {
                // The peer's word, and a count that can be some messages old.
                tell(Series::of(row), used(row.sender.written, told, capacity));
            }
        },
    },
    Gauge {
        name: "slipring.queue.limit",
        unit: "By",
        description: "Bytes of the ring",
        join: u64::saturating_add,
        tell: |look, tell| queues(look).for_each(|(row, _, most)| tell(Series::of(row), most)),
    },
    Gauge {
        name: "slipring.loan.count",
        unit: "{block}",
        description: "Blocks that the peer holds",
        join: u64::saturating_add,
        tell: |look, tell| lenders(look).for_each(|row| tell(Series::of(row), row.loans)),
    },
    Gauge {
        name: "slipring.loan.usage",
        unit: "By",
        description: "Bytes of the blocks that the peer holds",
        join: u64::saturating_add,
        tell: |look, tell| lenders(look).for_each(|row| tell(Series::of(row), row.loan_bytes)),
    },
    Gauge {
        name: "slipring.pool.usage",
        unit: "By",
        description: "Bytes of a pool's blocks in use",
        join: u64::saturating_add,
        tell: |look, tell| pools(look).for_each(|row| tell(Series::of(row), row.loan_bytes)),
    },
    Gauge {
        name: "slipring.pool.size",
        unit: "By",
        description: "Bytes that a pool has taken of its limit",
        join: u64::saturating_add,
        tell: |look, tell| pools(look).for_each(|row| tell(Series::of(row), row.used)),
    },
    Gauge {
        name: "slipring.pool.limit",
        unit: "By",
        description: "The most bytes of a pool",
        join: u64::saturating_add,
        tell: |look, tell| pools(look).for_each(|row| tell(Series::of(row), row.quota)),
    },
];

/// The gauge of lags.
pub(super) const LAG: &Gauge = &Gauge {
    name: "slipring.subscriber.lag",
    unit: "{message}",
    description: "Messages that a subscriber has yet to read",
    join: u64::max,
    tell: |look, tell| {
        let topics = look.live.iter().filter(|live| live.row.kind == Kind::Topic);
        let newest: HashMap<_, u64> =
            topics.map(|Live { row, .. }| (topic(row), row.sender.messages)).collect();
        for Live { row, told } in &look.live {
            let is_there = row.role == Role::Publishes && row.health == Health::Alive;
            if let (Some(newest), Some((next, _)), true) = (newest.get(&topic(row)), told, is_there)
            {
                tell(Series::of(row), newest.saturating_add(1).saturating_sub((*next).max(1)));
            }
        }
    },
};

/// The gauge of waits, in nanoseconds.
pub(super) const WAIT: &Gauge = &Gauge {
    name: "slipring.wait.duration",
    unit: "s",
    description: "Time that a half has waited so far",
    join: u64::max,
    tell: |look, tell| {
        for Live { row, .. } in &look.live {
            let is_alive = row.kind == Kind::Topic || row.health == Health::Alive;
            for (half, direction) in [(&row.sender, TRANSMIT), (&row.receiver, RECEIVE)] {
                if let (Some(awaited), true) = (half.awaited, is_alive) {
                    let awaited = match awaited {
                        Awaited::Message => "message",
                        Awaited::Room => "room",
                        Awaited::Memory => "memory",
                        Awaited::Packets => "packets",
                    };
                    let more = vec![(DIRECTION, direction), ("slipring.awaited", awaited)];
                    let waited = look.now.saturating_sub(half.since);
                    tell(Series { more, ..Series::of(row) }, waited);
                }
            }
        }
    },
};

impl Gauge {
    /// Makes an up-down counter of it.
    pub(super) fn make_level(&'static self, meter: &Meter) {
        let level = meter.i64_observable_up_down_counter(self.name).with_unit(self.unit);
        let callback = |instrument: &dyn AsyncInstrument<i64>| {
            for (attributes, value) in self.values(&census::look()) {
                instrument.observe(i64::try_from(value).unwrap_or(i64::MAX), &attributes);
            }
        };
        level.with_description(self.description).with_callback(callback).build();
    }

    /// Makes a gauge of it.
    pub(super) fn make_gauge(&'static self, meter: &Meter) {
        let gauge = meter.u64_observable_gauge(self.name).with_unit(self.unit);
        let callback = |instrument: &dyn AsyncInstrument<u64>| {
            for (attributes, value) in self.values(&census::look()) {
                instrument.observe(value, &attributes);
            }
        };
        gauge.with_description(self.description).with_callback(callback).build();
    }

    /// Makes a gauge of seconds of it, whose values are nanoseconds.
    pub(super) fn make_gauge_of_seconds(&'static self, meter: &Meter) {
        let gauge = meter.f64_observable_gauge(self.name).with_unit(self.unit);
        let callback = |instrument: &dyn AsyncInstrument<f64>| {
            for (attributes, value) in self.values(&census::look()) {
                instrument.observe(value as f64 * 1e-9, &attributes);
            }
        };
        gauge.with_description(self.description).with_callback(callback).build();
    }

    /// Returns its series, and the value of each.
    fn values(&self, look: &Look) -> impl Iterator<Item = (Vec<KeyValue>, u64)> {
        let mut values: BTreeMap<Series, u64> = BTreeMap::new();
        (self.tell)(look, &mut |series, value| {
            values.entry(series).and_modify(|now| *now = (self.join)(*now, value)).or_insert(value);
        });
        values.into_iter().map(|(series, value)| (series.attributes(), value))
    }
}

impl Series {
    fn of(row: &Snapshot) -> Self {
        Self {
            kind: row.kind,
            role: row.role,
            address: row.address.clone(),
            peer: row.peer_pid,
            context: if row.kind == Kind::Pool { row.context } else { 0 },
            more: Vec::new(),
        }
    }

    fn attributes(&self) -> Vec<KeyValue> {
        if self.kind == Kind::Pool {
            return vec![KeyValue::new("slipring.context", self.context.cast_signed())];
        }
        let mut attributes = place(address(&self.address), self.kind, self.role);
        if self.peer != 0 {
            attributes.push(KeyValue::new("slipring.peer.pid", i64::from(self.peer)));
        }
        attributes.extend(self.more.iter().map(|(name, value)| KeyValue::new(*name, *value)));
        attributes
    }
}

fn links(look: &Look) -> impl Iterator<Item = &Snapshot> {
    look.live.iter().map(|live| &live.row).filter(|row| row.kind == Kind::Link)
}

/// Returns the links that carry messages, with the position that the peer has told, and the bytes of the ring.
fn queues(look: &Look) -> impl Iterator<Item = (&Snapshot, u64, u64)> {
    look.live.iter().filter_map(|Live { row, told }| {
        let has_ring = matches!(row.role, Role::Connected | Role::Accepted);
        let (told, capacity) = (*told)?;
        let is_queue = has_ring && row.kind == Kind::Link && row.health == Health::Alive;
        is_queue.then_some((row, told, capacity))
    })
}

/// Returns the links whose peers may hold blocks of this process.
fn lenders(look: &Look) -> impl Iterator<Item = &Snapshot> {
    links(look).filter(|row| matches!(row.role, Role::Connected | Role::Accepted))
}

fn pools(look: &Look) -> impl Iterator<Item = &Snapshot> {
    look.live.iter().map(|live| &live.row).filter(|row| row.kind == Kind::Pool)
}

/// Returns what a publisher and its sides of subscriptions have in common.
fn topic(row: &Snapshot) -> (u64, &[u8]) {
    (row.context, &row.address)
}

/// Returns the bytes of a ring that the peer has not given back, from the positions of both.
fn used(written: u64, told: u64, capacity: u64) -> u64 {
    match written.wrapping_sub(told) {
        used if used <= capacity => used,
        // The page is behind what the peer has just told.
        used if used > u64::MAX / 2 => 0,
        // The peer has not come to the second ring, which starts at the next multiple of its length.
        _ => {
            let start = told.checked_next_multiple_of(capacity).unwrap_or(written);
            written.saturating_sub(start).min(capacity)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::used;

    const CAPACITY: u64 = 1 << 20;

    #[test]
    fn positions_tell_how_full_a_ring_is() {
        assert_eq!(used(128, 64, CAPACITY), 64);
        assert_eq!(used(64, 128, CAPACITY), 0, "the page is behind");
        assert_eq!(used(CAPACITY + 640, 128, CAPACITY), 640, "in the second ring");
        assert_eq!(used(2 * CAPACITY, CAPACITY, CAPACITY), CAPACITY);
        // Whatever the peer tells.
        for told in [1, CAPACITY - 1, u64::MAX / 2, u64::MAX - CAPACITY, u64::MAX - 1, u64::MAX] {
            for written in [0, 1, 3 * CAPACITY, u64::MAX] {
                assert!(used(written, told, CAPACITY) <= CAPACITY, "{written}, {told}");
            }
        }
    }
}
