//! The options of a context.
//!
//! 1. Every option has a default.
//! 2. A context checks its options once, when it is made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::account::{Account, Charge, Limits, Resource};
use crate::error::{ErrorKind, Result};
use crate::handshake::exchange::{self, Rules};
use crate::handshake::layout;
use crate::handshake::packet::Hello;
use crate::handshake::peer::Credentials;
use crate::handshake::policy::PeerPolicy;
use crate::handshake::role::{Role, Service};
use crate::link::control_socket::ControlSocket;
use crate::link::env::ChannelOptions;
use crate::link::share::PeerProcess;
use crate::patience::after;
use crate::pool::{LoanLimit, PoolOptions, has_grouped_caches};
use crate::shm::{Backing, MappedSegments, page_size};
use crate::wake::{Spin, SpinPolicy};

/// The NUMA node on which the memory of this side's rings lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numa {
    /// The node of the thread that connects or accepts, which the kernel chooses by itself.
    Local,
    /// The node that the receiver named in its Hello.
    Receiver,
    /// This node.
    Node(u32),
}

/// The ring that a link begins with, in bytes. Most links never hold more: requests, tokens, tensors, long messages.
const FIRST_RING: u64 = 16 << 10;

/// The defaults of [`Options::pool_footprint`] and [`Options::pool_far_footprint`] where cores have several last-level caches, in
/// bytes. Source: `docs/lab/2026-11-23-pool-footprint.md`: while both CPUs share a cache, a round trip of 64 KiB takes longer with
/// half as much and with twice as much.
const GROUPED_FOOTPRINTS: (u64, u64) = (2 << 20, 32 << 20);

/// The default of both where all cores share one, in bytes: a quarter of a core's own cache. Source:
/// `docs/lab/2026-11-28-footprints-of-a-shared-cache.md`.
const SHARED_FOOTPRINT: u64 = 512 << 10;

/// Options of a [`Context`](crate::Context); every one has a default.
///
/// # Examples
///
/// ```
/// use slipring::{Context, Options};
/// use slipring::options::Spin;
///
/// let options = Options::new().ring_capacity(1 << 20).spin(Spin::Never);
/// let context = Context::with_options(options)?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    ring_capacity: u64,
    max_message: u64,
    inline_max: u64,
    loan_slots: u32,
    pool_quota: u64,
    loan_limit: Option<LoanLimit>,
    pool_footprint: Option<u64>,
    pool_far_footprint: Option<u64>,
    peer_pool_limit: u64,
    backlog_limit: usize,
    write_limit: usize,
    half_open_limit: usize,
    handshake_timeout: Duration,
    send_timeout: Duration,
    release_grace: Duration,
    spin: Spin,
    peer_policy: PeerPolicy,
    limits: Limits,
    huge_pages: bool,
    prefault: bool,
    numa: Numa,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_capacity: 1 << 20,
            max_message: 1 << 30,
            inline_max: 4 << 10,
            loan_slots: 256,
            pool_quota: 2 << 30,
            loan_limit: None,
            pool_footprint: None,
            pool_far_footprint: None,
            peer_pool_limit: 4 << 30,
            backlog_limit: 1 << 20,
            write_limit: 64 << 20,
            half_open_limit: 64,
            handshake_timeout: Duration::from_secs(1),
            send_timeout: Duration::from_secs(30),
            release_grace: Duration::from_secs(1),
            spin: Spin::Adaptive { max: Duration::from_micros(400) },
            peer_policy: PeerPolicy::SameUser,
            limits: Limits::default(),
            huge_pages: false,
            prefault: false,
            numa: Numa::Local,
        }
    }
}

impl Options {
    /// Returns this side's Hello, for a thread on this node.
    pub(crate) fn hello(&self, issues_membarrier: bool, numa_node: Option<u32>) -> Hello {
        let first = self.first_ring();
        Hello {
            issues_membarrier,
            control_len: layout::len(self.loan_slots),
            ring_capacity: first,
            second_ring: if first < self.ring_capacity { self.ring_capacity } else { 0 },
            loan_slots: self.loan_slots,
            numa_node,
            max_message: self.max_message,
            pool_limit: self.peer_pool_limit,
            role: Role::Link,
        }
    }

    /// Returns the bytes of the ring that a link begins with.
    fn first_ring(&self) -> u64 {
        if self.prefault {
            return self.ring_capacity;
        }
        let whole_pages = FIRST_RING.max(page_size() as u64);
        // A message in the ring is no longer than a quarter of it.
        let messages = 4 * self.inline_max.min(self.ring_capacity / 4);
        self.ring_capacity.min(whole_pages.max(messages.next_power_of_two()))
    }

