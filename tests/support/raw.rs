//! A peer without the library: it makes its segment and its packets by hand, as `docs/wire.md`
//! says, and can lie in every byte of them.

#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::thread::futex;

use super::HANG;

/// Words of the control section, in bytes from the segment's start.
pub const POSITION: usize = 0x200;
pub const RECEIVER_STATE: usize = 0x040;
pub const SENDER_STATE: usize = 0x048;
pub const DATA_BELL: usize = 0x080;
pub const ROOM_BELL: usize = 0x088;
pub const FILLED: usize = 0x300;
pub const RETURNS: usize = 0x1000;

/// Packet kinds.
pub const HELLO: u16 = 1;
pub const REFUSAL: u16 = 2;
pub const SEGMENT: u16 = 3;
pub const RETIRE: u16 = 4;
pub const WAKE: u16 = 5;
pub const TOPIC: u16 = 7;
pub const ALLOCATION: u16 = 8;
pub const WITHDRAW: u16 = 9;

/// Record kinds and flags.
pub const MESSAGE: u64 = 1;
pub const REQUEST: u64 = 2;
pub const RESPONSE: u64 = 3;
pub const CLOSE: u64 = 4;
pub const PACKETS: u64 = 6;
pub const MOVED: u64 = 10;
pub const MORE: u64 = 1 << 8;
pub const POOLED: u64 = 1 << 9;
pub const TIGHT: u64 = 1 << 10;
pub const META: u64 = 1 << 11;

/// The seals that every segment needs.
pub const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// A header word.
pub fn header(kind: u64, len: u64) -> u64 {
    kind | len << 32
}

/// The header of a message as an honest writer makes it.
pub fn message(len: u64) -> u64 {
    let tight = if (57..=512).contains(&len) { TIGHT } else { 0 };
    header(MESSAGE | tight, len)
}

pub fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// Every field of a Hello.
#[derive(Debug, Clone, Copy)]
pub struct Hello {
    pub version_min: u16,
    pub version_max: u16,
    pub architecture: u32,
    pub flags: u32,
    /// 0 a link, 1 a publisher, 2 a subscriber.
    pub role: u32,
    pub control_len: u64,
    pub ring_capacity: u64,
    pub loan_slots: u32,
    pub numa_node: u32,
    pub max_message: u64,
    pub pool_limit: u64,
    /// Of a subscriber: 1 every, 2 newest, 3 latest.
    pub policy: u32,
    /// Of a subscriber of the newest messages: how many.
    pub depth: u32,
    /// 0: none.
    pub second_ring: u64,
}

impl Hello {
    /// The Hello of a publisher.
    pub fn publisher() -> Self {
        Self { role: 1, ..Self::honest() }
    }

    /// The Hello of a subscriber with a policy and a depth.
    pub fn subscriber(policy: u32, depth: u32) -> Self {
        Self { role: 2, policy, depth, ..Self::honest() }
    }

    pub fn honest() -> Self {
        let slots = 256;
        Self {
            version_min: 1,
            version_max: 1,
            architecture: 8
                | (if cfg!(target_endian = "little") { 1 } else { 2 }) << 8
                | page().trailing_zeros() << 16
                | 6 << 24,
            flags: 0,
            role: 0,
            control_len: (0x1000 + 8 * u64::from(slots)).next_multiple_of(page()),
            ring_capacity: 64 << 10,
            loan_slots: slots,
            numa_node: u32::MAX,
            max_message: 1 << 30,
            pool_limit: 1 << 32,
            policy: 0,
            depth: 0,
            second_ring: 0,
        }
    }

    pub fn segment_len(&self) -> u64 {
        self.control_len + self.ring_capacity
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = head(HELLO, 1);
        bytes.extend(self.version_min.to_le_bytes());
        bytes.extend(self.version_max.to_le_bytes());
        bytes.extend(self.architecture.to_le_bytes());
        bytes.extend(self.flags.to_le_bytes());
        bytes.extend(self.role.to_le_bytes());
        bytes.extend(self.control_len.to_le_bytes());
        bytes.extend(self.ring_capacity.to_le_bytes());
        bytes.extend(self.loan_slots.to_le_bytes());
        bytes.extend(self.numa_node.to_le_bytes());
        bytes.extend(self.max_message.to_le_bytes());
        bytes.extend(self.pool_limit.to_le_bytes());
        bytes.extend(self.policy.to_le_bytes());
        bytes.extend(self.depth.to_le_bytes());
        bytes.extend(self.second_ring.to_le_bytes());
        bytes.resize(128, 0);
        bytes
    }
}

