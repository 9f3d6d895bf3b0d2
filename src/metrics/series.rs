//! The counters, and the attributes of all series.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};

use crate::status::census::{self, Count, Key, Look};
use crate::status::{Kind, Role};

/// The address of all beyond those that are told apart.
const OTHER: &str = "_OTHER";

pub(super) const DIRECTION: &str = "network.io.direction";
pub(super) const TRANSMIT: &str = "transmit";
pub(super) const RECEIVE: &str = "receive";
const CAUSE: &str = "slipring.cause";
const OUTCOME: &str = "slipring.outcome";

/// A counter, and what it counts, each with an attribute.
pub(super) struct Counter {
    name: &'static str,
    unit: &'static str,
    description: &'static str,
    series: &'static [(Count, Option<(&'static str, &'static str)>)],
}

pub(super) const COUNTERS: &[Counter] = &[
    Counter {
        name: "slipring.messages",
        unit: "{message}",
        description: "Messages that passed",
        series: &[
            (Count::Sent, Some((DIRECTION, TRANSMIT))),
            (Count::Received, Some((DIRECTION, RECEIVE))),
        ],
    },
    Counter {
        name: "slipring.io",
        unit: "By",
        description: "Bytes of messages that passed",
        series: &[
            (Count::SentBytes, Some((DIRECTION, TRANSMIT))),
            (Count::ReceivedBytes, Some((DIRECTION, RECEIVE))),
        ],
    },
    Counter {
        name: "slipring.wakeups",
        unit: "{wakeup}",
        description: "System calls that woke the peer",
        series: &[
            (Count::SenderWakes, Some((DIRECTION, TRANSMIT))),
            (Count::ReceiverWakes, Some((DIRECTION, RECEIVE))),
        ],
    },
    Counter {
        name: "slipring.sleeps",
        unit: "{sleep}",
        description: "Times that a half slept",
        series: &[
            (Count::SenderSleeps, Some((DIRECTION, TRANSMIT))),
            (Count::ReceiverSleeps, Some((DIRECTION, RECEIVE))),
        ],
    },
    Counter {
        name: "slipring.peer.deaths",
        unit: "{process}",
        description: "Links that ended because the peer's process died",
        series: &[(Count::Died, None)],
    },
    Counter {
        name: "slipring.subscriber.missed",
        unit: "{message}",
        description: "Messages that a subscriber missed",
        series: &[(Count::Missed, None)],
    },
    Counter {
        name: "slipring.subscriber.evictions",
        unit: "{subscriber}",
        description: "Subscribers that a publisher evicted",
        series: &[
            (Count::Stalled, Some((CAUSE, "stalled"))),
            (Count::Asked, Some((CAUSE, "asked"))),
            (Count::Overdrawn, Some((CAUSE, "overdrawn"))),
        ],
    },
    Counter {
        name: "slipring.listener.peers",
        unit: "{peer}",
        description: "Peers that came to a listener",
        series: &[
            (Count::Accepted, Some((OUTCOME, "accepted"))),
            (Count::Refused, Some((OUTCOME, "refused"))),
            (Count::Silent, Some((OUTCOME, "silent"))),
        ],
    },
];

impl Counter {
    /// Makes its instrument.
    pub(super) fn make(&'static self, meter: &Meter) {
        let counter = meter.u64_observable_counter(self.name).with_unit(self.unit);
        let counter = counter.with_description(self.description);
        let callback = |instrument: &dyn AsyncInstrument<u64>| {
            for (attributes, value) in self.values(&census::look()) {
                instrument.observe(value, &attributes);
            }
        };
        counter.with_callback(callback).build();
    }

    /// Returns its series, and the value of each.
    fn values(&self, look: &Look) -> impl Iterator<Item = (Vec<KeyValue>, u64)> {
        look.counts.iter().flat_map(|(key, counts)| {
            let own = self.series.iter().filter(|(count, _)| has(key, *count));
            own.map(|(count, attribute)| {
                let address = key.address.as_deref().map_or_else(|| OTHER.into(), address);
                let mut attributes = place(address, key.kind, key.role);
                attributes.extend(attribute.map(|(name, value)| KeyValue::new(name, value)));
                (attributes, counts.get(*count))
            })
        })
    }
}

/// Returns whether an object counts something.
fn has(Key { kind, role, .. }: &Key, count: Count) -> bool {
    use Count::{
        Accepted, Asked, Died, Missed, Overdrawn, Received, ReceiverSleeps, ReceiverWakes, Refused,
        SenderSleeps, SenderWakes, Sent, SentBytes, Silent, Stalled,
    };
    match (kind, role) {
        (Kind::Listener, _) => matches!(count, Accepted | Refused | Silent),
        (Kind::Topic, _) => matches!(count, Sent | SentBytes | SenderWakes | SenderSleeps),
        (Kind::Link, Role::Publishes) => matches!(count, Died | Stalled | Asked | Overdrawn),
        (Kind::Link, Role::Subscribes) => {
            matches!(count, Received | ReceiverWakes | ReceiverSleeps | Missed | Died)
        }
        (Kind::Link, _) => {
            !matches!(count, Missed | Stalled | Asked | Overdrawn | Accepted | Refused | Silent)
        }
        (Kind::Pool, _) => false,
    }
}

/// Returns the attributes that name an object: its address, if it has one, and its role.
pub(super) fn place(address: String, kind: Kind, role: Role) -> Vec<KeyValue> {
    let role = match (kind, role) {
        (Kind::Topic, _) | (_, Role::Publishes) => "publisher",
        (_, Role::Subscribes) => "subscriber",
        (_, Role::Accepted) => "accepted",
        _ => "connected",
    };
    let mut attributes = vec![KeyValue::new("slipring.role", role)];
    if !address.is_empty() {
        attributes.push(KeyValue::new("slipring.address", address));
    }
    attributes
}

/// Returns an address of this process as text.
pub(super) fn address(sun_path: &[u8]) -> String {
    match sun_path.split_first() {
        Some((0, name)) => format!("@{}", String::from_utf8_lossy(name)),
        _ => String::from_utf8_lossy(sun_path).into_owned(),
    }
}