    /// Returns what a handshake asks of the peer, and how it waits.
    pub(super) fn rules(&self, service: Service) -> Rules<'_> {
        Rules {
            policy: &self.peer_policy,
            prefault: self.prefault,
            polls: self.spin != Spin::Never,
            service,
        }
    }

    /// Checks that the policy admits a peer.
    pub(super) fn admit(&self, peer: &Credentials) -> Result<()> {
        self.peer_policy.check(peer)
    }

    /// Returns when a handshake that begins now is late.
    pub(super) fn handshake_deadline(&self) -> Instant {
        after(self.hello_time())
    }

    /// Returns the most peers of one listener whose Hello may be due.
    pub(crate) fn most_half_open(&self) -> usize {
        self.half_open_limit
    }

    /// Returns how long a peer may take for its Hello.
    pub(crate) fn hello_time(&self) -> Duration {
        self.handshake_timeout
    }

    /// Returns how long a peer may keep what it was lent. `None`: as long as it lives.
    pub(super) fn grace(&self) -> Option<Duration> {
        Some(self.release_grace).filter(|grace| *grace != Duration::MAX)
    }

    pub(super) fn spin_option(&self) -> Spin {
        self.spin
    }

    /// Returns how long a listener polls before it sleeps.
    pub(super) fn spin_of_listener(&self) -> SpinPolicy {
        SpinPolicy::new(match self.spin {
            Spin::Never => Spin::Never,
            _ => Spin::Adaptive { max: exchange::POLL },
        })
    }

    /// Returns how long a loop polls before it sleeps.
    pub(super) fn spin_policy(&self) -> SpinPolicy {
        SpinPolicy::new(self.spin)
    }

    /// Returns the node to which a link's ring is bound when the handshake is over, if any. The receiver named `theirs`.
    pub(super) fn node_of_receiver(&self, theirs: Option<u32>) -> Option<u32> {
        theirs.filter(|_| self.numa == Numa::Receiver)
    }

    /// Returns the account of a new link with this peer.
    pub(super) fn account(&self, peer: &Credentials) -> Arc<Account> {
        Account::of_link((peer.uid, peer.pid), self.limits)
    }

    /// Returns the account of a peer that is not admitted yet.
    pub(super) fn stranger(&self, peer: &Credentials) -> Arc<Account> {
        Account::of_stranger(peer.uid, self.limits)
    }

    /// Returns the receiving side of a new link's socket.
    pub(super) fn control_socket(
        &self,
        account: (Arc<Account>, Charge),
        second_ring: u64,
        mapped: (PeerProcess, Arc<MappedSegments>),
    ) -> ControlSocket {
        ControlSocket::new((self.peer_pool_limit, second_ring), self.prefault, account, mapped)
    }

    /// Returns the options of a link's halves.
    pub(crate) fn channel(&self) -> ChannelOptions {
        ChannelOptions {
            inline_max: self.inline_max,
            send_timeout: self.send_timeout,
            spin: self.spin,
            backlog_limit: self.backlog_limit,
            write_limit: self.write_limit,
            release_grace: self.grace(),
        }
    }
}

impl Options {
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the ring that this side writes: a power of two from one page to 1 GiB. Default 1 MiB.
    ///
    /// A link begins with a ring of 16 KiB, or of four messages of [`inline_max`](Self::inline_max). When that ring is full for
    /// the first time, this side goes on in one of the whole length. With [`prefault`](Self::prefault) it begins with the
    /// whole length.
    pub fn ring_capacity(mut self, bytes: u64) -> Self {
        self.ring_capacity = bytes;
        self
    }

    /// The longest message in bytes, both ways. Default 1 GiB. The smaller value of both sides counts.
    pub fn max_message(mut self, bytes: u64) -> Self {
        self.max_message = bytes;
        self
    }

    /// The longest message in bytes that travels in the ring itself; longer ones travel in a block
    /// of the pool. Default 4 KiB, and never more than a quarter of the ring.
    pub fn inline_max(mut self, bytes: u64) -> Self {
        self.inline_max = bytes;
        self
    }

    /// Blocks that one peer may lend this side at once: 1 to 65536. Default 256. A peer uses at most 1024.
    pub fn loan_slots(mut self, slots: u32) -> Self {
        self.loan_slots = slots;
        self
    }

    /// Bytes that the pool of this context may hold. Default 2 GiB; nothing is allocated before the
    /// first long message.
    pub fn pool_quota(mut self, bytes: u64) -> Self {
        self.pool_quota = bytes;
        self
    }