fn head(kind: u16, descriptors: u32) -> Vec<u8> {
    let mut bytes = b"slipring".to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(descriptors.to_le_bytes());
    bytes
}

pub fn segment_packet(segment: u32, len: u64) -> Vec<u8> {
    let mut bytes = head(SEGMENT, 1);
    bytes.extend(segment.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(len.to_le_bytes());
    bytes.resize(128, 0);
    bytes
}

/// The packet of a second ring.
pub fn ring_packet(len: u64) -> Vec<u8> {
    let mut bytes = segment_packet(0, len);
    bytes[20] = 2;
    bytes
}

pub fn retire_packet(segment: u32) -> Vec<u8> {
    let mut bytes = head(RETIRE, 0);
    bytes.extend(segment.to_le_bytes());
    bytes.resize(128, 0);
    bytes
}

/// The packet of an allocation of a GPU.
pub fn allocation_packet(number: u64, len: u64, device: [u8; 16]) -> Vec<u8> {
    let mut bytes = head(ALLOCATION, 1);
    bytes.extend(number.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend(device);
    bytes.resize(128, 0);
    bytes
}

pub fn withdraw_packet(number: u64) -> Vec<u8> {
    let mut bytes = head(WITHDRAW, 0);
    bytes.extend(number.to_le_bytes());
    bytes.resize(128, 0);
    bytes
}

pub fn topic_packet(slots: u32, slot_len: u32, hold_limit: u32, history: u32) -> Vec<u8> {
    let mut bytes = head(TOPIC, 1);
    for field in [slots, slot_len, hold_limit, history] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.resize(128, 0);
    bytes
}

pub fn wake_packet(reason: u32) -> Vec<u8> {
    let mut bytes = head(WAKE, 0);
    bytes.extend(reason.to_le_bytes());
    bytes.resize(128, 0);
    bytes
}

pub fn refusal_packet(versions: (u16, u16), code: u32) -> Vec<u8> {
    let mut bytes = head(REFUSAL, 0);
    bytes.extend(versions.0.to_le_bytes());
    bytes.extend(versions.1.to_le_bytes());
    bytes.extend(code.to_le_bytes());
    bytes.resize(128, 0);
    bytes
}

/// The code of a Refusal.
pub fn refusal_code(packet: &[u8]) -> Option<u32> {
    let word = |at: usize| u32::from_le_bytes(packet[at..at + 4].try_into().unwrap());
    (packet.len() == 128 && word(8) == u32::from(REFUSAL)).then(|| word(20))
}

/// A memfd as told: how long, whether its blocks are allocated, which seals; and its memory, which
/// must be mapped before it is sealed.
pub fn memfd(len: u64, allocated: bool, seals: SealFlags) -> (OwnedFd, Memory) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("raw", flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    if allocated && len > 0 {
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
    }
    let memory = Memory::map(&fd, len.max(page()) as usize, true);
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    (fd, memory)
}

/// An honest segment.
pub fn segment(len: u64) -> (OwnedFd, Memory) {
    memfd(len, true, SEALS)
}

/// Shared memory, seen as words.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: only atomics are reached through it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn map(fd: impl AsFd, len: usize, writable: bool) -> Self {
        Self::try_map(fd, len, writable).unwrap()
    }

    pub fn try_map(fd: impl AsFd, len: usize, writable: bool) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a null address asks for fresh address space, which overlaps nothing.
        let base =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) };
        Ok(Self { base: NonNull::new(base?.cast()).unwrap(), len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: just checked to lie inside of the mapping.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: aligned, mapped as long as `self`, touched as atomics only.
        unsafe { AtomicU64::from_ptr(at.cast().as_ptr()) }
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        let low = if cfg!(target_endian = "little") { 0 } else { 4 };
        // SAFETY: just checked to lie inside of the mapping.
        let at = unsafe { self.base.add(offset + low) };
        // SAFETY: aligned, mapped as long as `self`, touched as atomics only.
        unsafe { AtomicU32::from_ptr(at.cast().as_ptr()) }
    }

    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Adds to a bell and wakes the thread that sleeps on it.
    pub fn ring(&self, bell: usize) {
        self.word(bell).fetch_add(1, Ordering::Relaxed);
        let _ = futex::wake(self.half(bell), futex::Flags::empty(), u32::MAX >> 1);
    }

    /// Writes bytes at a multiple of 8; clears up to 7 bytes behind.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.store(offset + index * 8, u64::from_ne_bytes(word));
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and words borrow from `self`.
        unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) }.unwrap();
    }
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn patient(socket: OwnedFd) -> OwnedFd {
    for way in [Timeout::Recv, Timeout::Send] {
        rustix::net::sockopt::set_socket_timeout(&socket, way, Some(HANG)).unwrap();
    }
    socket
}

