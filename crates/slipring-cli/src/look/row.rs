//! One row of a status page.

use std::os::unix::ffi::OsStrExt;

use slipring::Address;
use slipring::status::layout;

use crate::escaped::Escaped;

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Listener,
    Link,
    Topic,
    Pool,
}

/// The role of a side of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    None,
    Connected,
    Accepted,
    Publishes,
    Subscribes,
}

/// The ways in which a half passes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Running,
    Polling,
    Parked,
    Armed,
    Gone,
}

/// The things that a half waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    Message,
    Room,
    Memory,
    Packets,
}

/// A sender or a receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Half {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) wakes: u64,
    pub(crate) doing: Doing,
    /// The thing that it waits for, if it waits.
    pub(crate) awaited: Option<Awaited>,
    /// When that began, in nanoseconds of the monotonic clock.
    pub(crate) since: u64,
    /// The inode of the subscriber that a publisher waits for.
    pub(crate) whom: u64,
    pub(crate) missed: u64,
}

/// The row of an object: its own words about itself.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) role: Role,
    /// A subscriber's policy: 1 every message, 2 the newest, 3 the latest.
    pub(crate) policy: u8,
    pub(crate) depth: u32,
    /// In nanoseconds of the monotonic clock.
    pub(crate) since: u64,
    /// As the owner sees the peer: in its own pid namespace.
    pub(crate) peer_pid: u32,
    pub(crate) peer_uid: u32,
    pub(crate) own: u64,
    pub(crate) theirs: u64,
    pub(crate) context: u64,
    pub(crate) limit: u64,
    /// As in `sun_path`.
    pub(crate) address: Vec<u8>,
    pub(crate) sender: Half,
    pub(crate) receiver: Half,
    /// Blocks that the peer holds.
    pub(crate) loans: u64,
    /// Bytes of these, or of the blocks of a pool that are in use.
    pub(crate) loan_bytes: u64,
    pub(crate) quota: u64,
    pub(crate) used: u64,
    /// Of a link its health; of a listener the peers that it accepted, refused, and heard nothing of.
    pub(crate) end: [u64; 3],
}

impl Row {
    /// Reads a row of [`layout::ROW`] bytes. `None`: it belongs to no object, or has a word that cannot be.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 8)?;
            Some(u64::from_ne_bytes(word.try_into().ok()?))
        };
        let stamp = word(layout::STAMP)?;
        let kind = match stamp & 0xff {
            layout::LISTENER => Kind::Listener,
            layout::LINK => Kind::Link,
            layout::TOPIC => Kind::Topic,
            layout::POOL => Kind::Pool,
            _ => return None,
        };
        let role_word = word(layout::ROLE)?;
        let role = match role_word & 0xff {
            0 => Role::None,
            layout::CONNECTED => Role::Connected,
            layout::ACCEPTED => Role::Accepted,
            layout::PUBLISHES => Role::Publishes,
            layout::SUBSCRIBES => Role::Subscribes,
            _ => return None,
        };
        let peer = word(layout::PEER)?;
        let address_len = usize::try_from(word(layout::ADDRESS_LEN)?).ok()?;
        if address_len > layout::ADDRESS_MOST {
            return None;
        }
        let half = |line: usize| {
            let state = word(line + layout::STATE)?;
            let doing = match state & 0xff {
                layout::RUNNING => Doing::Running,
                layout::POLLING => Doing::Polling,
                layout::PARKED => Doing::Parked,
                layout::ARMED => Doing::Armed,
                layout::GONE => Doing::Gone,
                _ => return None,
            };
            let waits = matches!(doing, Doing::Polling | Doing::Parked | Doing::Armed);
            let awaited = match state >> 8 & 0xff {
                _ if !waits => None,
                layout::FOR_MESSAGE => Some(Awaited::Message),
                layout::FOR_ROOM => Some(Awaited::Room),
                layout::FOR_MEMORY => Some(Awaited::Memory),
                layout::FOR_PACKETS => Some(Awaited::Packets),
                _ => return None,
            };
            Some(Half {
                messages: word(line + layout::MESSAGES)?,
                bytes: word(line + layout::BYTES)?,
                wakes: word(line + layout::WAKES)?,
                doing,
                awaited,
                since: word(line + layout::STATE_SINCE)?,
                whom: word(line + layout::WHOM)?,
                missed: word(line + layout::MISSED)?,
            })
        };
        Some(Self {
            kind,
            role,
            policy: (role_word >> 8) as u8,
            depth: (role_word >> 32) as u32,
            since: word(layout::SINCE)?,
            peer_pid: peer as u32,
            peer_uid: (peer >> 32) as u32,
            own: word(layout::OWN)?,
            theirs: word(layout::THEIRS)?,
            context: word(layout::CONTEXT)?,
            limit: word(layout::LIMIT)?,
            address: bytes.get(layout::ADDRESS..layout::ADDRESS + address_len)?.to_vec(),
            sender: half(layout::SENDER)?,
            receiver: half(layout::RECEIVER)?,
            loans: word(layout::LOANS)?,
            loan_bytes: word(layout::LOANS + layout::LOAN_BYTES)?,
            quota: word(layout::LOANS + layout::QUOTA)?,
            used: word(layout::LOANS + layout::USED)?,
            end: [
                word(layout::END)?,
                word(layout::END + layout::REFUSED)?,
                word(layout::END + layout::SILENT)?,
            ],
        })
    }

    /// Returns the address as a person writes it: an abstract name behind `@`.
    pub(crate) fn address(&self) -> String {
        match self.address.split_first() {
            None => "(no address)".into(),
            Some((0, name)) => format!("@{}", Escaped(name)),
            Some(_) => Escaped(&self.address).to_string(),
        }
    }

    /// Returns whether an address names this object's.
    pub(crate) fn has_address(&self, address: &Address) -> bool {
        self.address == sun_path(address)
    }
}

/// Returns an address as in `sun_path`.
pub(crate) fn sun_path(address: &Address) -> Vec<u8> {
    match (address.as_abstract_name(), address.as_path()) {
        (Some(name), _) => [&[0], name].concat(),
        (None, Some(path)) => path.as_os_str().as_bytes().to_vec(),
        (None, None) => Vec::new(),
    }
}
