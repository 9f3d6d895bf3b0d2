//! The receiving side of a link's socket after the handshake: pool segments, descriptors of the user's, and wake-ups.
//!
//! The control socket owns the table of the peer's segments, and notes which half a wake-up has reached.
//!
//! 1. A half reads the socket when a record names an unknown segment, or before an event loop sleeps on the socket.
//!    Both halves may, from two threads, under one lock.
//! 2. One call reads at most [`PACKETS`] packets, so a peer that sends without end does not hold a thread.
//! 3. A wake-up is idempotent: it notes that its half has been woken, however many come. It is never a fault.
//! 4. Where the thread serves several peers, packets and mapped bytes have a [share](crate::link::share) of its time. A
//!    call reads no further packet once it is spent, except for the one that a record needs.
//! 5. Bytes and number of a peer's segments have limits, and each segment is charged to the link's account.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::account::{Account, Charge, Resource};
use crate::error::{ErrorKind, Fault, GpuUuid, Result};
use crate::handshake::packet::{Content, PACKET, Packet, Reason};
use crate::handshake::socket;
use crate::handshake::socket::{Incoming, Received};
use crate::handshake::untrusted::{self, UntrustedFd};
use crate::link::allocations::{PassedAllocation, PassedAllocations};
use crate::link::passed::PassedDescriptors;
use crate::link::share::{PeerProcess, RECORDS, SocketShare};
use crate::pool::FrozenBlock;
use crate::shm::fork::Generation;
use crate::shm::{Frozen, LARGE, MappedSegments, PeerMapping, PeerSegment, discard, page_size};

/// The most segments of one peer that a side maps. Part of the wire format.
pub(crate) const SEGMENTS: usize = 1024;

/// The mappings of a ring of the peer's, which lies twice in a row.
pub(crate) const RING_MAPPINGS: u64 = 2;

/// A segment of a peer's pool, mapped.
#[derive(Debug)]
pub(crate) struct PoolSegment {
    mapped: PeerSegment,
}

impl PoolSegment {
    #[inline(always)]
    pub(crate) fn mapping(&self) -> &PeerMapping {
        self.mapped.mapping()
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.mapped.len()
    }
}

/// The most packets that one call reads: four times as many as a writer may send without a record that announces them.
pub(crate) const PACKETS: u32 = 128;

/// The most bytes of segments that one call maps, in multiples of the limit. Counting the pages of a GiB takes some 10 ms.
const LIMITS: u64 = 4;

/// A half that sleeps without reading the socket lets it be read every so many sleeps. One sleep brings at most three
/// wake-ups: from the peer's receiver, from its drop, and from a thread of the peer's that returns a loan. So they and
/// the packets that no record announces yet are at most [`PACKETS`], which fit into the queue.
const SLEEPS: u32 = PACKETS / 4;

/// Returns the count at which a link starts. It differs from link to link: if a loop read the sockets of all its links in one
/// turn, their peer would use up its share, and rest.
fn first_sleeps() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % SLEEPS
}

/// How many polls for data that find nothing leave a wake-up for room in the queue. The socket stays readable meanwhile, so the
/// caller polls for room, too. A caller polls for messages, requests and tensors before it sleeps; a caller that wants no
/// room would be kept busy by more.
const LEFT: u32 = 3;

/// The halves that a wake-up has reached, and that have not asked for it yet.
#[derive(Debug, Default)]
struct Woken {
    data: bool,
    room: bool,
}

/// Memory of a peer that its records name.
#[derive(Debug, Clone)]
pub(crate) enum Arrived {
    /// Blocks of it are on loan.
    Pool(Arc<PoolSegment>),
    /// The segment is sealed against writing.
    Frozen(Arc<FrozenBlock>),
}

impl Arrived {
    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Pool(segment) => segment.len() as u64,
            Self::Frozen(frozen) => frozen.memory().len() as u64,
        }
    }
}

/// The bytes whose pages are counted at a time: the kernel takes some 0.6 ms.
const PART: u64 = 64 << 20;

/// A segment that is not mapped yet.
#[derive(Debug)]
struct Counting {
    segment: u32,
    len: usize,
    fd: UntrustedFd,
    content: Content,
    /// The bytes whose pages are counted: all are there.
    done: usize,
}

