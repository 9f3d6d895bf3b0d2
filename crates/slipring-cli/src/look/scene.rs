//! All processes with a status page, and which of their links belong together.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;

use rustix::time::{ClockId, clock_gettime};
use slipring::status::{Health, Kind, Role, Snapshot};

use crate::failure::Failure;
use crate::look::descriptors::Descriptors;
use crate::look::listening::Listening;
use crate::look::maps::Maps;
use crate::look::owner::Owner;
use crate::look::page::{Memfds, Page};

/// The most rows of all processes together.
const MOST_ROWS: usize = 1 << 17;

/// How much of a row is known from others than its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The kernel says that the owner has what it names: of a link both segments, which the other side names, too; of a topic
    /// its segment; of a listener the only socket that listens there.
    Confirmed,
    /// The owner's word alone: the other side of a link cannot be looked into, or shows nothing.
    OneSided,
    /// The kernel says otherwise: the owner has not what it names.
    Contradicted,
}

/// One object of one process.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    pub(crate) pid: u32,
    pub(crate) row: Snapshot,
    pub(crate) trust: Trust,
    /// Of a confirmed link: the index of the other side.
    pub(crate) other: Option<usize>,
}

/// All that is there at a moment.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    owners: BTreeMap<u32, Owner>,
    sides: Vec<Side>,
    /// Processes of other users or without permission, which may use slipring.
    hidden: Vec<u32>,
    /// More rows than [`MOST_ROWS`] were there.
    is_cut: bool,
    /// Topics by process, context and address; pools by process and context; subscribers' sides by segment; the publishers'
    /// sides of links by the subscribers' segments.
    topics: HashMap<(u32, u64, Vec<u8>), usize>,
    pools: HashMap<(u32, u64), usize>,
    subscribers: HashMap<u64, usize>,
    publishing: HashMap<(u32, u64), usize>,
    /// The subscribers of each topic.
    audiences: HashMap<(u32, u64, Vec<u8>), usize>,
    /// When it was looked at, in nanoseconds of the monotonic clock.
    now: u64,
}

