//! All rows of this process's page, and the counts of those that are gone, for `metrics`.
//!
//! ```text
//!   row opened ──▶ key admitted            row dropped ──▶ counts added to its key's, stamp 0
//!                       └──────── one lock ────────┘
//!                                    │
//!   look: rows that have a stamp + counts of ended rows = counts that never fall
//! ```
//!
//! 1. A count belongs to a kind, a role and an address. The first [`KEYS`] of these have a key of their own for as long as the
//!    process lives; all later ones share one for each kind and role. So a row never changes its key.
//! 2. A row's drop and a look exclude each other, so each row counts once: as itself or as ended.
//! 3. A look costs two copies of the page. Nothing that passes a link does anything for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::time::ClockId;

use crate::shm::fork::PerProcess;
use crate::shm::{PeerMapping, PeerWords};
use crate::status::page::Page;
use crate::status::row::now;
use crate::status::snapshot::{Snapshot, whole};
use crate::status::words::{Kind, Role};

/// The most addresses, with a kind and a role each, whose counts are told apart.
pub(crate) const KEYS: usize = 256;

static CENSUS: PerProcess<Mutex<Census>> = PerProcess::new();

/// One of the counts that never fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Sent,
    SentBytes,
    SenderWakes,
    SenderSleeps,
    Received,
    ReceivedBytes,
    ReceiverWakes,
    ReceiverSleeps,
    Missed,
    Died,
    Stalled,
    Asked,
    Overdrawn,
    Accepted,
    Refused,
    Silent,
}

/// The number of [`Count`]s.
const COUNTS: usize = Count::Silent as usize + 1;

/// The counts of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts([u64; COUNTS]);

/// What counts belong to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) role: Role,
    /// As in `sun_path`. `None`: one of those beyond the first [`KEYS`].
    pub(crate) address: Option<Vec<u8>>,
}

/// A row that has an object.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) row: Snapshot,
    /// The position that the peer of a link has told, and the bytes of this side's ring.
    pub(crate) told: Option<(u64, u64)>,
}

/// All of a process at a moment.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) live: Vec<Live>,
    pub(crate) counts: BTreeMap<Key, Counts>,
    /// In nanoseconds of `CLOCK_MONOTONIC_COARSE`.
    pub(crate) now: u64,
}

#[derive(Debug, Default)]
struct Census {
    /// The counts of ended rows, by key.
    ended: BTreeMap<Key, Counts>,
    /// The words of peers that tell their positions, by the indices of rows: the mapping, the offset, and the bytes of the ring.
    peers: HashMap<u32, (PeerMapping, usize, u64)>,
}

impl Counts {
    pub(crate) fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    fn of(row: &Snapshot) -> Self {
        let mut counts = [0; COUNTS];
        let mut set = |count: Count, value: u64| counts[count as usize] = value;
        let is_subscription = row.role == Role::Subscribes;
        set(Count::Sent, row.sender.messages);
        set(Count::SentBytes, row.sender.bytes);
        set(Count::SenderWakes, row.sender.wakes);
        set(Count::SenderSleeps, row.sender.sleeps);
        let received = if is_subscription { row.receiver.taken } else { row.receiver.messages };
        set(Count::Received, received);
        set(Count::ReceivedBytes, row.receiver.bytes);
        set(Count::ReceiverWakes, row.receiver.wakes);
        set(Count::ReceiverSleeps, row.receiver.sleeps);
        set(Count::Missed, row.receiver.missed);
        set(Count::Died, row.peer_died.into());
        set(Count::Stalled, (row.evicted == 1).into());
        set(Count::Asked, (row.evicted == 2).into());
        set(Count::Overdrawn, (row.evicted == 3).into());
        set(Count::Accepted, row.accepted);
        set(Count::Refused, row.refused);
        set(Count::Silent, row.silent);
        Self(counts)
    }

    fn add(&mut self, other: &Self) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(count);
        }
    }
}

impl Census {
    /// Returns that of this process, locked. `None`: this process can have no page.
    fn lock() -> Option<MutexGuard<'static, Self>> {
        let census = CENSUS.get(Mutex::default, |_, _| ()).ok()?;
        // Each step leaves the tables whole.
        Some(census.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the key of a row.
    fn key(&self, kind: Kind, role: Role, address: &[u8]) -> Key {
        let own = Key { kind, role, address: Some(address.to_vec()) };
        if self.ended.contains_key(&own) { own } else { Key { kind, role, address: None } }
    }
}

/// Notes a new row, before it has a stamp.
pub(super) fn admit(kind: Kind, role: Role, address: &[u8]) {
    if kind == Kind::Pool {
        return;
    }
    if let Some(mut census) = Census::lock() {
        let named = census.ended.keys().filter(|key| key.address.is_some()).count();
        let own = Key { kind, role, address: Some(address.to_vec()) };
        if named < KEYS {
            census.ended.entry(own).or_default();
        }
    }
}

/// Notes the word of the peer that tells its position in the ring of this side, of so many bytes, or in a topic.
pub(super) fn follow(index: u32, peer: &PeerMapping, offset: usize, capacity: u64) {
    if let Some(mut census) = Census::lock() {
        census.peers.insert(index, (peer.clone(), offset, capacity));
    }
}

/// Ends a row by `clear`, which takes its stamp away, and keeps its counts.
pub(super) fn end(page: &Page, index: u32, clear: impl FnOnce()) {
    let Some(mut census) = Census::lock() else { return clear() };
    let row = page.copy_row(index).and_then(|row| Snapshot::read(&row));
    if let Some(row) = row.filter(|row| row.kind != Kind::Pool) {
        let key = census.key(row.kind, row.role, &row.address);
        census.ended.entry(key).or_default().add(&Counts::of(&row));
    }
    clear();
    let peer = census.peers.remove(&index);
    drop(census);
    drop(peer);
}

/// Looks at all of this process.
pub(crate) fn look() -> Look {
    // Held meanwhile, so that no other page is made.
    let page = Page::existing();
    let Some(census) = Census::lock() else { return Look::default() };
    let copies = page.as_ref().and_then(|page| Some((page.copy()?, page.copy()?)));
    let (first, second) = copies.unwrap_or_default();
    let mut counts = census.ended.clone();
    let live = whole(&first, &second).filter_map(|(index, row)| {
        let row = Snapshot::read(row)?;
        if row.kind != Kind::Pool {
            let key = census.key(row.kind, row.role, &row.address);
            counts.entry(key).or_default().add(&Counts::of(&row));
        }
        let peer = census.peers.get(&index);
        let told = peer.map(|(peer, offset, capacity)| (peer.load(*offset), *capacity));
        Some(Live { row, told })
    });
    let live = live.collect();
    Look { live, counts, now: now(ClockId::MonotonicCoarse) }
}