#[derive(Debug)]
pub(crate) struct ControlSocket {
    segments: HashMap<u32, Arrived>,
    /// The second ring of the peer, from its arrival until the receiving half takes it.
    ring: Option<PeerMapping>,
    /// Its length in bytes as long as it may arrive, then 0.
    ring_due: u64,
    /// Bytes of all segments but the ring's.
    bytes: u64,
    limit: u64,
    account: Arc<Account>,
    /// The peer, and what is mapped of it.
    mapped: (PeerProcess, Arc<MappedSegments>),
    /// The descriptors of the link.
    _descriptors: Charge,
    /// Bytes of the segments that the current call has mapped.
    window: u64,
    prefault: bool,
    woken: Woken,
    /// How many polls for room still leave a wake-up for data.
    data_left: u32,
    /// How many polls for data that find nothing still leave a wake-up for room.
    room_left: u32,
    /// Sleeps after the last time that a sleep let the socket be read.
    sleeps: u32,
    /// The number of retired segments, for caches of segments.
    retires: Arc<AtomicU32>,
    passed: PassedDescriptors,
    allocations: PassedAllocations,
    /// The packets that were taken.
    packets: u64,
    /// Whether the socket has ended: it holds no further packet.
    ended: bool,
    /// Of a thread that serves several peers.
    share: Option<SocketShare>,
    /// Whether the last poll of a half left packets, because the share was spent.
    is_left: bool,
    /// A long segment whose pages are counted a part at a time.
    counting: Option<Counting>,
    /// The process that has the segments.
    generation: Option<Generation>,
}

impl ControlSocket {
    /// Returns a table for `limit` bytes of segments of a peer, and for its second ring. `account` is that of the link, with the
    /// charge for the descriptors of the link.
    pub(crate) fn new(
        (limit, second_ring): (u64, u64),
        prefault: bool,
        (account, descriptors): (Arc<Account>, Charge),
        mapped: (PeerProcess, Arc<MappedSegments>),
    ) -> Self {
        Self {
            segments: HashMap::new(),
            ring: None,
            ring_due: second_ring,
            bytes: 0,
            limit,
            passed: PassedDescriptors::new(account.clone()),
            allocations: PassedAllocations::new(account.clone()),
            account,
            mapped,
            _descriptors: descriptors,
            window: 0,
            prefault,
            woken: Woken::default(),
            data_left: 0,
            room_left: 0,
            sleeps: first_sleeps(),
            retires: Arc::default(),
            packets: 0,
            ended: false,
            share: None,
            is_left: false,
            counting: None,
            generation: Generation::current().ok(),
        }
    }

    /// Notes that the thread that reads the socket of this peer serves several peers.
    pub(crate) fn take_turns(&mut self, peer: PeerProcess) {
        self.share.get_or_insert_with(|| SocketShare::new(peer));
    }

    /// Reads the socket until this segment has come. Returns `false` if the socket rests before.
    pub(crate) fn fetch(&mut self, socket: &OwnedFd, segment: u32) -> Result<bool> {
        self.fetch_until(socket, |socket| socket.segments.contains_key(&segment))
    }

    /// Reads the socket until the second ring of the peer has come, as [`fetch`](Self::fetch) does.
    pub(crate) fn fetch_ring(&mut self, socket: &OwnedFd) -> Result<bool> {
        self.fetch_until(socket, |socket| socket.ring.is_some())
    }

    fn fetch_until(&mut self, socket: &OwnedFd, has_come: impl Fn(&Self) -> bool) -> Result<bool> {
        if self.share.is_none() {
            return Ok(true);
        }
        self.begin_look();
        while !has_come(self) {
            if self.rests() {
                return Ok(false);
            }
            if !self.take_one(socket)? {
                break;
            }
        }
        Ok(true)
    }

    /// Returns whether the thread serves several peers, and has read packets for as long as one look takes. `start` is when it
    /// began.
    pub(crate) fn is_turn_over(&self, start: Instant) -> bool {
        self.share.is_some() && start.elapsed().as_nanos() >= RECORDS as u128
    }

