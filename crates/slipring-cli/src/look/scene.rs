//! All processes with a status page, and which of their links belong together.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;

use rustix::time::{ClockId, clock_gettime};

use crate::failure::Failure;
use crate::look::descriptors::Descriptors;
use crate::look::listening::Listening;
use crate::look::maps::Maps;
use crate::look::owner::Owner;
use crate::look::page::{MemfdMount, Page};
use crate::look::row::{Kind, Row};

/// What is known of a link's other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Both sides name each other's segments, and the kernel says that both have mapped them.
    Confirmed,
    /// The owner's word alone: the other side cannot be looked into, or shows nothing.
    OneSided,
    /// The kernel says otherwise: the owner has not mapped what it names.
    Contradicted,
}

/// One object of one process.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    pub(crate) pid: u32,
    pub(crate) row: Row,
    pub(crate) trust: Trust,
    /// Of a confirmed link: the index of the other side.
    pub(crate) other: Option<usize>,
}

/// What is there at a moment.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    owners: BTreeMap<u32, Owner>,
    sides: Vec<Side>,
    /// Processes of other users or without permission, which may use slipring.
    hidden: Vec<u32>,
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
        let memfds = MemfdMount::find();
        let memfds = memfds
            .ok_or_else(|| Failure::new("/proc/self/fdinfo cannot be read: is /proc mounted?"))?;
        let mut scene = Self::default();
        for entry in fs::read_dir("/proc").map_err(|error| Failure::from(error).of("/proc"))? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let Some(owner) = Owner::look(pid) else { continue };
            match Descriptors::read(pid) {
                Ok(descriptors) => {
                    if let Some(page) = Page::find(&descriptors, owner.inner(), memfds) {
                        scene.enter(owner, &descriptors, &page);
                    }
                }
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

    fn enter(&mut self, owner: Owner, descriptors: &Descriptors, page: &Page) {
        let Ok(rows) = page.rows() else { return };
        let pid = owner.pid();
        let maps = Maps::read(pid).unwrap_or_default();
        let listens = rows.iter().any(|row| row.kind == Kind::Listener);
        let listening = if listens { Listening::read(pid) } else { Listening::default() };
        // Another process may have the pid by now.
        if Owner::look(pid).is_none_or(|now| now.started() != owner.started()) {
            return;
        }
        self.sides.extend(rows.into_iter().map(|row| {
            let has_all = match row.kind {
                Kind::Link => maps.has(row.own) && maps.has(row.theirs),
                Kind::Topic => maps.has(row.own),
                Kind::Listener => {
                    let mut sockets = listening.on(&row.address).iter();
                    sockets.any(|socket| descriptors.has_socket(*socket))
                }
                Kind::Pool => true,
            };
            let trust = if has_all { Trust::OneSided } else { Trust::Contradicted };
            Side { pid, row, trust, other: None }
        }));
        self.owners.insert(pid, owner);
    }

    /// Finds the links of which both sides are there: each names the other's segment.
    fn pair(&mut self) {
        let links = self
            .sides
            .iter()
            .enumerate()
            .filter(|(_, side)| side.row.kind == Kind::Link && side.trust == Trust::OneSided);
        let by_segments: HashMap<(u64, u64), usize> =
            links.map(|(at, side)| ((side.row.own, side.row.theirs), at)).collect();
        let other = |side: &Side| by_segments.get(&(side.row.theirs, side.row.own)).copied();
        let others: Vec<_> = self.sides.iter().map(other).collect();
        for (side, other) in self.sides.iter_mut().zip(others) {
            if side.row.kind == Kind::Link && side.trust == Trust::OneSided && other.is_some() {
                (side.trust, side.other) = (Trust::Confirmed, other);
            }
        }
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
        self.sides.iter().find(|side| {
            side.row.kind == Kind::Topic
                && side.pid == publishing.pid
                && side.row.context == publishing.row.context
                && side.row.address == publishing.row.address
        })
    }

    /// Returns the pool that a side lends from.
    pub(crate) fn pool_of(&self, side: &Side) -> Option<&Row> {
        let pool = self.sides.iter().find(|other| {
            other.row.kind == Kind::Pool
                && other.pid == side.pid
                && other.row.context == side.row.context
        });
        pool.map(|side| &side.row)
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
