//! What a peer sends on the socket after the handshake: pool segments, and wake-ups.
//!
//! Segments are taken from the socket when a record names one that is not known, or when an event
//! loop of ours is about to sleep on the socket. Both halves of a link may do so, from two threads.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::error::{ErrorKind, Fault, Result};
use crate::handshake::packet::PACKET;
use crate::handshake::packet::Packet;
use crate::handshake::packet::Reason;
use crate::handshake::socket;
use crate::handshake::socket::Incoming;
use crate::handshake::socket::Received;
use crate::handshake::untrusted::UntrustedFd;
use crate::link::passed::PassedDescriptors;
use crate::pool::FrozenBlock;
use crate::shm::{Frozen, PeerMapping, PeerSegment, page_size};

/// Segments of one peer that a side keeps mapped at most. Part of the wire format.
pub(crate) const SEGMENTS: usize = 1024;

/// Segments that all peers of this process together have mapped here at most: a quarter of what the
/// kernel grants a process by default (`vm.max_map_count`).
const ALL_SEGMENTS: usize = 16384;

/// Segments that are mapped now, and those of them that are frozen, each of which holds a descriptor.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
static FROZEN: AtomicUsize = AtomicUsize::new(0);

/// One of [`ALL_SEGMENTS`], and one of the descriptors that peers may have this process hold: a quarter of
/// what it may open. It lives as long as the mapping does, whoever uses that.
#[derive(Debug)]
struct Counted {
    frozen: bool,
}

impl Counted {
    fn new(len: u64, frozen: bool) -> Result<Self> {
        let counted = Self { frozen };
        // Dropped, it counts back.
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

    /// Its length in bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.mapped.len()
    }
}

/// Packets read at a time at most: four times as many as a writer may leave untold of. A peer that
/// sends more keeps this side reading for ever.
const PACKETS: usize = 128;

/// Bytes of segments taken in at a time at most, in multiples of what may be mapped: counting the
/// pages of a GiB takes some 10 ms.
const LIMITS: u64 = 4;

/// Wake-ups that a sleep of the receiving half can bring: from the peer's sender.
pub(crate) const DATA_WAKES: u32 = 1;

/// Wake-ups that a sleep of the sending half can bring: from the peer's receiver, once more when
/// that is dropped, and from whoever returns a loan there.
pub(crate) const ROOM_WAKES: u32 = 3;

/// Wake-ups that may be under way, from sleeps that ended otherwise.
const LATE_WAKES: u32 = 64;

/// Which halves were woken.
#[derive(Debug, Default)]
struct Woken {
    data: bool,
    room: bool,
}

/// So many times somebody who looks for data and finds nothing leaves a wake-up for room on the socket,
/// which keeps it readable: whoever shares the descriptor looks for room in between. Fewer are enough
/// for a loop that looks for both before it sleeps; more would keep one busy that has lost interest.
const LEFT: u32 = 3;

/// Memory of a peer that its records name.
#[derive(Debug, Clone)]
pub(crate) enum Arrived {
    /// Blocks of it are on loan.
    Pool(Arc<PoolSegment>),
    /// Nobody writes it any more.
    Frozen(Arc<FrozenBlock>),
}

impl Arrived {
    /// Its length in bytes.
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
    /// Bytes of the segments that were taken in at a time.
    window: u64,
    prefault: bool,
    /// Wake-ups that may come.
    wakes: u32,
    /// Halves whose wake-ups were taken, by either half, and that have not heard of it yet.
    woken: Woken,
    /// How many more times a wake-up for room is left on the socket.
    room_left: u32,
    /// Segments that were retired, for those who remember one without the table.
    retires: Arc<AtomicU32>,
    passed: PassedDescriptors,
}

impl ControlSocket {
    /// A table for `limit` bytes of segments.
    pub(crate) fn new(limit: u64, prefault: bool) -> Self {
        Self {
            segments: HashMap::new(),
            bytes: 0,
            limit,
            window: 0,
            prefault,
            wakes: 0,
            woken: Woken::default(),
            room_left: 0,
            retires: Arc::default(),
            passed: PassedDescriptors::default(),
        }
    }

    /// Counts the segments that were retired.
    pub(crate) fn retires(&self) -> Arc<AtomicU32> {
        self.retires.clone()
    }

    /// A record's segments are looked for from now on: together they may not be long to take in.
    pub(crate) fn open_window(&mut self) {
        self.window = 0;
    }

    /// The pool segment with this number. Reads the socket if it is not known yet: the peer sends a
    /// segment before it publishes a record that names it.
    #[inline]
    pub(crate) fn segment(&mut self, socket: &OwnedFd, segment: u32) -> Result<Arc<PoolSegment>> {
        match self.arrived(socket, segment)? {
            Arrived::Pool(mapped) => Ok(mapped),
            // Nothing of it is lent.
            Arrived::Frozen(_) => Err(Fault::UnknownSegment { segment }.into()),
        }
    }

    /// The frozen segment with this number, in the same way.
    pub(crate) fn frozen(&mut self, socket: &OwnedFd, segment: u32) -> Result<Arc<FrozenBlock>> {
        match self.arrived(socket, segment)? {
            Arrived::Frozen(frozen) => Ok(frozen),
            Arrived::Pool(_) => Err(Fault::UnknownSegment { segment }.into()),
        }
    }

