//! A copy of one row, decoded: its owner's own words about one object.

use crate::status::layout;
use crate::status::words::{Awaited, Health, Kind, Role, State};

/// What a row says of a sender or a receiver.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct HalfSnapshot {
    /// Messages that passed, those with tensors included; in a stream up to 15 fewer. Of a subscription: the number of the last
    /// message that the subscriber read; of a topic: that of the newest.
    pub messages: u64,
    /// Bytes of these messages. A sender's alone counts those of tensors, and a subscription counts none.
    pub bytes: u64,
    /// System calls that woke the other side.
    pub wakes: u64,
    /// Times that the half slept.
    pub sleeps: u64,
    /// How the half passes its time.
    pub state: State,
    /// The thing that it waits for, if it waits.
    pub awaited: Option<Awaited>,
    /// When that began, in nanoseconds of `CLOCK_MONOTONIC_COARSE`.
    pub since: u64,
    /// Of a publisher: the inode of the segment of the subscriber that it waits for; otherwise 0.
    pub whom: u64,
    /// Messages that a subscriber took. Without the feature `metrics` its owner stores it late.
    pub taken: u64,
    /// Messages that a subscriber missed.
    pub missed: u64,
    /// Of a sender of a link: bytes of the ring that it has written since it was made. Without the feature `metrics` its owner
    /// stores it late.
    pub written: u64,
}

/// A row of a status page.
///
/// # Examples
///
/// A process finds its own page as a tool finds that of another one:
///
/// ```
/// use slipring::status::{self, Kind};
/// use slipring::{Address, Context};
///
/// let context = Context::new()?;
/// let listener = context.listen(&Address::fresh())?;
/// let name = format!("/memfd:{} (deleted)", status::NAME);
/// let mut files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
/// let is_page = |path: &std::path::Path| std::fs::read_link(path).is_ok_and(|to| to.to_str() == Some(&name));
/// let page = files.map(|file| file.path()).find(|path| is_page(path)).expect("a page");
/// let (first, second) = (std::fs::read(&page).unwrap(), std::fs::read(&page).unwrap());
/// assert_eq!(status::owner(&first), Some(std::process::id()));
/// let row = status::rows(&first, &second).find(|row| row.kind == Kind::Listener).expect("a listener");
/// assert_eq!(row.accepted, 0);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// The kind of the object.
    pub kind: Kind,
    /// The role of this side.
    pub role: Role,
    /// A subscriber's policy: 1 every message, 2 the newest, 3 the latest, 0 none.
    pub policy: u8,
    /// The depth of policy 2, in messages.
    pub depth: u32,
    /// When the object was made, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since: u64,
    /// The peer's process as the owner sees it, in its own pid namespace; 0 if it is not known.
    pub peer_pid: u32,
    /// The peer's user.
    pub peer_uid: u32,
    /// The inode of this side's segment, of a topic that of the topic.
    pub own: u64,
    /// The inode of the peer's segment.
    pub theirs: u64,
    /// The number of the context that the object belongs to, within its process.
    pub context: u64,
    /// Of a link: the most loans of this side's that the peer may hold. Of a topic: its slots.
    pub limit: u64,
    /// The version of the wire format that both sides of a link speak.
    pub version: u64,
    /// The address as in `sun_path`: an abstract one starts with a zero byte. Empty over a socket pair.
    pub address: Vec<u8>,
    /// The sender; of a topic the publisher.
    pub sender: HalfSnapshot,
    /// The receiver.
    pub receiver: HalfSnapshot,
    /// Blocks that the peer holds.
    pub loans: u64,
    /// Bytes of these, or of the blocks of a pool that are in use.
    pub loan_bytes: u64,
    /// The most bytes of a pool.
    pub quota: u64,
    /// Bytes of a pool that count for the quota.
    pub used: u64,
    /// The health of a link.
    pub health: Health,
    /// The peer of the link died.
    pub peer_died: bool,
    /// Why the publisher evicted the subscriber of this link: 1 it stalled, 2 the owner asked for it, 3 it held too many bytes;
    /// 0 it did not.
    pub evicted: u64,
    /// Peers that a listener accepted.
    pub accepted: u64,
    /// Peers that it refused.
    pub refused: u64,
    /// Peers that stayed silent.
    pub silent: u64,
}