    /// Returns whether the last poll of a half may have left packets, because the share of time was spent.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left
    }

    /// Returns how long the socket rests. `None`: its share of time is not spent.
    pub(crate) fn rest(&self) -> Option<Duration> {
        self.share.as_ref()?.rest()
    }

    /// Returns the count of packets that were taken, once the socket has ended.
    pub(crate) fn packets_at_end(&self) -> Option<u64> {
        self.ended.then_some(self.packets)
    }

    /// Begins to read packets: of the segments that they announce, and in the time of the thread.
    fn begin_look(&mut self) {
        self.window = 0;
        if let Some(share) = &mut self.share {
            share.begin_look();
        }
    }

    /// Returns whether the socket's share of time is spent.
    fn rests(&self) -> bool {
        self.share.as_ref().is_some_and(SocketShare::rests)
    }

    /// Starts the clock of this look.
    fn start_clock(&mut self) {
        if let Some(share) = &mut self.share {
            share.start_clock();
        }
    }

    /// Charges the peer with a cost in nanoseconds, if the thread serves several peers.
    pub(crate) fn spend(&mut self, cost: i64) {
        if let Some(share) = &mut self.share {
            share.spend(cost);
        }
    }

    /// Returns the account of the link.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns the counter of retired segments.
    pub(crate) fn retires(&self) -> Arc<AtomicU32> {
        self.retires.clone()
    }

    /// Starts the count of bytes mapped for one record.
    pub(crate) fn open_window(&mut self) {
        self.window = 0;
    }

    /// Returns the pool segment with this number. Reads the socket if the table lacks it: the peer sends a segment
    /// before it publishes a record that names it.
    #[inline]
    pub(crate) fn segment(&mut self, socket: &OwnedFd, segment: u32) -> Result<Arc<PoolSegment>> {
        match self.arrived(socket, segment)? {
            Arrived::Pool(mapped) => Ok(mapped),
            // A frozen segment has no blocks to lend.
            Arrived::Frozen(_) => Err(Fault::UnknownSegment { segment }.into()),
        }
    }

    /// Returns the frozen segment with this number, as [`segment`](Self::segment) does.
    pub(crate) fn frozen(&mut self, socket: &OwnedFd, segment: u32) -> Result<Arc<FrozenBlock>> {
        match self.arrived(socket, segment)? {
            Arrived::Frozen(frozen) => Ok(frozen),
            Arrived::Pool(_) => Err(Fault::UnknownSegment { segment }.into()),
        }
    }

    /// Returns the second ring of the peer, whole. Reads the socket as [`segment`](Self::segment) does, for more packets: no record
    /// has told of those before it.
    ///
    /// # Errors
    ///
    /// [`Fault::UnknownSegment`]: it has not come, or was taken.
    pub(crate) fn take_ring(&mut self, socket: &OwnedFd) -> Result<PeerMapping> {
        if self.share.is_none() {
            self.take_for_record(socket, 2 * PACKETS, |socket| socket.ring.is_some())?;
        }
        self.ring.take().ok_or(Fault::UnknownSegment { segment: 0 }.into())
    }

    /// Sets how many descriptors of the user's may wait.
    pub(crate) fn admit_descriptors(&mut self, limit: usize) {
        self.passed.admit(limit);
    }

    /// Reads the socket if this side admits descriptors of the user's, or if the peer has announced allocations. Descriptors that no
    /// record names, and withdrawals, would fill its queue. Returns whether packets may be left.
    pub(crate) fn take_in(&mut self, socket: &OwnedFd) -> Result<bool> {
        if !self.passed.is_open() && self.allocations.is_empty() {
            return Ok(false);
        }
        self.begin_look();
        for _ in 0..PACKETS {
            if self.rests() {
                break;
            }
            if !self.take_one(socket)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the user's descriptors that a record names, or the limit that left no room for one of them.
    ///
    /// # Errors
    ///
    /// The link ends.
    pub(crate) fn descriptors(
        &mut self,
        socket: &OwnedFd,
        first: u64,
        count: usize,
    ) -> Result<Result<Vec<UntrustedFd>>> {
        // With a share of time, the packets record before this one has had the socket read.
        if self.share.is_none() {
            let end = first.saturating_add(count as u64);
            self.window = 0;
            self.take_for_record(socket, PACKETS, |socket| socket.passed.reaches(end))?;
        }
        Ok(self.passed.take(first, count)?)
    }

    /// Returns the allocation of a GPU with this number, of a record that this side has taken.
    ///
    /// # Errors
    ///
    /// [`Fault::UnknownAllocation`]: the peer has not announced it, or has withdrawn it.
    pub(crate) fn allocation(&self, number: u64) -> Result<Arc<PassedAllocation>, Fault> {
        // A packets record between its announcement and the record has had the socket read.
        self.allocations.get(number).cloned().ok_or(Fault::UnknownAllocation { number })
    }

    /// Takes at most `most` packets until `has_come`, and counts the segment of the last one to its end. The parts of a
    /// segment are no packets: an honest one has as many as it is long.
    fn take_for_record(
        &mut self,
        socket: &OwnedFd,
        most: u32,
        has_come: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let mut packets = 0;
        while !has_come(self) && (packets < most || self.counting.is_some()) {
            packets += u32::from(self.counting.is_none());
            if !self.take_one(socket)? {
                break;
            }
        }
        Ok(())
    }

    /// Takes the next packet, in the share's time. Returns `false` if there is none.
    fn take_one(&mut self, socket: &OwnedFd) -> Result<bool> {
        if self.ended && self.counting.is_none() {
            return Ok(false);
        }
        let taken = self.take_next(socket);
        if let Some(share) = &mut self.share {
            share.charge();
        }
        taken
    }

    fn take_next(&mut self, socket: &OwnedFd) -> Result<bool> {
        if let Some(counting) = self.counting.take() {
            self.start_clock();
            return self.count(counting).map(|()| true);
        }
        match receive(socket)? {
            Incoming::Packet(packet) => {
                self.start_clock();
                self.packets += 1;
                self.admit(packet, socket).map(|()| true)
            }
            Incoming::Nothing => Ok(false),
            Incoming::End => {
                self.ended = true;
                Ok(false)
            }
        }
    }

    #[cold]
    fn arrived(&mut self, socket: &OwnedFd, segment: u32) -> Result<Arrived> {
        // With a share of time, `fetch` has read the socket. A record that names another segment now was rewritten.
        if self.share.is_none() {
            self.take_for_record(socket, PACKETS, |socket| socket.segments.contains_key(&segment))?;
        }
        let found = self.segments.get(&segment).cloned();
        found.ok_or(Fault::UnknownSegment { segment }.into())
    }

    /// Notes that a half is about to sleep without reading the socket. Takes all packets if wake-ups of many such sleeps
    /// may be there. Returns whether one that was taken is for the receiving half.
    pub(crate) fn note_sleep(&mut self, socket: &OwnedFd) -> Result<bool> {
        self.sleeps += 1;
        if self.sleeps < SLEEPS {
            return Ok(false);
        }
        if self.take(socket)? {
            self.sleeps = 0;
        }
        Ok(self.data_woken())
    }

    /// Takes all packets. Returns `false` if the share of time was spent before.
    pub(crate) fn take(&mut self, socket: &OwnedFd) -> Result<bool> {
        self.take_until(socket, || false)
    }

    /// Takes packets for a poll for data. The caller may have polled for room just before, so a wake-up for room stays in the
    /// queue, and the packets behind it, until a few polls have [found nothing](Self::found_nothing).
    pub(crate) fn take_for_data(&mut self, socket: &OwnedFd) -> Result<bool> {
        self.data_left = SLEEPS;
        let leaves = self.room_left > 0;
        self.take_until(socket, || leaves && !is_next_other(socket, Packet::Wake(Reason::Room)))
    }

    /// Notes that a poll for data found nothing, and its thread may sleep.
    pub(crate) fn found_nothing(&mut self) {
        self.room_left = self.room_left.saturating_sub(1);
    }

    /// Takes packets for a poll for room. The caller may have polled for data just before, so a wake-up for data stays in the
    /// queue, and the packets behind it, for [`SLEEPS`] of these polls. Then the wake-ups for room behind it would fill
    /// the queue.
    pub(crate) fn take_for_room(&mut self, socket: &OwnedFd) -> Result<bool> {
        self.room_left = LEFT;
        let leaves = self.data_left > 0;
        self.data_left = self.data_left.saturating_sub(1);
        self.take_until(socket, || leaves && !is_next_other(socket, Packet::Wake(Reason::Data)))
    }

    /// Takes the withdrawals that come next, for halves that sleep. Returns whether something else comes then, which the halves
    /// take. That is so for a number that is not known, too: a peer cannot keep the caller busy with them. A thread that serves
    /// several peers reads its sockets itself.
    pub(crate) fn take_withdrawals(&mut self, socket: &OwnedFd) -> Result<bool> {
        if self.share.is_some() {
            return Ok(true);
        }
        loop {
            let mut bytes = [0; PACKET];
            let Some(len) = socket::peek(socket, &mut bytes) else { return Ok(false) };
            match Packet::decode(&bytes[..len]) {
                Ok(Packet::Withdraw { number }) if self.allocations.get(number).is_some() => {}
                _ => return Ok(true),
            }
            if !self.take_one(socket)? {
                return Ok(false);
            }
        }
    }

    /// Takes packets until there are none, or `stop` returns true. Returns `false` if the share of time was spent before.
    fn take_until(&mut self, socket: &OwnedFd, stop: impl Fn() -> bool) -> Result<bool> {
        self.begin_look();
        self.is_left = false;
        for _ in 0..PACKETS {
            if self.rests() {
                self.is_left = true;
                return Ok(false);
            }
            if stop() || !self.take_one(socket)? {
                break;
            }
        }
        Ok(true)
    }

    /// Returns whether a wake-up for data was taken after the last call.
    pub(crate) fn data_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken.data)
    }

    /// Returns what [`data_woken`](Self::data_woken) will return.
    pub(crate) fn is_data_woken(&self) -> bool {
        self.woken.data
    }

    /// Returns whether a wake-up for room was taken after the last call.
    pub(crate) fn room_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken.room)
    }

    /// Checks and handles one packet.
    pub(crate) fn admit(&mut self, mut packet: Received<PACKET>, socket: &OwnedFd) -> Result<()> {
        let whole = packet.is_whole(socket);
        let decoded = Packet::decode(&packet.bytes[..packet.len]);
        if let (Ok(Packet::Descriptors { first, count }), Err(error)) = (&decoded, &whole)
            && matches!(error.kind(), ErrorKind::DescriptorLimit { .. })
        {
            // The half that asks for the missing ones gets the error.
            return Ok(self.passed.add(*first, *count as usize, packet.descriptors)?);
        }
        whole?;
        let packet_kind = decoded?;
        let (count, expected) = (packet.descriptors.len(), packet_kind.descriptors());
        if count != expected {
            return Err(Fault::DescriptorCount { count, expected }.into());
        }
        if let Packet::Descriptors { first, .. } = packet_kind
            && self.passed.is_open()
        {
            return Ok(self.passed.add(first, count, packet.descriptors)?);
        }
        match (packet_kind, packet.descriptors.pop()) {
            (Packet::Segment { len, content: Content::Ring, .. }, Some(fd)) => {
                self.map_ring(len, fd)
            }
            (Packet::Segment { segment, len, content }, Some(fd)) => {
                self.map(segment, len, fd, content)
            }
            (Packet::Retire { segment }, _) => {
                self.retires.fetch_add(1, Ordering::Relaxed);
                if let Some(dropped) = self.segments.remove(&segment) {
                    self.bytes -= dropped.len();
                    drop(dropped);
                }
                Ok(())
            }
            (Packet::Allocation { number, len, device }, Some(fd)) => {
                self.allocations.add(number, (GpuUuid(device), len), fd)
            }
            (Packet::Withdraw { number }, _) => {
                self.allocations.withdraw(number);
                Ok(())
            }
            (Packet::Wake(reason), _) => {
                match reason {
                    Reason::Data => self.woken.data = true,
                    Reason::Room => self.woken.room = true,
                }
                Ok(())
            }
            (other, _) => Err(other.out_of_place().into()),
        }
    }

    /// Maps the second ring of the peer, which comes once at most.
    fn map_ring(&mut self, len: u64, fd: UntrustedFd) -> Result<()> {
        if len == 0 || len != self.ring_due {
            return Err(Fault::Field { field: "segment.len", value: len }.into());
        }
        self.ring_due = 0;
        self.begin_map(Counting {
            segment: 0,
            len: len as usize,
            fd,
            content: Content::Ring,
            done: 0,
        })
    }

    fn map(&mut self, segment: u32, len: u64, fd: UntrustedFd, content: Content) -> Result<()> {
        let bytes = self.bytes.saturating_add(len);
        let segments = self.segments.len() + 1;
        self.window = self.window.saturating_add(len);
        let in_time = self.window <= self.limit.saturating_mul(LIMITS);
        if bytes > self.limit || segments > SEGMENTS || !in_time {
            return Err(Fault::PeerPool { bytes, segments, limit: self.limit }.into());
        }
        if len == 0 || !len.is_multiple_of(page_size() as u64) {
            return Err(Fault::Field { field: "segment.len", value: len }.into());
        }
        if self.segments.contains_key(&segment) {
            return Err(Fault::Field { field: "segment.segment", value: segment.into() }.into());
        }
        let Ok(whole) = usize::try_from(len) else {
            return Err(ErrorKind::OutOfMemory { bytes: len }.into());
        };
        self.begin_map(Counting { segment, len: whole, fd, content, done: 0 })
    }

    /// Maps a segment, or begins to count the pages of a long one. The limits hold for it already.
    fn begin_map(&mut self, counting: Counting) -> Result<()> {
        if self.share.is_some() && counting.len as u64 > PART {
            self.counting = Some(counting);
            return Ok(());
        }
        self.attach(counting)
    }

    /// Counts the next part of a segment's pages, and maps the segment after the last one.
    fn count(&mut self, mut counting: Counting) -> Result<()> {
        let end = counting.len.min(counting.done + PART as usize);
        let (fd, part) = (counting.fd.as_fd(), counting.done..end);
        let is_known = match counting.content {
            Content::Frozen => Frozen::count_pages(fd, counting.len, part)?,
            Content::Blocks | Content::Ring => PeerSegment::count_pages(fd, counting.len, part)?,
        };
        counting.done = if is_known { end } else { 0 };
        if is_known && end < counting.len {
            self.counting = Some(counting);
            return Ok(());
        }
        self.attach(counting)
    }

    /// Maps a segment.
    fn attach(&mut self, counting: Counting) -> Result<()> {
        let Counting { segment, len: whole, fd, content, done } = counting;
        let (len, is_whole) = (whole as u64, done == whole);
        let charge = |resource, amount| self.account.charge(resource, amount);
        let mappings = if content == Content::Ring { RING_MAPPINGS } else { 1 };
        let charges = [charge(Resource::Mappings, mappings)?, charge(Resource::MappedBytes, len)?];
        let arrived = match content {
            Content::Frozen => {
                let charges = (charges, charge(Resource::Descriptors, 1)?);
                let frozen = Frozen::attach(fd, whole, is_whole)?;
                frozen.count(charges);
                Arrived::Frozen(FrozenBlock::new(frozen, ()))
            }
            Content::Blocks => {
                let (peer, mapped) = &self.mapped;
                let mapped =
                    mapped.attach(*peer, &fd, (whole, is_whole), self.prefault, charges)?;
                fd.close_mapped();
                Arrived::Pool(Arc::new(PoolSegment { mapped }))
            }
            Content::Ring => {
                let ring = PeerSegment::attach(&fd, (whole, is_whole), 0, self.prefault)?;
                fd.close_mapped();
                ring.mapping().count(charges);
                self.ring = Some(ring.mapping().clone());
                return Ok(());
            }
        };
        self.segments.insert(segment, arrived);
        self.bytes += len;
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A thousand segments that are each unmapped at once take as long as a large one.
        if self.bytes > LARGE as u64
            && let Some(generation) = &self.generation
        {
            discard(std::mem::take(&mut self.segments), generation);
        }
    }
}