    /// From now on up to `limit` descriptors of the user's may wait to be taken.
    pub(crate) fn admit_descriptors(&mut self, limit: usize) {
        self.passed.admit(limit);
    }

    /// Where descriptors of the user's are admitted: takes in what has come, since no record may ever name them. True:
    /// more may be there.
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

    /// The user's descriptors that a record names. Reads the socket if they are not known yet: the peer
    /// sends them before it publishes the record.
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

    /// Takes the next packet. `false`: there is none.
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

    /// A half of ours is about to sleep on the socket, which brings so many wake-ups at most.
    pub(crate) fn expect(&mut self, wakes: u32) {
        self.wakes = (self.wakes + wakes).min(LATE_WAKES);
    }

    /// Whether so many wake-ups may be under way that no more may be expected before they are
    /// [taken](Self::take_late).
    pub(crate) fn is_crowded(&self) -> bool {
        self.wakes + DATA_WAKES + ROOM_WAKES > LATE_WAKES
    }

    /// Takes everything that has come. What was expected until now and is still under way is little: a
    /// peer's half sends one wake-up before it looks for the next sleep.
    pub(crate) fn take_late(&mut self, socket: &OwnedFd) -> Result<()> {
        self.take(socket)?;
        self.wakes = self.wakes.min(LATE_WAKES / 2);
        Ok(())
    }

    /// Somebody waits for room until the socket can be read.
    pub(crate) fn want_room(&mut self) {
        self.room_left = LEFT;
    }

    /// Somebody was told that there is no data, and may sleep now.
    pub(crate) fn told_of_nothing(&mut self) {
        self.room_left = self.room_left.saturating_sub(1);
    }

    /// Takes everything that has come on the socket.
    pub(crate) fn take(&mut self, socket: &OwnedFd) -> Result<()> {
        self.take_until(socket, || false)
    }

    /// As [`take`](Self::take), for somebody who looks for data, while another may wait for the same
    /// socket to be readable for room: leaves a wake-up for that where it is, a few times.
    pub(crate) fn take_for_data(&mut self, socket: &OwnedFd) -> Result<()> {
        if self.room_left == 0 {
            return self.take(socket);
        }
        self.take_until(socket, || !is_next(socket, |packet| packet != Packet::Wake(Reason::Room)))
    }

    /// As [`take`](Self::take), for somebody who looks for room: leaves a wake-up for data, and what
    /// comes behind it, where they are.
    pub(crate) fn take_for_room(&mut self, socket: &OwnedFd) -> Result<()> {
        self.take_until(socket, || !is_next(socket, |packet| packet != Packet::Wake(Reason::Data)))
    }

    /// Takes packets until there are none, or `stop` says so.
    fn take_until(&mut self, socket: &OwnedFd, mut stop: impl FnMut() -> bool) -> Result<()> {
        self.window = 0;
        for _ in 0..PACKETS {
            if stop() || !self.take_one(socket)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether a wake-up for data was taken since this was asked last.
    pub(crate) fn data_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken.data)
    }

    /// The same, without taking note of it.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_data_woken(&self) -> bool {
        self.woken.data
    }

    /// The same of a wake-up for room.
    pub(crate) fn room_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken.room)
    }

    /// Takes in one packet.
    fn admit(&mut self, mut packet: Received<PACKET>, socket: &OwnedFd) -> Result<()> {
        let whole = packet.is_whole(socket);
        let judged = Packet::decode(&packet.bytes[..packet.len]);
        if let (Ok(Packet::Descriptors { first, count }), Err(error)) = (&judged, &whole)
            && matches!(error.kind(), ErrorKind::DescriptorLimit { .. })
        {
            // Whoever asks for those that are missing hears of it.
            return Ok(self.passed.add(*first, *count as usize, packet.descriptors)?);
        }
        whole?;
        let judged = judged?;
        let (count, expected) = (packet.descriptors.len(), judged.descriptors());
        if count != expected {
            return Err(Fault::DescriptorCount { count, expected }.into());
        }
        if let Packet::Descriptors { first, .. } = judged
            && self.passed.is_open()
        {
            return Ok(self.passed.add(first, count, packet.descriptors)?);
        }
        match (judged, packet.descriptors.pop()) {
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
                self.wakes = self.wakes.checked_sub(1).ok_or(Fault::UnexpectedWake)?;
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
            Arrived::Frozen(FrozenBlock::foreign(Frozen::attach(fd, whole)?, counted))
        } else {
            let mapped = PeerSegment::attach(fd, whole, whole, self.prefault)?;
            Arrived::Pool(Arc::new(PoolSegment { mapped, _counted: counted }))
        };
        self.segments.insert(segment, arrived);
        self.bytes = bytes;
        Ok(())
    }
}

/// Whether there is a packet, which stays where it is, and it is one to take. One that cannot be is
/// taken, too: that tells what is wrong with it.
fn is_next(socket: &OwnedFd, take: impl Fn(Packet) -> bool) -> bool {
    let mut bytes = [0; PACKET];
    match socket::peek(socket, &mut bytes) {
        Some(len) => Packet::decode(&bytes[..len]).map_or(true, take),
        None => false,
    }
}
