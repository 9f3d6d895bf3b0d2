//! `slipring ls`: listeners, topics and links of this machine, a line each.

use std::fmt;

use clap::Args;
use serde::Serialize;
use slipring::status::{Awaited, HalfSnapshot, Health, Kind, Role, State};

use crate::failure::Failure;
use crate::look::{Scene, Side, Trust, address_of, sun_path};
use crate::output::Output;

/// The arguments of `slipring ls`.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Show only what has this address
    address: Option<slipring::Address>,
}

/// A line of `slipring ls`.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    kind: &'static str,
    address: String,
    /// Of a link: the side that connected or subscribes is the second one.
    process: Option<SideLine>,
    peer: Option<SideLine>,
    /// Seconds since it was made.
    age: Option<f64>,
    /// A subscriber's policy.
    policy: Option<String>,
    accepted: Option<u64>,
    refused: Option<u64>,
    subscribers: Option<usize>,
    /// Of the wire format that both sides of a link speak.
    version: Option<u64>,
    /// `confirmed` by both sides, `one-sided`, or `contradicted` by the kernel.
    trust: &'static str,
}

/// One side of a line.
#[derive(Debug, Serialize)]
pub(crate) struct SideLine {
    pid: Option<u32>,
    uid: u32,
    command: String,
    state: String,
    /// Seconds since the state began.
    since: Option<f64>,
    messages: Option<u64>,
    bytes: Option<u64>,
    loans: Option<u64>,
    loan_bytes: Option<u64>,
    missed: Option<u64>,
}

/// The head of the table.
struct Head;

impl Ls {
    /// Looks once.
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let scene = Scene::look()?;
        let lines = lines(&scene, self.address.as_ref());
        if !lines.is_empty() {
            output.remark(Head)?;
        }
        for line in &lines {
            output.show(line)?;
        }
        if lines.is_empty() {
            output.remark("nobody uses slipring here")?;
        }
        if scene.is_cut() {
            output.remark("there is more than could be looked at")?;
        }
        let hidden = scene.hidden().len();
        if hidden > 0 {
            output.remark(format!(
                "{hidden} processes cannot be looked into: those of other users are seen by root"
            ))?;
        }
        Ok(())
    }
}

/// Returns the lines of a scene, links once, in the order of addresses.
pub(crate) fn lines(scene: &Scene, address: Option<&slipring::Address>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let address = address.map(sun_path);
    for (at, side) in scene.sides().iter().enumerate() {
        if address.as_ref().is_some_and(|address| side.row.address != *address) {
            continue;
        }
        // A confirmed link is shown once: by the side that accepted or publishes.
        let second = matches!(side.row.role, Role::Connected | Role::Subscribes);
        let is_told = match side.other {
            Some(other) if other == at => false,
            Some(other) => {
                let first = scene.sides()[other].row.role;
                second && !matches!(first, Role::Connected | Role::Subscribes)
            }
            None => false,
        };
        if side.row.kind != Kind::Pool && !is_told {
            lines.push(line(scene, side));
        }
    }
    lines.sort_by(|one, other| (&one.address, one.kind).cmp(&(&other.address, other.kind)));
    lines
}

fn line(scene: &Scene, side: &Side) -> Line {
    let row = &side.row;
    let is_subscription = matches!(row.role, Role::Publishes | Role::Subscribes);
    let kind = match row.kind {
        Kind::Listener => "listener",
        Kind::Topic => "topic",
        Kind::Link if is_subscription => "subscription",
        Kind::Link => "link",
        _ => "pool",
    };
    let peer = (row.kind == Kind::Link).then(|| match scene.other(side) {
        Some(other) => side_line(scene, other),
        None => unseen(scene, side),
    });
    let subscribers = (row.kind == Kind::Topic).then(|| scene.audience_of(side));
    let is_listener = row.kind == Kind::Listener;
    Line {
        kind,
        address: address_of(row),
        process: Some(side_line(scene, side)),
        peer,
        age: scene.age(row.since),
        policy: policy(row.policy, row.depth),
        accepted: is_listener.then_some(row.accepted),
        refused: is_listener.then_some(row.refused.saturating_add(row.silent)),
        subscribers,
        version: (row.kind == Kind::Link).then_some(row.version),
        trust: match side.trust {
            Trust::Confirmed => "confirmed",
            Trust::OneSided => "one-sided",
            Trust::Contradicted => "contradicted",
        },
    }
}

fn policy(policy: u8, depth: u32) -> Option<String> {
    match policy {
        1 => Some("every".into()),
        2 => Some(format!("newest {depth}")),
        3 => Some("latest".into()),
        _ => None,
    }
}

fn side_line(scene: &Scene, side: &Side) -> SideLine {
    let row = &side.row;
    let owner = scene.owner(side.pid);
    let (state, since) = state(scene, side);
    let is_link = row.kind == Kind::Link;
    let passed = match row.role {
        Role::Subscribes => Some(&row.receiver),
        Role::Publishes => None,
        _ if is_link || row.kind == Kind::Topic => Some(&row.sender),
        _ => None,
    };
    SideLine {
        pid: Some(side.pid),
        uid: owner.map_or(0, |owner| owner.uid()),
        command: owner.map_or_else(String::new, |owner| owner.command().into()),
        state,
        since: since.and_then(|since| scene.age(since)),
        messages: passed.map(|half| half.messages),
        bytes: passed.filter(|_| row.role != Role::Subscribes).map(|half| half.bytes),
        loans: is_link.then_some(row.loans),
        loan_bytes: is_link.then_some(row.loan_bytes),
        missed: (row.role == Role::Subscribes).then_some(row.receiver.missed),
    }
}