impl Snapshot {
    /// Reads a row. `None`: it belongs to no object, or has a word that cannot be.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 8)?;
            Some(u64::from_ne_bytes(word.try_into().ok()?))
        };
        let kind = Kind::of(word(layout::STAMP)?)?;
        let (role_word, peer, end) = (word(layout::ROLE)?, word(layout::PEER)?, word(layout::END)?);
        let address_len = usize::try_from(word(layout::ADDRESS_LEN)?).ok()?;
        if address_len > layout::ADDRESS_MOST {
            return None;
        }
        let role = Role::of(role_word)?;
        let half = |line: usize| {
            let only = |is_so: bool, word: u64| if is_so { word } else { 0 };
            let word = |at: usize| word(line + at);
            let doing = word(layout::STATE)?;
            let state = State::of(doing)?;
            let awaited = if state.waits() { Some(Awaited::of(doing)?) } else { None };
            Some(HalfSnapshot {
                messages: word(layout::MESSAGES)?,
                bytes: word(layout::BYTES)?,
                wakes: word(layout::WAKES)?,
                sleeps: word(layout::SLEEPS)?,
                state,
                awaited,
                since: word(layout::STATE_SINCE)?,
                whom: only(kind == Kind::Topic, word(layout::WHOM)?),
                taken: only(role == Role::Subscribes, word(layout::TAKEN)?),
                missed: only(role == Role::Subscribes, word(layout::MISSED)?),
                written: only(kind == Kind::Link && line == layout::SENDER, word(layout::WRITTEN)?),
            })
        };
        let (is_link, is_listener) = (kind == Kind::Link, kind == Kind::Listener);
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
            version: word(layout::LINK_VERSION)?,
            address: bytes.get(layout::ADDRESS..layout::ADDRESS + address_len)?.to_vec(),
            sender: half(layout::SENDER)?,
            receiver: half(layout::RECEIVER)?,
            loans: word(layout::LOANS)?,
            loan_bytes: word(layout::LOANS + layout::LOAN_BYTES)?,
            quota: word(layout::LOANS + layout::QUOTA)?,
            used: word(layout::LOANS + layout::USED)?,
            health: if is_link { Health::of(end)? } else { Health::Alive },
            peer_died: is_link && word(layout::END + layout::DIED)? != 0,
            evicted: if is_link { word(layout::END + layout::EVICTED)? } else { 0 },
            accepted: if is_listener { end } else { 0 },
            refused: if is_listener { word(layout::END + layout::REFUSED)? } else { 0 },
            silent: if is_listener { word(layout::END + layout::SILENT)? } else { 0 },
        })
    }
}

/// Returns the process id in the head of a page, in the owner's own namespace. `None`: these bytes are no page, or one of another
/// version.
pub fn owner(page: &[u8]) -> Option<u32> {
    let word = |at: usize| {
        let word = page.get(at..at + 8)?;
        Some(u64::from_ne_bytes(word.try_into().ok()?))
    };
    let version = u64::from(layout::VERSION) | (layout::ROW as u64) << 32;
    let fits = word(0)? == layout::MAGIC && word(layout::HEAD_VERSION)? == version;
    if fits { u32::try_from(word(layout::HEAD_PID)?).ok() } else { None }
}

/// Returns the rows of a page that was copied twice. A row whose facts differ was changing hands, and is left out, as is one with
/// a word that cannot be.
pub fn rows<'a>(first: &'a [u8], second: &'a [u8]) -> impl Iterator<Item = Snapshot> + 'a {
    whole(first, second).filter_map(|(_, row)| Snapshot::read(row))
}

/// Returns the rows whose facts are the same in both copies of a page, with their indices.
pub(super) fn whole<'a>(
    first: &'a [u8],
    second: &'a [u8],
) -> impl Iterator<Item = (u32, &'a [u8])> + 'a {
    let pairs = first.chunks_exact(layout::ROW).zip(second.chunks_exact(layout::ROW));
    // The head and the spare row are no object's.
    let whole = pairs
        .enumerate()
        .skip(2)
        .filter(|(_, (first, second))| first[..layout::FACTS] == second[..layout::FACTS]);
    whole.map(|(at, (_, row))| (at as u32 - 1, row))
}