impl Scene {
    /// Looks at all processes.
    ///
    /// # Errors
    ///
    /// `/proc` cannot be read.
    pub(crate) fn look() -> Result<Self, Failure> {
        let memfds = Memfds::find();
        let memfds = memfds
            .ok_or_else(|| Failure::new("/proc/self/fdinfo cannot be read: is /proc mounted?"))?;
        let mut scene = Self::default();
        for entry in fs::read_dir("/proc").map_err(|error| Failure::from(error).of("/proc"))? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let Some(owner) = Owner::look(pid) else { continue };
            match Descriptors::read(pid) {
                Ok(descriptors) => scene.enter(owner, &descriptors, memfds),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    scene.hidden.push(pid);
                }
                // It has ended meanwhile.
                Err(_) => {}
            }
        }
        scene.now = monotonic();
        scene.pair();
        Ok(scene)
    }

    fn enter(&mut self, owner: Owner, descriptors: &Descriptors, memfds: Memfds) {
        let pid = owner.pid();
        if descriptors.claims().next().is_none() {
            return;
        }
        let Some(maps) = Maps::read(pid, memfds) else { return };
        let Some(page) = Page::find(descriptors, &maps, owner.inner(), memfds) else { return };
        let left = MOST_ROWS - self.sides.len();
        let Ok(rows) = page.rows(left) else { return };
        self.is_cut |= rows.len() == left;
        // Another process may have the pid by now.
        if Owner::look(pid).is_none_or(|now| now.started() != owner.started()) {
            return;
        }
        let listens = rows.iter().any(|row| row.kind == Kind::Listener);
        let listening = if listens { Listening::read(pid) } else { Listening::default() };
        self.sides.extend(rows.into_iter().map(|row| {
            let trust = match row.kind {
                Kind::Link if row.own == row.theirs => Trust::Contradicted,
                Kind::Link if maps.has(row.own) && maps.has(row.theirs) => Trust::OneSided,
                Kind::Topic if maps.writes(row.own) => Trust::Confirmed,
                Kind::Pool => Trust::Confirmed,
                Kind::Listener => match listening.on(&row.address) {
                    [only] if descriptors.has_socket(only.inode) => Trust::Confirmed,
                    all if all.iter().any(|socket| descriptors.has_socket(socket.inode)) => {
                        Trust::OneSided
                    }
                    _ => Trust::Contradicted,
                },
                _ => Trust::Contradicted,
            };
            Side { pid, row, trust, other: None }
        }));
        self.owners.insert(pid, owner);
    }

    /// Finds the links of which both sides are there, each of which names the other's segment, and what belongs together.
    fn pair(&mut self) {
        let is_link = |side: &Side| side.row.kind == Kind::Link && side.trust == Trust::OneSided;
        let links = self.sides.iter().enumerate().filter(|(_, side)| is_link(side));
        let by_segments: HashMap<(u64, u64), usize> =
            links.map(|(at, side)| ((side.row.own, side.row.theirs), at)).collect();
        for side in self.sides.iter_mut().filter(|side| is_link(side)) {
            side.other = by_segments.get(&(side.row.theirs, side.row.own)).copied();
        }
        for (at, side) in self.sides.iter_mut().enumerate() {
            let Side { pid, row, trust, other } = side;
            if other.is_some() {
                *trust = Trust::Confirmed;
            }
            if *trust == Trust::Contradicted {
                continue;
            }
            let place = || (*pid, row.context, row.address.clone());
            match (row.kind, row.role) {
                (Kind::Topic, _) => drop(self.topics.insert(place(), at)),
                (Kind::Pool, _) => drop(self.pools.insert((*pid, row.context), at)),
                (Kind::Link, Role::Subscribes) => drop(self.subscribers.insert(row.own, at)),
                (Kind::Link, Role::Publishes) => {
                    self.publishing.insert((*pid, row.theirs), at);
                    if row.health == Health::Alive {
                        *self.audiences.entry(place()).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns whether there was more than could be looked at.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(crate) fn owner(&self, pid: u32) -> Option<&Owner> {
        self.owners.get(&pid)
    }

    pub(crate) fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// Returns the processes that the caller may not look into.
    pub(crate) fn hidden(&self) -> &[u32] {
        &self.hidden
    }

    /// Returns the other side of a link, if it is confirmed.
    pub(crate) fn other(&self, side: &Side) -> Option<&Side> {
        self.sides.get(side.other?)
    }

    /// Returns the topic of a subscription's publishing side.
    pub(crate) fn topic_of(&self, publishing: &Side) -> Option<&Side> {
        let Side { pid, row, .. } = publishing;
        self.sides.get(*self.topics.get(&(*pid, row.context, row.address.clone()))?)
    }

    /// Returns how many subscribers a topic has.
    pub(crate) fn audience_of(&self, topic: &Side) -> usize {
        let Side { pid, row, .. } = topic;
        self.audiences.get(&(*pid, row.context, row.address.clone())).copied().unwrap_or(0)
    }

    /// Returns a subscriber by its segment, if it shows itself, and the publisher's side of its link.
    pub(crate) fn subscriber_of(
        &self,
        topic: &Side,
        segment: u64,
    ) -> (Option<&Side>, Option<&Side>) {
        let publishing = self.publishing.get(&(topic.pid, segment));
        let publishing = publishing.and_then(|at| self.sides.get(*at));
        let subscriber = self.subscribers.get(&segment).and_then(|at| self.sides.get(*at));
        let is_its = |side: &&Side| side.other.is_some() && side.trust == Trust::Confirmed;
        (subscriber.filter(is_its), publishing)
    }

    /// Returns the pool that a side lends from.
    pub(crate) fn pool_of(&self, side: &Side) -> Option<&Snapshot> {
        let at = *self.pools.get(&(side.pid, side.row.context))?;
        self.sides.get(at).map(|side| &side.row)
    }

    /// Returns the peer that a link's own row names, as a pid of this namespace.
    pub(crate) fn named_peer(&self, side: &Side) -> Option<u32> {
        let shares = self.owner(side.pid).is_some_and(Owner::shares_pids);
        (shares && side.row.peer_pid != 0).then_some(side.row.peer_pid)
    }

    /// Returns when it was looked at, in nanoseconds of the monotonic clock.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Returns the seconds since a moment of the monotonic clock, or `None` for one that has not come.
    pub(crate) fn age(&self, since: u64) -> Option<f64> {
        // The coarse clock lags behind by a tick.
        (since > 0 && since <= self.now).then(|| (self.now - since) as f64 * 1e-9)
    }
}

fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
