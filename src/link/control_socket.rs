//! The receiving side of a link's socket after the handshake: pool segments, descriptors of the user's, and wake-ups.
//!
//! The control socket owns the table of the peer's segments, and notes which half a wake-up has reached.
//!
//! 1. A half reads the socket when a record names an unknown segment, or before an event loop sleeps on the socket.
//!    Both halves may, from two threads, under one lock.
//! 2. One call reads at most [`PACKETS`] packets, so a peer that sends without end does not hold a thread.
//! 3. A wake-up is idempotent: it notes that its half has been woken, however many come. It is never a fault.
//! 4. Bytes and number of a peer's segments have limits, and so has the number of all peers' segments together.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::error::{ErrorKind, Fault, Result};
use crate::handshake::packet::{PACKET, Packet, Reason};
use crate::handshake::socket;
use crate::handshake::socket::{Incoming, Received};
use crate::handshake::untrusted::UntrustedFd;
use crate::link::passed::PassedDescriptors;
use crate::pool::FrozenBlock;
use crate::shm::{Frozen, PeerMapping, PeerSegment, page_size};

/// The most segments of one peer that a side maps. Part of the wire format.
pub(crate) const SEGMENTS: usize = 1024;

/// The most segments of all peers together that this process maps: a quarter of the mappings that a process may have by
/// default (`vm.max_map_count`).
const ALL_SEGMENTS: usize = 16384;

/// Mapped segments, and the frozen ones among them, each of which holds a descriptor.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
static FROZEN: AtomicUsize = AtomicUsize::new(0);

/// The count of one mapping: one of [`ALL_SEGMENTS`], and if frozen one of the descriptors that frozen segments may
/// hold, a quarter of those that this process may open. It lives as long as the mapping.
#[derive(Debug)]
struct Counted {
    frozen: bool,
}