/// Receives the next packet of a link, which may be cut short.
///
/// # Errors
///
/// [`ErrorKind::DescriptorLimit`]: it has descriptors, and too many of its user's wait to be closed.
pub(crate) fn receive(socket: &OwnedFd) -> Result<Incoming<PACKET>> {
    if untrusted::are_some_overdrawn() {
        check_overdraft(socket)?;
    }
    socket::receive_cut(socket)
}

/// Refuses the next packet if it has descriptors and too many of its user's wait to be closed. The end of the socket closes
/// them unopened.
#[cold]
fn check_overdraft(socket: &OwnedFd) -> Result<()> {
    if untrusted::is_overdrawn(socket::maker(socket)?.uid) && socket::next_holds_descriptors(socket)
    {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        return Err(ErrorKind::DescriptorLimit { limit: limit.unwrap_or(u64::MAX) }.into());
    }
    Ok(())
}

/// Returns whether there is a packet, and it is another than `left`. What comes after this look may be that one, so a caller
/// that leaves it takes no packet without this look. An impossible packet is another one: taking it reports its fault.
fn is_next_other(socket: &OwnedFd, left: Packet) -> bool {
    let mut bytes = [0; PACKET];
    match socket::peek(socket, &mut bytes) {
        Some(len) => Packet::decode(&bytes[..len]).map_or(true, |packet| packet != left),
        None => false,
    }
}

#[cfg(test)]
mod tests;