/// Returns the words of a side's owner about the other one, which shows nothing itself.
fn unseen(scene: &Scene, side: &Side) -> SideLine {
    SideLine {
        pid: scene.named_peer(side),
        uid: side.row.peer_uid,
        command: String::new(),
        state: match side.row.health {
            Health::Alive => "not seen".into(),
            Health::HungUp => "has closed".into(),
            Health::Dead => "has died".into(),
            _ => "broke off".into(),
        },
        since: None,
        messages: None,
        bytes: None,
        loans: None,
        loan_bytes: None,
        missed: None,
    }
}

/// Returns the state of a side in a few words, and when it began.
pub(crate) fn state(scene: &Scene, side: &Side) -> (String, Option<u64>) {
    if let Some(halted) = scene.owner(side.pid).and_then(|owner| owner.halted()) {
        return (halted.into(), None);
    }
    let row = &side.row;
    let halves: &[&HalfSnapshot] = match row.role {
        Role::Publishes => &[],
        _ if row.kind == Kind::Listener => &[],
        Role::Subscribes => &[&row.receiver],
        _ if row.kind == Kind::Topic => &[&row.sender],
        _ => &[&row.sender, &row.receiver],
    };
    if row.kind == Kind::Link && row.health != Health::Alive {
        let end = match row.health {
            Health::HungUp => "the peer has closed",
            Health::Dead => "the peer has died",
            _ => "failed",
        };
        return (end.into(), None);
    }
    // A sender that waits is what an owner asks for first.
    if let Some(half) = halves.iter().find(|half| half.awaited.is_some()) {
        return (waiting(half), Some(half.since));
    }
    if !halves.is_empty() && halves.iter().all(|half| half.state == State::Gone) {
        return ("gone".into(), halves.iter().map(|half| half.since).max());
    }
    (if halves.is_empty() { "–".into() } else { "running".into() }, None)
}

/// Returns how a half waits and for what.
pub(crate) fn waiting(half: &HalfSnapshot) -> String {
    let how = match half.state {
        State::Polling => "polls",
        State::Armed => "armed",
        _ => "parked",
    };
    format!("{how} for {}", awaited(half))
}

/// Returns the thing that a half waits for, in a word or two.
pub(crate) fn awaited(half: &HalfSnapshot) -> &'static str {
    match half.awaited {
        Some(Awaited::Message) => "message",
        Some(Awaited::Room) => "room",
        Some(Awaited::Memory) => "memory",
        Some(Awaited::Packets) => "its socket",
        _ => "nothing",
    }
}

/// Shows seconds as a person reads them.
pub(crate) struct Age(pub(crate) f64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            seconds if seconds < 10.0 => format!("{seconds:.1} s"),
            seconds if seconds < 120.0 => format!("{seconds:.0} s"),
            seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
            seconds if seconds < 172_800.0 => format!("{:.0} h", seconds / 3600.0),
            seconds => format!("{:.0} d", seconds / 86_400.0),
        };
        f.pad(&text)
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<12} {:<20} {:>7}  {:>3}  {:<48} PEER",
            "KIND", "ADDRESS", "AGE", "VER", "PROCESS"
        )
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = self.age.map_or_else(String::new, |age| Age(age).to_string());
        let version = self.version.map_or_else(String::new, |version| version.to_string());
        write!(f, "{:<12} {:<20} {age:>7}  {version:>3}  ", self.kind, self.address)?;
        let process = self.process.as_ref().map_or_else(String::new, ToString::to_string);
        let mut notes = Vec::new();
        notes.extend(self.accepted.map(|count| format!("accepted {count}")));
        notes.extend(
            self.refused.filter(|count| *count > 0).map(|count| format!("refused {count}")),
        );
        notes.extend(self.subscribers.map(|count| format!("{count} subscribers")));
        match &self.peer {
            Some(peer) => write!(f, "{process:<48} {peer}")?,
            None => write!(f, "{process:<48} {}", notes.join(", "))?,
        }
        if let Some(policy) = &self.policy {
            write!(f, " ({policy})")?;
        }
        match self.trust {
            "one-sided" => write!(f, " (unconfirmed)"),
            "contradicted" => write!(f, " (not true: it has no such {})", self.kind),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for SideLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        match self.pid {
            Some(pid) => text += &pid.to_string(),
            None => text += "?",
        }
        if !self.command.is_empty() {
            text += &format!(" {}", self.command);
        }
        if self.uid != rustix::process::getuid().as_raw() {
            text += &format!(" uid {}", self.uid);
        }
        if self.state != "–" {
            text += &format!(", {}", self.state);
        }
        if let Some(since) = self.since {
            text += &format!(" {}", Age(since));
        }
        f.pad(&text)
    }
}