/// A socket that is connected to an abstract name and has said nothing.
pub fn dial(name: &str) -> OwnedFd {
    let socket = patient(socket());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

/// The same, or nothing where the listener's queue is full.
pub fn try_dial(name: &str) -> Option<OwnedFd> {
    let socket = socket();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Some(socket),
        Err(rustix::io::Errno::AGAIN) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A socket that listens on an abstract name.
pub fn listen(name: &str) -> OwnedFd {
    let socket = patient(socket());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 128).unwrap();
    socket
}

/// The next peer of a listening socket.
pub fn accept(listener: &OwnedFd) -> OwnedFd {
    let accept = || rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
    patient(rustix::io::retry_on_intr(accept).unwrap())
}

/// Two connected sockets.
pub fn socketpair() -> (OwnedFd, OwnedFd) {
    let (near, far) = try_socketpair().unwrap();
    (patient(near), patient(far))
}

/// The same, with nothing set.
pub fn try_socketpair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends one packet with any descriptors.
pub fn send(socket: &OwnedFd, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let rights = SendAncillaryMessage::ScmRights(fds);
    let mut space = vec![MaybeUninit::uninit(); rights.size()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(rights));
    }
    // A send with a deadline fails with EINTR if its process is stopped meanwhile.
    let packet = [IoSlice::new(packet)];
    let send = || rustix::net::sendmsg(socket, &packet, &mut control, SendFlags::NOSIGNAL);
    rustix::io::retry_on_intr(send)?;
    Ok(())
}

/// One packet, with its descriptors. `None`: the end.
pub fn receive(socket: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let answer = loop {
        let iov = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, iov, &mut control, flags) {
            Err(Errno::CONNRESET | Errno::INTR) => {}
            other => break other.expect("the other side answers"),
        }
    };
    bytes.truncate(answer.bytes);
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if bytes.is_empty() && fds.is_empty() { None } else { Some((bytes, fds)) }
}

/// A raw peer on a link.
#[derive(Debug)]
pub struct RawPeer {
    pub socket: OwnedFd,
    /// Our segment.
    pub own: Memory,
    /// The other side's, read-only, once [met](Self::meet).
    pub theirs: Option<Memory>,
    pub hello: Hello,
    /// Where our next record goes.
    pub head: u64,
    /// Our second ring, once we have moved there.
    pub second: Option<Memory>,
    /// Pool segments that we have sent.
    pub pool: Vec<(u32, Memory)>,
    /// The state of the loop's sleep that a packet has ended.
    woken: u64,
}

impl RawPeer {
    /// Says an honest Hello for these terms.
    pub fn greet(socket: OwnedFd, hello: Hello) -> Self {
        let (peer, fd) = Self::prepare(socket, hello);
        send(&peer.socket, &hello.encode(), &[fd.as_fd()]).unwrap();
        peer
    }

    /// A peer that has said nothing yet, and the descriptor for its Hello.
    pub fn prepare(socket: OwnedFd, hello: Hello) -> (Self, OwnedFd) {
        let (fd, own) = segment(hello.segment_len());
        let (theirs, second, pool) = (None, None, Vec::new());
        (Self { socket, own, theirs, hello, head: 0, second, pool, woken: 0 }, fd)
    }

    /// Receives the other side's Hello.
    pub fn meet(&mut self) {
        let (packet, fds) = receive(&self.socket).expect("a Hello");
        self.heard(&packet, &fds);
    }

