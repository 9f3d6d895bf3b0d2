//! The waits of all processes, by process.

use std::collections::BTreeMap;

use serde::Serialize;
use slipring::status::{Awaited, HalfSnapshot, Health, Kind, Role, Snapshot, State};

use crate::look::{Scene, Side, Trust, address_of};
use crate::quantity::Len;
use crate::why::{Name, name};

/// One wait of a process.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Wait {
    #[serde(skip)]
    waiter: u32,
    /// The thing that it waits for, in words.
    what: String,
    whom: Option<Name>,
    address: String,
    /// Seconds.
    since: Option<f64>,
    /// A thread does nothing else meanwhile. Otherwise it watches for other things, too.
    blocks: bool,
    /// It is a sender that waits, which goes on only when the other process does something.
    sends: bool,
    /// The other process tells of the link, too. Otherwise this is its owner's word alone.
    confirmed: bool,
    /// All else that is known, in words.
    detail: String,
}

impl Wait {
    pub(crate) fn waiter(&self) -> u32 {
        self.waiter
    }

    pub(crate) fn whom_pid(&self) -> Option<u32> {
        self.whom.as_ref().map(|whom| whom.pid)
    }

    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    pub(crate) fn since(&self) -> Option<f64> {
        self.since
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn blocks(&self) -> bool {
        self.blocks
    }

    pub(crate) fn sends(&self) -> bool {
        self.sends
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }
}

/// Returns the waits of each process.
pub(crate) fn waits(scene: &Scene) -> BTreeMap<u32, Vec<Wait>> {
    let mut waits: BTreeMap<u32, Vec<Wait>> = BTreeMap::new();
    for side in scene.sides() {
        let is_halted = scene.owner(side.pid).is_some_and(|owner| owner.halted().is_some());
        let found = match side.row.kind {
            _ if is_halted || side.trust == Trust::Contradicted => Vec::new(),
            Kind::Link if side.row.health == Health::Alive => of_link(scene, side),
            Kind::Topic => of_topic(scene, side).into_iter().collect(),
            _ => Vec::new(),
        };
        waits.entry(side.pid).or_default().extend(found);
    }
    waits
}

fn of_link(scene: &Scene, side: &Side) -> Vec<Wait> {
    let other = scene.other(side);
    let whom = match other {
        Some(other) => Some(name(scene, other.pid)),
        None => scene.named_peer(side).map(|pid| Name { pid, command: String::new() }),
    };
    let them = whom.as_ref().map_or_else(|| "its peer".into(), ToString::to_string);
    let address = address_of(&side.row);
    let wait = |half: &HalfSnapshot, what: String, detail: String| Wait {
        waiter: side.pid,
        what,
        whom: whom.clone(),
        address: address.clone(),
        since: scene.age(half.since),
        blocks: half.state != State::Armed,
        sends: half.awaited != Some(Awaited::Message),
        confirmed: other.is_some(),
        detail,
    };
    let mut waits = Vec::new();
    let (sender, receiver) = (&side.row.sender, &side.row.receiver);
    match sender.awaited {
        Some(Awaited::Room) => {
            let unread = other.map(|other| unread(&side.row, &other.row));
            let detail =
                unread.map_or_else(String::new, |count| format!(": {count} messages lie unread"));
            waits.push(wait(
                sender,
                format!("waits for room to send to {them} ({address})"),
                detail,
            ));
        }
        Some(Awaited::Memory) => {
            let what = format!("waits for memory to send to {them} ({address})");
            waits.push(wait(sender, what, lent(scene, side)));
        }
        _ => {}
    }
    // A receiver with a message to read is about to wake.
    let is_due = other.is_some_and(|other| unread(&other.row, &side.row) > 0);
    if receiver.awaited == Some(Awaited::Message) && !is_due {
        let verb = if receiver.state == State::Armed { "watches for" } else { "waits for" };
        let detail = other.map_or_else(String::new, |other| of_sender(scene, side, other));
        waits.push(wait(receiver, format!("{verb} a message from {them} ({address})"), detail));
    }
    waits
}

/// Returns the messages that one side has sent and the other one has not received.
fn unread(sender: &Snapshot, receiver: &Snapshot) -> u64 {
    if sender.role == Role::Publishes {
        return 0;
    }
    sender.sender.messages.saturating_sub(receiver.receiver.messages)
}

fn lent(scene: &Scene, side: &Side) -> String {
    let row = &side.row;
    let held = format!(
        ": the peer holds {} of at most {} blocks ({})",
        row.loans,
        row.limit,
        Len(row.loan_bytes as f64)
    );
    let pool = scene.pool_of(side).map_or_else(String::new, |pool| {
        let (used, quota) = (Len(pool.used as f64), Len(pool.quota as f64));
        format!("; the pool has taken {used} of its {quota}")
    });
    held + &pool
}

/// Returns all that is known of the side that a message is awaited from.
fn of_sender(scene: &Scene, receiver: &Side, sender: &Side) -> String {
    let sent = if sender.row.role == Role::Publishes {
        scene.topic_of(sender).map(|topic| topic.row.sender.messages)
    } else {
        Some(sender.row.sender.messages)
    };
    let mut text = sent.map_or_else(String::new, |sent| format!(": it has sent {sent}"));
    if sender.row.role != Role::Publishes {
        match unread(&receiver.row, &sender.row) {
            0 => {}
            count => text += &format!(", and has yet to read {count}"),
        }
    }
    text
}

fn of_topic(scene: &Scene, topic: &Side) -> Option<Wait> {
    let half = &topic.row.sender;
    let cause = match half.awaited? {
        Awaited::Packets => "to read its socket",
        _ => "to read on",
    };
    let (subscriber, seen) = scene.subscriber_of(topic, half.whom);
    // A subscriber that shows nothing itself is known by the publisher's own row of its link.
    let whom = match (subscriber, seen) {
        (Some(side), _) => Some(name(scene, side.pid)),
        (None, Some(side)) => {
            scene.named_peer(side).map(|pid| Name { pid, command: String::new() })
        }
        _ => None,
    };
    let them = whom.as_ref().map_or_else(|| "a subscriber".into(), ToString::to_string);
    let address = address_of(&topic.row);
    let detail = subscriber.map_or_else(String::new, |side| {
        let behind = half.messages.saturating_sub(side.row.receiver.messages);
        format!(": it is {behind} messages behind, in {} slots", topic.row.limit)
    });
    Some(Wait {
        waiter: topic.pid,
        what: format!("waits for {them}, a subscriber of {address}, {cause}"),
        whom,
        address,
        since: scene.age(half.since),
        blocks: half.state != State::Armed,
        sends: true,
        confirmed: subscriber.is_some(),
        detail,
    })
}