    /// Blocks and bytes of this context's pool that one link's peer may hold: long messages and tensors that it has not
    /// returned, also those that it has not received. Default 1024 blocks, which is the most, and a quarter of
    /// [`pool_quota`](Self::pool_quota). The peer's [`loan_slots`](Self::loan_slots) limit the blocks, too.
    ///
    /// All links of one peer process together hold at most two thirds of what the other peers of its user leave of the pool, or as
    /// much as one link may. By default, a user holds at most three quarters of what other users leave. With a limit that was set,
    /// each peer process may hold as much as one link, whatever others hold.
    ///
    /// A link at its limit has no room, and other links go on. A message that alone is longer than the limit is sent
    /// while the peer process holds nothing. A tensor that goes to several links counts for each of them. Blocks count with
    /// their whole length, which is up to a quarter more than the message.
    pub fn loan_limit(mut self, blocks: u32, bytes: u64) -> Self {
        self.loan_limit = Some(LoanLimit { blocks, bytes, is_right: true });
        self
    }

    /// Bytes of each block size that rotate while the peer's CPU shares a cache with this side's. Default 2 MiB on AMD's
    /// processors, whose cores have several last-level caches, otherwise 512 KiB.
    ///
    /// The pool hands out the block of a size that was unused for longest, because lines that a receiver has just read
    /// are slow to write. Of blocks of up to half of the footprint at least four rotate, up to twice these bytes together; of
    /// longer ones two, and above 16 MiB one is used again and again. More blocks than rotate exist only while receivers hold
    /// them. `docs/tuning.md` has the figures.
    pub fn pool_footprint(mut self, bytes: u64) -> Self {
        self.pool_footprint = Some(bytes);
        self
    }

    /// Bytes of each block size that rotate while the peers' cores share no cache with this side's, which is measured.
    /// Default 32 MiB on AMD's processors, otherwise [`pool_footprint`](Self::pool_footprint). A value below that one counts as
    /// that one.
    pub fn pool_far_footprint(mut self, bytes: u64) -> Self {
        self.pool_far_footprint = Some(bytes);
        self
    }

    /// Bytes of one peer's pool that this side is ready to map. Default 4 GiB of address space. Pool
    /// segments have about 1 MiB, or the length of a longer message: with a smaller limit peers can send
    /// only what fits into their ring. Messages of one length lie in two segments by turns: with a limit below both, each is mapped
    /// anew.
    pub fn peer_pool_limit(mut self, bytes: u64) -> Self {
        self.peer_pool_limit = bytes;
        self
    }

    /// Bytes of messages that a receiver may set aside while it waits for something else (a response). Default 1 MiB.
    /// The accounts of [`Resource::Memory`] hold for all links together.
    pub fn backlog_limit(mut self, bytes: usize) -> Self {
        self.backlog_limit = bytes;
        self
    }

    /// Bytes of writes of one [`Link`](crate::Link) that may wait for room, while its peer is slow or does not read.
    /// Blocks of the pool that a waiting write keeps count, too. Default 64 MiB. One write of any length may wait, within the
    /// accounts of [`Resource::Memory`].
    pub fn write_limit(mut self, bytes: usize) -> Self {
        self.write_limit = bytes;
        self
    }

    /// Peers of one listener whose Hello may be due. Default 64. When one more connects, the listener drops the oldest of the
    /// user that has most.
    pub fn half_open_limit(mut self, peers: usize) -> Self {
        self.half_open_limit = peers;
        self
    }