impl Counted {
    fn new(len: u64, frozen: bool) -> Result<Self> {
        let counted = Self { frozen };
        // Its drop subtracts.
        let mapped = MAPPED.fetch_add(1, Ordering::Relaxed);
        let held = FROZEN.fetch_add(usize::from(frozen), Ordering::Relaxed);
        if mapped >= ALL_SEGMENTS {
            return Err(ErrorKind::OutOfMemory { bytes: len }.into());
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = limit.current.unwrap_or(u64::MAX);
        if frozen && held as u64 >= limit / 4 {
            return Err(ErrorKind::DescriptorLimit { limit }.into());
        }
        Ok(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        FROZEN.fetch_sub(usize::from(self.frozen), Ordering::Relaxed);
    }
}

/// A segment of a peer's pool, mapped.
#[derive(Debug)]
pub(crate) struct PoolSegment {
    mapped: PeerSegment,
    _counted: Counted,
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
const PACKETS: u32 = 128;

/// The most bytes of segments that one call maps, in multiples of the limit. Counting the pages of a GiB takes some 10 ms.
const LIMITS: u64 = 4;

/// A half that sleeps without reading the socket lets it be read every so many sleeps. One sleep brings at most three
/// wake-ups: from the peer's receiver, from its drop, and from a thread of the peer's that returns a loan. So they and
/// the packets that no record announces yet are at most [`PACKETS`], which fit into the queue.
const SLEEPS: u32 = PACKETS / 4;

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

#[derive(Debug)]
pub(crate) struct ControlSocket {
    segments: HashMap<u32, Arrived>,
    /// Bytes of all segments.
    bytes: u64,
    limit: u64,
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
}

impl ControlSocket {
    /// Returns a table for `limit` bytes of segments.
    pub(crate) fn new(limit: u64, prefault: bool) -> Self {
        Self {
            segments: HashMap::new(),
            bytes: 0,
            limit,
            window: 0,
            prefault,
            woken: Woken::default(),
            data_left: 0,
            room_left: 0,
            sleeps: 0,
            retires: Arc::default(),
            passed: PassedDescriptors::default(),
        }
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

    /// Sets how many descriptors of the user's may wait.
    pub(crate) fn admit_descriptors(&mut self, limit: usize) {
        self.passed.admit(limit);
    }

    /// Reads the socket if this side admits descriptors of the user's: those that no record ever names would fill its
    /// queue. Returns whether packets may be left.
    pub(crate) fn take_in(&mut self, socket: &OwnedFd) -> Result<bool> {
        if !self.passed.is_open() {
            return Ok(false);
        }
        self.window = 0;
        for _ in 0..PACKETS {
            if !self.take_one(socket)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the user's descriptors that a record names. Reads the socket if they have not come: the peer sends them
    /// before it publishes the record.
    pub(crate) fn descriptors(
        &mut self,
        socket: &OwnedFd,
        first: u64,
        count: usize,
    ) -> Result<Vec<UntrustedFd>> {
        let end = first.saturating_add(count as u64);
        self.window = 0;
        for _ in 0..PACKETS {
            if self.passed.reaches(end) || !self.take_one(socket)? {
                break;
            }
        }
        self.passed.take(first, count)
    }

    /// Takes the next packet. Returns `false` if there is none.
    fn take_one(&mut self, socket: &OwnedFd) -> Result<bool> {
        match socket::receive_cut::<PACKET>(socket)? {
            Incoming::Packet(packet) => self.admit(packet, socket).map(|()| true),
            Incoming::Nothing | Incoming::End => Ok(false),
        }
    }

    #[cold]
    fn arrived(&mut self, socket: &OwnedFd, segment: u32) -> Result<Arrived> {
        for _ in 0..PACKETS {
            if self.segments.contains_key(&segment) || !self.take_one(socket)? {
                break;
            }
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
        self.sleeps = 0;
        self.take(socket)?;
        Ok(self.data_woken())
    }

    /// Takes all packets.
    pub(crate) fn take(&mut self, socket: &OwnedFd) -> Result<()> {
        self.take_until(socket, || false)
    }

    /// Takes packets for a poll for data. The caller may have polled for room just before, so a wake-up for room stays in the
    /// queue, and the packets behind it, until a few polls have [found nothing](Self::found_nothing).
    pub(crate) fn take_for_data(&mut self, socket: &OwnedFd) -> Result<()> {
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
    pub(crate) fn take_for_room(&mut self, socket: &OwnedFd) -> Result<()> {
        self.room_left = LEFT;
        let leaves = self.data_left > 0;
        self.data_left = self.data_left.saturating_sub(1);
        self.take_until(socket, || leaves && !is_next_other(socket, Packet::Wake(Reason::Data)))
    }

    /// Takes packets until there are none, or `stop` returns true.
    fn take_until(&mut self, socket: &OwnedFd, stop: impl Fn() -> bool) -> Result<()> {
        self.window = 0;
        for _ in 0..PACKETS {
            if stop() || !self.take_one(socket)? {
                break;
            }
        }
        Ok(())
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
    fn admit(&mut self, mut packet: Received<PACKET>, socket: &OwnedFd) -> Result<()> {
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
            (Packet::Segment { segment, len, frozen }, Some(fd)) => {
                self.map(segment, len, fd, frozen)
            }
            (Packet::Retire { segment }, _) => {
                self.retires.fetch_add(1, Ordering::Relaxed);
                if let Some(dropped) = self.segments.remove(&segment) {
                    self.bytes -= dropped.len();
                }
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

    fn map(&mut self, segment: u32, len: u64, fd: UntrustedFd, frozen: bool) -> Result<()> {
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
        let counted = Counted::new(len, frozen)?;
        let arrived = if frozen {
            Arrived::Frozen(FrozenBlock::new(Frozen::attach(fd, whole)?, counted))
        } else {
            let mapped = PeerSegment::attach(&fd, whole, whole, self.prefault)?;
            fd.close_mapped();
            Arrived::Pool(Arc::new(PoolSegment { mapped, _counted: counted }))
        };
        self.segments.insert(segment, arrived);
        self.bytes = bytes;
        Ok(())
    }
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
