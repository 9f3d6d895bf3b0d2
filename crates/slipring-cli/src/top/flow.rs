//! A flow: messages from one process to another, or from a publisher to nobody in particular.

use std::fmt;

use serde::Serialize;
use slipring::status::{HalfSnapshot, Health, Kind, Role, Snapshot};

use crate::look::{Scene, Side, Trust, address_of};
use crate::ls::{self, Age};

/// The identity of a flow, from one look to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pid: u32,
    own: u64,
    theirs: u64,
    is_topic: bool,
}

/// One end of a flow.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct End {
    pub(crate) pid: Option<u32>,
    pub(crate) command: String,
}

/// A flow at one look.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    pub(crate) key: Key,
    pub(crate) address: String,
    pub(crate) from: End,
    /// `None` of a topic.
    pub(crate) to: Option<End>,
    pub(crate) messages: u64,
    /// `None` of a subscription, whose bytes only its topic counts.
    pub(crate) bytes: Option<u64>,
    pub(crate) wakes: u64,
    /// Messages that are sent and not received; of a subscription those that it is behind.
    pub(crate) queue: Option<u64>,
    pub(crate) loans: Option<u64>,
    pub(crate) loan_bytes: u64,
    /// Of the pool that it lends from: bytes taken, and the most.
    pub(crate) pool: Option<(u64, u64)>,
    pub(crate) missed: u64,
    /// The thing that holds it up.
    pub(crate) state: String,
}

/// Returns the flows of a scene.
pub(crate) fn flows(scene: &Scene) -> Vec<Flow> {
    let sides = scene.sides().iter().filter(|side| side.trust != Trust::Contradicted);
    sides.filter_map(|side| flow(scene, side)).collect()
}

/// Returns the flow out of a side, but for one of a link through which nothing has gone.
fn flow(scene: &Scene, side: &Side) -> Option<Flow> {
    let row = &side.row;
    match (row.kind, row.role) {
        (Kind::Topic, _) => Some(Flow { queue: None, ..of(scene, side, None, &row.sender) }),
        (Kind::Link, Role::Publishes) => {
            let other = scene.other(side)?;
            let newest = scene.topic_of(side)?.row.sender.messages;
            let read = &other.row.receiver;
            let flow = of(scene, side, Some(other), read);
            let (state, _) = told(scene, other);
            let queue = Some(newest.saturating_sub(read.messages));
            Some(Flow { bytes: None, queue, missed: read.missed, state, ..flow })
        }
        (Kind::Link, Role::Connected | Role::Accepted) => {
            let other = scene.other(side);
            let back = other.map_or(0, |other| other.row.sender.messages);
            // An idle link is shown once.
            let is_shown = row.sender.messages > 0 || (back == 0 && row.role == Role::Connected);
            let is_shown = is_shown || row.sender.awaited.is_some();
            is_shown.then(|| of(scene, side, other, &row.sender))
        }
        _ => None,
    }
}

fn of(scene: &Scene, side: &Side, other: Option<&Side>, half: &HalfSnapshot) -> Flow {
    let row: &Snapshot = &side.row;
    let is_link = row.kind == Kind::Link;
    let to = match other {
        Some(other) => Some(end(scene, other.pid)),
        None if is_link => Some(End { pid: scene.named_peer(side), command: String::new() }),
        None => None,
    };
    let queue = other.map(|other| half.messages.saturating_sub(other.row.receiver.messages));
    let (sender, holds_up) = told(scene, side);
    let state = match (holds_up, other) {
        (false, Some(other)) => match told(scene, other) {
            (receiver, true) => receiver,
            _ => sender,
        },
        _ => sender,
    };
    Flow {
        key: Key {
            pid: side.pid,
            own: row.own,
            theirs: row.theirs,
            is_topic: row.kind == Kind::Topic,
        },
        address: address_of(row),
        from: end(scene, side.pid),
        to,
        messages: half.messages,
        bytes: Some(half.bytes),
        wakes: row.sender.wakes,
        queue,
        loans: is_link.then_some(row.loans),
        loan_bytes: row.loan_bytes,
        pool: scene.pool_of(side).map(|pool| (pool.used, pool.quota)),
        missed: 0,
        state,
    }
}

/// Returns the state of a side, and whether that holds its messages up.
fn told(scene: &Scene, side: &Side) -> (String, bool) {
    if let Some(halted) = scene.owner(side.pid).and_then(|owner| owner.halted()) {
        return (format!("{} {halted}", side.pid), true);
    }
    let row = &side.row;
    if row.sender.awaited.is_some() {
        let age = scene.age(row.sender.since).unwrap_or(0.0);
        return (format!("{} {}", ls::awaited(&row.sender), Age(age)), true);
    }
    if row.kind == Kind::Link && row.health != Health::Alive {
        return (ls::state(scene, side).0, true);
    }
    (String::new(), false)
}

fn end(scene: &Scene, pid: u32) -> End {
    let command = scene.owner(pid).map_or_else(String::new, |owner| owner.command().into());
    End { pid: Some(pid), command }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.map_or_else(|| "?".into(), |pid| pid.to_string());
        f.pad(format!("{pid} {}", self.command).trim_end())
    }
}