    /// How long a peer may take for its Hello. Default 1 s.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// How long operations without a deadline wait for room, and calls for their response. Default 30 s.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.send_timeout = timeout;
        self
    }

    /// How long a peer may keep and receive this side's blocks (long messages and tensors) after this side has dropped both
    /// halves of the link, or after the peer's end of the socket was closed without a release. Default 1 s. Then this side
    /// uses the blocks again, closes its descriptors, and reads of the blocks by the peer fail with
    /// [`ErrorKind::LoanRevoked`]. [`Sender::abort`](crate::Sender::abort) does not wait.
    ///
    /// `Duration::MAX`: the peer may keep them until its process ends, and a link with two descriptors lives on as long. A
    /// peer that [trusts](crate::Connection::trust) this side relies on it. With any other value, the links that wait for
    /// the grace hold at most a quarter of the descriptors that the process may open (`RLIMIT_NOFILE`). Beyond that this
    /// side takes back what one process holds: of the user with most such links, the process with most, and its oldest.
    pub fn release_grace(mut self, grace: Duration) -> Self {
        self.release_grace = grace;
        self
    }

    /// How long a waiter polls before it sleeps. Default [`Spin::Adaptive`] with a `max` of 400 µs. With all but
    /// [`Spin::Never`], a listener that waits in `accept` polls for up to 100 µs, as rarely as [`Spin::Adaptive`] does.
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = spin;
        self
    }

    /// The peers that listeners admit, and the listeners that this side connects to. Default [`PeerPolicy::SameUser`].
    pub fn peer_policy(mut self, policy: PeerPolicy) -> Self {
        self.peer_policy = policy;
        self
    }

    /// How much of a resource one link may make this process hold. Default: as much as its peer may.
    pub fn link_limit(mut self, resource: Resource, limit: u64) -> Self {
        self.limits.set_link(resource, limit);
        self
    }

    /// How much of a resource the links of one peer process may make this process hold together. At most, and by default,
    /// two thirds of what the other peers of its user leave.
    pub fn peer_limit(mut self, resource: Resource, limit: u64) -> Self {
        self.limits.set_peer(resource, limit);
        self
    }

    /// How much of a resource the links of one user (effective user id) may make this process hold together. At most, and
    /// by default, three quarters of what other users leave.
    pub fn user_limit(mut self, resource: Resource, limit: u64) -> Self {
        self.limits.set_user(resource, limit);
        self
    }

    /// How much of a resource all peers may make this process hold together. The links of other contexts count, too. The
    /// defaults follow the limits of the process.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::options::Resource;
    /// use slipring::{Context, Options};
    ///
    /// // A process that opens few files of its own gives peers more of what it may open.
    /// let options = Options::new().process_limit(Resource::Descriptors, 900).user_limit(Resource::Descriptors, 600);
    /// let context = Context::with_options(options)?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn process_limit(mut self, resource: Resource, limit: u64) -> Self {
        self.limits.set_process(resource, limit);
        self
    }

    /// Whether rings and pool ask for huge pages (`madvise`). Default no. The option has no effect where the system has
    /// no huge pages for shared memory (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`).
    pub fn huge_pages(mut self, yes: bool) -> Self {
        self.huge_pages = yes;
        self
    }

    /// Whether this side maps every page of rings and pool when it makes them, rather than on first touch. Default no:
    /// mapping costs about 250 µs a MiB.
    pub fn prefault(mut self, yes: bool) -> Self {
        self.prefault = yes;
        self
    }

    /// Puts the memory of this side's rings on this NUMA node. Default: the node of the thread that connects or accepts.
    /// Without such a node no link is made ([`ErrorKind::Os`]).
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa = Numa::Node(node);
        self
    }

    /// Puts the memory of this side's rings on the NUMA node that the receiver named in its Hello. Where the kernel
    /// cannot, the memory stays where it is. Default no.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::{Context, Options};
    ///
    /// let context = Context::with_options(Options::new().numa_of_receiver(true))?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn numa_of_receiver(mut self, yes: bool) -> Self {
        self.numa = if yes { Numa::Receiver } else { Numa::Local };
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let page = page_size() as u64;
        let wrong = |name, value, must| Err(ErrorKind::InvalidOption { name, value, must }.into());
        let capacity = self.ring_capacity;
        if !capacity.is_power_of_two() || capacity < page || capacity > layout::LONGEST_RING {
            return wrong("ring_capacity", capacity, "a power of two from one page to 1 GiB");
        }
        if self.max_message == 0 || self.max_message > 1 << 40 {
            return wrong("max_message", self.max_message, "1 byte to 1 TiB");
        }
        if self.loan_slots == 0 || self.loan_slots > 1 << 16 {
            return wrong("loan_slots", self.loan_slots.into(), "1 to 65536");
        }
        if self.loan_limit.is_some_and(|limit| limit.blocks == 0 || limit.bytes == 0) {
            return wrong("loan_limit", 0, "at least 1 block and 1 byte");
        }
        if self.pool_footprint == Some(0) {
            return wrong("pool_footprint", 0, "at least 1 byte");
        }
        if self.half_open_limit == 0 {
            return wrong("half_open_limit", 0, "at least 1");
        }
        Ok(())
    }

    pub(crate) fn backing(&self) -> Backing {
        let node = match self.numa {
            Numa::Node(node) => Some(node),
            Numa::Local | Numa::Receiver => None,
        };
        Backing { huge_pages: self.huge_pages, prefault: self.prefault, node }
    }

    /// Returns the bytes that rotate while the peers are near, and while they are far.
    fn footprints(&self) -> (u64, u64) {
        match (self.pool_footprint, self.pool_far_footprint) {
            (Some(near), Some(far)) => (near, far),
            (near, far) if has_grouped_caches() => {
                (near.unwrap_or(GROUPED_FOOTPRINTS.0), far.unwrap_or(GROUPED_FOOTPRINTS.1))
            }
            (near, far) => {
                let near = near.unwrap_or(SHARED_FOOTPRINT);
                (near, far.unwrap_or(near))
            }
        }
    }

    pub(crate) fn pool(&self) -> PoolOptions {
        let (footprint, far_footprint) = self.footprints();
        PoolOptions {
            quota: self.pool_quota,
            footprint,
            far_footprint,
            loans: self.loan_limit.unwrap_or(LoanLimit {
                blocks: LoanLimit::MOST,
                bytes: self.pool_quota / LoanLimit::PART,
                is_right: false,
            }),
            backing: self.backing(),
        }
    }
}