    /// Takes the other side's Hello in.
    pub fn heard(&mut self, packet: &[u8], fds: &[OwnedFd]) {
        assert_eq!(packet[8..10], HELLO.to_le_bytes(), "code {:?}", refusal_code(packet));
        let word = |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().unwrap());
        let len = word(32) + word(40);
        self.theirs = Some(Memory::map(&fds[0], len as usize, false));
    }

    pub fn theirs(&self) -> &Memory {
        self.theirs.as_ref().unwrap()
    }

    /// Our ring, and where a position lies in it.
    fn place(&self, position: u64) -> (&Memory, usize) {
        match &self.second {
            Some(ring) => (ring, position as usize % ring.len()),
            None => {
                let offset = position % self.hello.ring_capacity;
                (&self.own, (self.hello.control_len + offset) as usize)
            }
        }
    }

    fn store(&self, position: u64, word: u64) {
        let (ring, at) = self.place(position);
        ring.store(at, word);
    }

    /// Publishes the record that says that the next one lies in our second ring, and goes on there.
    pub fn move_to(&mut self, ring: Memory) {
        self.publish(header(MOVED, 0), &[]);
        self.head = self.head.next_multiple_of(ring.len() as u64);
        self.second = Some(ring);
    }

    /// Sends an honest second ring.
    pub fn send_ring(&self) -> Memory {
        let (fd, memory) = segment(self.hello.second_ring);
        send(&self.socket, &ring_packet(self.hello.second_ring), &[fd.as_fd()]).unwrap();
        memory
    }

    /// Stores a header word at the head, clears the word after it, and rings.
    pub fn header(&self, word: u64) {
        self.store(self.head, word);
        fence(Ordering::SeqCst);
        self.own.ring(DATA_BELL);
    }

    /// Publishes a record that stands alone. `word` may lie.
    pub fn publish(&mut self, word: u64, payload: &[u8]) {
        let len = word >> 32;
        let tight = word & TIGHT != 0;
        let lead = if len <= 56 || tight { 8 } else { 64 };
        self.write(self.head + lead, payload);
        let unit = if tight || word & MORE != 0 { 8 } else { 64 };
        let next = (self.head + lead + len).next_multiple_of(unit);
        self.store(next, 0);
        self.header(word);
        self.head = next;
    }

    /// Writes bytes into the ring, from a position on that is a multiple of 8.
    pub fn write(&self, position: u64, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let (ring, at) = self.place(position + index as u64 * 8);
            ring.write(at, chunk);
        }
    }

    /// Makes every line of the ring look like a record that nobody has read. The first one shows last.
    pub fn fill_ring(&self, word: u64, payload: &[u8]) {
        assert!(payload.len() <= 56);
        let len = self.second.as_ref().map_or(self.hello.ring_capacity, |ring| ring.len() as u64);
        for line in (0..len / 64).rev() {
            self.write(self.head + 64 * line + 8, payload);
            self.store(self.head + 64 * line, word);
        }
        fence(Ordering::SeqCst);
        self.own.ring(DATA_BELL);
    }

    /// Publishes an honest message.
    pub fn say(&mut self, payload: &[u8]) {
        self.publish(message(payload.len() as u64), payload);
    }

    /// Publishes a record that says that packets wait on the socket.
    pub fn announce(&mut self) {
        self.publish(header(PACKETS, 0), &[]);
    }

    /// Publishes a message in the pool, as described.
    pub fn lend(&mut self, lent: Lent) {
        self.publish(header(MESSAGE | POOLED, 32), &lent.encode());
    }

    /// Sends an honest pool segment.
    pub fn send_segment(&mut self, number: u32, len: u64) {
        let (fd, memory) = segment(len);
        send(&self.socket, &segment_packet(number, len), &[fd.as_fd()]).unwrap();
        self.pool.push((number, memory));
    }

    /// Wakes a loop that sleeps on its socket or is about to, once for each time.
    pub fn wake_loop(&mut self) {
        fence(Ordering::SeqCst);
        let state = self.theirs().load(RECEIVER_STATE);
        if state & 3 == 2 && state != self.woken {
            self.woken = state;
            send(&self.socket, &wake_packet(1), &[]).unwrap();
        }
    }

    /// The same for a loop whose writes wait for room. To be called once.
    pub fn wake_loop_for_room(&mut self) {
        fence(Ordering::SeqCst);
        if self.theirs().load(SENDER_STATE) & 3 == 2
            && let Err(error) = send(&self.socket, &wake_packet(2), &[])
        {
            // A loop that polls may have looked by itself meanwhile, and have ended the link for a lie.
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        }
    }

    /// Says how far we have read.
    pub fn position(&self, position: u64) {
        self.own.store(POSITION, position);
        fence(Ordering::SeqCst);
        self.own.ring(ROOM_BELL);
    }

    /// Returns a loan.
    pub fn give_back(&self, slot: usize, generation: u64) {
        self.own.store(RETURNS + 8 * slot, generation);
        fence(Ordering::SeqCst);
        self.own.ring(ROOM_BELL);
    }
}

/// A pool descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Lent {
    pub segment: u32,
    pub slot: u32,
    pub offset: u64,
    pub len: u64,
    pub generation: u64,
}

impl Lent {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.segment.to_le_bytes().to_vec();
        bytes.extend(self.slot.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes
    }

    /// The descriptor that the other side's ring holds at `position` of its ring, which starts at
    /// byte `data` of its segment.
    pub fn read(theirs: &Memory, data: usize) -> Self {
        let word = |at: usize| theirs.load(data + at);
        Self {
            segment: word(8) as u32,
            slot: (word(8) >> 32) as u32,
            offset: word(16),
            len: word(24),
            generation: word(32),
        }
    }
}
