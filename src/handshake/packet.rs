//! The packets on a link's socket, and their checks. No I/O.
//!
//! 1. Every packet is [`PACKET`] bytes long and little-endian; `docs/wire.md` has the bytes.
//! 2. The connecting side sends its Hello first, with the descriptor of its segment. The accepting side answers with
//!    its own Hello and descriptor, or with a Refusal.
//! 3. [`Packet::decode`] checks every field that this side uses, and never panics.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::handshake::layout::{self, Extents};
use crate::handshake::role::{Policy, Role};
use crate::shm::page_size;

/// Descriptors in one packet: `SCM_MAX_FD` of `unix(7)`.
pub(crate) const MOST: usize = 253;

/// Bytes of every packet.
pub(crate) const PACKET: usize = 128;

/// Protocol versions that this side speaks, lowest and highest.
pub(crate) const VERSIONS: (u16, u16) = (1, 1);
/// The version of every link: the only one that this side speaks.
pub(crate) const VERSION: u16 = {
    assert!(VERSIONS.0 == VERSIONS.1);
    VERSIONS.1
};

const MAGIC: [u8; 8] = *b"slipring";

const HELLO: u16 = 1;
const REFUSAL: u16 = 2;
const SEGMENT: u16 = 3;
const RETIRE: u16 = 4;
const WAKE: u16 = 5;
const DESCRIPTORS: u16 = 6;
const TOPIC: u16 = 7;
const ALLOCATION: u16 = 8;
const WITHDRAW: u16 = 9;

/// The roles in a Hello.
const LINK: u32 = 0;
const PUBLISHER: u32 = 1;
const SUBSCRIBER: u32 = 2;

/// The policies in the Hello of a subscriber.
const EVERY: u32 = 1;
const NEWEST: u32 = 2;
const LATEST: u32 = 3;

/// A flag of Hello: its sender issues `membarrier(GLOBAL_EXPEDITED)` before it sleeps.
const ISSUES_MEMBARRIER: u32 = 1;

/// A flag of a segment packet: the segment is sealed against writing.
const FROZEN: u32 = 1;
/// Another one: the segment is the second ring.
const RING: u32 = 2;

/// The `numa_node` of a side that does not know its node.
const NO_NODE: u32 = u32::MAX;

/// Returns the architecture word. Byte 0: bytes of a pointer; byte 1: 1 little-endian, 2 big-endian; byte 2: log2 of
/// the page size; byte 3: log2 of the line that records are rounded to.
pub(crate) fn architecture() -> u32 {
    let endianness = if cfg!(target_endian = "little") { 1 } else { 2 };
    let line = crate::ring::LINE.trailing_zeros();
    size_of::<usize>() as u32 | endianness << 8 | page_size().trailing_zeros() << 16 | line << 24
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    kind: U16,
    zero: U16,
    descriptors: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct HelloBody {
    version_min: U16,
    version_max: U16,
    architecture: U32,
    flags: U32,
    role: U32,
    control_len: U64,
    ring_capacity: U64,
    loan_slots: U32,
    numa_node: U32,
    max_message: U64,
    pool_limit: U64,
    policy: U32,
    depth: U32,
    second_ring: U64,
    zero: [u8; 40],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RefusalBody {
    version_min: U16,
    version_max: U16,
    code: U32,
    zero: [u8; 104],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct SegmentBody {
    segment: U32,
    flags: U32,
    len: U64,
    rest: [u8; 96],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct WakeBody {
    reason: U32,
    rest: [u8; 108],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct DescriptorsBody {
    first: U64,
    rest: [u8; 104],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AllocationBody {
    number: U64,
    len: U64,
    device: [u8; 16],
    rest: [u8; 80],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct TopicBody {
    slots: U32,
    slot_len: U32,
    hold_limit: U32,
    history: U32,
    hold_bytes: U64,
    first: U64,
    rest: [u8; 80],
}

/// What the length of an allocation of a GPU is a multiple of, in bytes, and the longest one.
const GRANULE: u64 = 2 << 20;
const LONGEST_ALLOCATION: u64 = 1 << 48;

/// The longest slot of a topic, in bytes.
pub(crate) const SLOT_LEN: u32 = 1 << 21;

/// The most messages in a publisher's pool that a subscriber may hold.
pub(crate) const HOLDS: u32 = 64;

/// The reason to wake an event loop of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// This side published a record.
    Data = 1,
    /// This side gave room or a loan back.
    Room = 2,
}

/// The terms of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) issues_membarrier: bool,
    /// Bytes of the control section of the segment sent with this Hello. The ring follows it.
    pub(crate) control_len: u64,
    /// Bytes of the ring.
    pub(crate) ring_capacity: u64,
    /// Bytes of the longer ring to which this side may move, or 0.
    pub(crate) second_ring: u64,
    /// Loans that this side can hold at a time.
    pub(crate) loan_slots: u32,
    /// The node of the thread that made this side's segment.
    pub(crate) numa_node: Option<u32>,
    /// The longest message that this side takes, in bytes.
    pub(crate) max_message: u64,
    /// Bytes of the other side's pool that this side maps at most.
    pub(crate) pool_limit: u64,
    /// What this side is.
    pub(crate) role: Role,
}

impl Hello {
    /// Returns the Hello of a side of a broadcast: a ring of one page, and a loan slot for each message that a subscriber may
    /// hold.
    pub(crate) fn of_broadcast(self, role: Role) -> Self {
        let (ring_capacity, loan_slots) = (page_size() as u64, HOLDS);
        let control_len = layout::len(loan_slots);
        Self { ring_capacity, second_ring: 0, loan_slots, control_len, role, ..self }
    }

    /// Returns the sections of the segment that comes with this Hello.
    pub(crate) fn extents(&self) -> Extents {
        Extents {
            control: self.control_len as usize,
            ring: self.ring_capacity,
            second_ring: self.second_ring,
            loan_slots: self.loan_slots,
        }
    }
}

/// What a segment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// The pool's blocks.
    Blocks,
    /// What its maker wrote before it sealed the segment against writing.
    Frozen,
    /// The second ring of its maker.
    Ring,
}

/// A packet, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packet {
    Hello(Hello),
    /// Passes a segment. The number of a ring's is 0.
    Segment {
        segment: u32,
        len: u64,
        content: Content,
    },
    /// Ends the use of a pool segment: no later record names it.
    Retire {
        segment: u32,
    },
    /// Wakes a half that sleeps on its socket.
    Wake(Reason),
    /// Passes descriptors of the user's.
    Descriptors {
        /// The number of the first one.
        first: u64,
        /// How many: 1 to [`MOST`].
        count: u32,
    },
    /// Passes the topic of a publisher to a subscriber.
    Topic(Topic),
    /// Passes an allocation of a GPU.
    Allocation {
        number: u64,
        /// A multiple of 2 MiB, not 0.
        len: u64,
        /// The UUID of the GPU.
        device: [u8; 16],
    },
    /// Ends the use of an allocation: no later record names it.
    Withdraw {
        number: u64,
    },
}

/// The slots of a publisher's topic, and what a subscriber may take of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Topic {
    /// A power of two, 2 to 65536.
    pub(crate) slots: u32,
    /// Bytes of a slot: a power of two, 64 to [`SLOT_LEN`].
    pub(crate) slot_len: u32,
    /// How many messages in the pool the subscriber may hold: 1 to 64.
    pub(crate) hold_limit: u32,
    /// How many messages a late subscriber gets: less than `slots`.
    pub(crate) history: u32,
    /// How many bytes these messages may have, or 0 if any number.
    pub(crate) hold_bytes: u64,
    /// The first message that the subscriber reads, or 0 if the publisher does not say.
    pub(crate) first: u64,
}

impl Packet {
    /// Returns the number of descriptors that travel with this packet.
    pub(crate) fn descriptors(&self) -> usize {
        match self {
            Self::Hello(_) | Self::Segment { .. } | Self::Topic(_) | Self::Allocation { .. } => 1,
            Self::Retire { .. } | Self::Wake(_) | Self::Withdraw { .. } => 0,
            Self::Descriptors { count, .. } => *count as usize,
        }
    }

    /// Returns the fault of a peer that sent this packet where another kind was due.
    pub(crate) fn out_of_place(&self) -> Fault {
        let kind = match self {
            Self::Hello(_) => HELLO,
            Self::Segment { .. } => SEGMENT,
            Self::Retire { .. } => RETIRE,
            Self::Wake(_) => WAKE,
            Self::Descriptors { .. } => DESCRIPTORS,
            Self::Topic(_) => TOPIC,
            Self::Allocation { .. } => ALLOCATION,
            Self::Withdraw { .. } => WITHDRAW,
        };
        Fault::Field { field: "kind", value: kind.into() }
    }

    pub(crate) fn encode(&self) -> [u8; PACKET] {
        match self {
            Self::Hello(hello) => packet(HELLO, 1, hello_body(hello).as_bytes()),
            Self::Segment { segment, len, content } => {
                let flags = match content {
                    Content::Blocks => 0,
                    Content::Frozen => FROZEN,
                    Content::Ring => RING,
                };
                packet(SEGMENT, 1, segment_body(*segment, flags, *len).as_bytes())
            }
            Self::Retire { segment } => packet(RETIRE, 0, segment_body(*segment, 0, 0).as_bytes()),
            Self::Wake(reason) => {
                let body = WakeBody { reason: (*reason as u32).into(), rest: [0; 108] };
                packet(WAKE, 0, body.as_bytes())
            }
            Self::Descriptors { first, count } => {
                let body = DescriptorsBody { first: (*first).into(), rest: [0; 104] };
                packet(DESCRIPTORS, *count, body.as_bytes())
            }
            Self::Topic(topic) => {
                let body = TopicBody {
                    slots: topic.slots.into(),
                    slot_len: topic.slot_len.into(),
                    hold_limit: topic.hold_limit.into(),
                    history: topic.history.into(),
                    hold_bytes: topic.hold_bytes.into(),
                    first: topic.first.into(),
                    rest: [0; 80],
                };
                packet(TOPIC, 1, body.as_bytes())
            }
            Self::Allocation { number, len, device } => {
                packet(ALLOCATION, 1, allocation_body(*number, *len, *device).as_bytes())
            }
            Self::Withdraw { number } => {
                packet(WITHDRAW, 0, allocation_body(*number, 0, [0; 16]).as_bytes())
            }
        }
    }

    /// Checks and returns a packet. The caller compares the number of descriptors that came.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fault`]: a field has an impossible value.
    /// - [`ErrorKind::NoCommonVersion`]: both sides speak different versions.
    /// - [`ErrorKind::NotAdmittedByPeer`], [`ErrorKind::RefusedByPeer`]: the packet is a Refusal.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let length = Fault::PacketLength { len: bytes.len(), expected: PACKET };
        if bytes.len() != PACKET {
            return Err(length.into());
        }
        let (head, body) = Head::read_from_prefix(bytes).map_err(|_| length)?;
        if head.magic != MAGIC {
            return Err(Fault::Magic.into());
        }
        must_be("head.zero", head.zero.get().into(), 0)?;
        let packet = match head.kind.get() {
            HELLO => {
                let body = HelloBody::read_from_bytes(body).map_err(|_| length)?;
                Self::Hello(check_hello(&body)?)
            }
            REFUSAL => {
                let body = RefusalBody::read_from_bytes(body).map_err(|_| length)?;
                return Err(refusal_of(&body));
            }
            SEGMENT => {
                let body = SegmentBody::read_from_bytes(body).map_err(|_| length)?;
                let (segment, flags) = (body.segment.get(), body.flags.get());
                let content = match flags {
                    0 => Content::Blocks,
                    FROZEN => Content::Frozen,
                    RING => Content::Ring,
                    _ => {
                        let (field, value) = ("segment.flags", flags.into());
                        return Err(Fault::Field { field, value }.into());
                    }
                };
                if content == Content::Ring {
                    must_be("segment.segment", segment.into(), 0)?;
                }
                Self::Segment { segment, len: body.len.get(), content }
            }
            RETIRE => {
                let body = SegmentBody::read_from_bytes(body).map_err(|_| length)?;
                Self::Retire { segment: body.segment.get() }
            }
            WAKE => {
                let body = WakeBody::read_from_bytes(body).map_err(|_| length)?;
                match body.reason.get() {
                    1 => Self::Wake(Reason::Data),
                    2 => Self::Wake(Reason::Room),
                    reason => {
                        return Err(
                            Fault::Field { field: "wake.reason", value: reason.into() }.into()
                        );
                    }
                }
            }
            DESCRIPTORS => {
                let body = DescriptorsBody::read_from_bytes(body).map_err(|_| length)?;
                let count = head.descriptors.get();
                if count == 0 || count as usize > MOST {
                    return Err(Fault::Field { field: "descriptors", value: count.into() }.into());
                }
                Self::Descriptors { first: body.first.get(), count }
            }
            TOPIC => {
                let body = TopicBody::read_from_bytes(body).map_err(|_| length)?;
                Self::Topic(check_topic(&body)?)
            }
            ALLOCATION => {
                let body = AllocationBody::read_from_bytes(body).map_err(|_| length)?;
                let (number, len) = (body.number.get(), body.len.get());
                if len == 0 || !len.is_multiple_of(GRANULE) || len > LONGEST_ALLOCATION {
                    return Err(Fault::Field { field: "allocation.len", value: len }.into());
                }
                Self::Allocation { number, len, device: body.device }
            }
            WITHDRAW => {
                let body = AllocationBody::read_from_bytes(body).map_err(|_| length)?;
                Self::Withdraw { number: body.number.get() }
            }
            kind => return Err(Fault::Field { field: "kind", value: kind.into() }.into()),
        };
        must_be("descriptors", head.descriptors.get().into(), packet.descriptors() as u64)?;
        Ok(packet)
    }
}

/// The reasons why this side refuses a connection, with their codes in a Refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The peer policy does not admit the peer.
    NotAdmitted = 1,
    /// The peer's Hello is of no use.
    BadHello = 2,
    /// The peer's segment is of no use.
    BadSegment = 3,
    /// This side has no memory or descriptors left.
    NoResources = 4,
    /// This side publishes, and the peer does not subscribe.
    Publishes = 5,
    /// This side does not publish, and the peer subscribes.
    DoesNotPublish = 6,
    /// The publisher does not admit the subscriber's policy.
    Policy = 7,
    /// The publisher has as many subscribers as it may have.
    Subscribers = 8,
}

/// Returns a Refusal, to send instead of a Hello.
pub(crate) fn refusal(reason: Refusal) -> [u8; PACKET] {
    let body = RefusalBody {
        version_min: VERSIONS.0.into(),
        version_max: VERSIONS.1.into(),
        code: (reason as u32).into(),
        zero: [0; 104],
    };
    packet(REFUSAL, 0, body.as_bytes())
}

fn packet(kind: u16, descriptors: u32, body: &[u8]) -> [u8; PACKET] {
    let head =
        Head { magic: MAGIC, kind: kind.into(), zero: 0.into(), descriptors: descriptors.into() };
    let mut packet = [0; PACKET];
    let (start, rest) = packet.split_at_mut(size_of::<Head>());
    start.copy_from_slice(head.as_bytes());
    rest.copy_from_slice(body);
    packet
}

fn hello_body(hello: &Hello) -> HelloBody {
    let (role, policy, depth) = match hello.role {
        Role::Link => (LINK, 0, 0),
        Role::Publisher => (PUBLISHER, 0, 0),
        Role::Subscriber(Policy::Every) => (SUBSCRIBER, EVERY, 0),
        Role::Subscriber(Policy::Newest(depth)) => (SUBSCRIBER, NEWEST, depth),
        Role::Subscriber(Policy::Latest) => (SUBSCRIBER, LATEST, 0),
    };
    HelloBody {
        version_min: VERSIONS.0.into(),
        version_max: VERSIONS.1.into(),
        architecture: architecture().into(),
        flags: if hello.issues_membarrier { ISSUES_MEMBARRIER } else { 0 }.into(),
        role: role.into(),
        control_len: hello.control_len.into(),
        ring_capacity: hello.ring_capacity.into(),
        loan_slots: hello.loan_slots.into(),
        numa_node: hello.numa_node.unwrap_or(NO_NODE).into(),
        max_message: hello.max_message.into(),
        pool_limit: hello.pool_limit.into(),
        policy: policy.into(),
        depth: depth.into(),
        second_ring: hello.second_ring.into(),
        zero: [0; 40],
    }
}

fn segment_body(segment: u32, flags: u32, len: u64) -> SegmentBody {
    let (segment, flags) = (segment.into(), flags.into());
    SegmentBody { segment, flags, len: len.into(), rest: [0; 96] }
}

fn allocation_body(number: u64, len: u64, device: [u8; 16]) -> AllocationBody {
    AllocationBody { number: number.into(), len: len.into(), device, rest: [0; 80] }
}

fn must_be(field: &'static str, value: u64, must: u64) -> Result<()> {
    if value == must { Ok(()) } else { Err(Fault::Field { field, value }.into()) }
}

fn check_versions(min: U16, max: U16) -> Result<()> {
    let theirs = (min.get(), max.get());
    if theirs.0 > theirs.1 {
        return Err(Fault::Field { field: "version_min", value: theirs.0.into() }.into());
    }
    if VERSIONS.1.min(theirs.1) < VERSIONS.0.max(theirs.0) {
        return Err(ErrorKind::NoCommonVersion { ours: VERSIONS, theirs }.into());
    }
    Ok(())
}

fn refusal_of(body: &RefusalBody) -> Error {
    if let Err(error) = check_versions(body.version_min, body.version_max) {
        return error;
    }
    match body.code.get() {
        code if code == Refusal::NotAdmitted as u32 => ErrorKind::NotAdmittedByPeer.into(),
        code if code == Refusal::Publishes as u32 => {
            ErrorKind::WrongService { publishes: true }.into()
        }
        code if code == Refusal::DoesNotPublish as u32 => {
            ErrorKind::WrongService { publishes: false }.into()
        }
        code if code == Refusal::Policy as u32 => ErrorKind::PolicyRefused.into(),
        code => ErrorKind::RefusedByPeer { code }.into(),
    }
}

fn check_hello(body: &HelloBody) -> Result<Hello> {
    let lie = |field, value| Err(Fault::Field { field, value }.into());
    // Versions come first: the other fields depend on them.
    check_versions(body.version_min, body.version_max)?;
    let (ours, theirs) = (architecture(), body.architecture.get());
    if ours != theirs {
        return Err(Fault::Architecture { ours, theirs }.into());
    }
    let flags = body.flags.get();
    if flags & !ISSUES_MEMBARRIER != 0 {
        return lie("flags", flags.into());
    }
    let capacity = body.ring_capacity.get();
    if !capacity.is_power_of_two()
        || capacity < page_size() as u64
        || capacity > layout::LONGEST_RING
    {
        return lie("ring_capacity", capacity);
    }
    let second = body.second_ring.get();
    let is_longer = second.is_power_of_two() && second > capacity;
    if second != 0 && !(is_longer && second <= layout::LONGEST_RING) {
        return lie("second_ring", second);
    }
    let slots = body.loan_slots.get();
    if slots == 0 || slots > 1 << 16 {
        return lie("loan_slots", slots.into());
    }
    must_be("control_len", body.control_len.get(), layout::len(slots))?;
    let max_message = body.max_message.get();
    if max_message == 0 || max_message > 1 << 40 {
        return lie("max_message", max_message);
    }
    let node = body.numa_node.get();
    if node != NO_NODE && node >= 1024 {
        return lie("numa_node", node.into());
    }
    if body.zero != [0; 40] {
        return lie("hello.zero", 1);
    }
    Ok(Hello {
        issues_membarrier: flags & ISSUES_MEMBARRIER != 0,
        control_len: body.control_len.get(),
        ring_capacity: capacity,
        second_ring: second,
        loan_slots: slots,
        numa_node: (node != NO_NODE).then_some(node),
        max_message,
        pool_limit: body.pool_limit.get(),
        role: check_role(body)?,
    })
}

fn check_role(body: &HelloBody) -> Result<Role> {
    let (policy, depth) = (body.policy.get(), body.depth.get());
    let role = match body.role.get() {
        LINK => Role::Link,
        PUBLISHER => Role::Publisher,
        SUBSCRIBER => Role::Subscriber(match policy {
            EVERY => Policy::Every,
            NEWEST if depth > 0 => return Ok(Role::Subscriber(Policy::Newest(depth))),
            NEWEST => return Err(Fault::Field { field: "depth", value: 0 }.into()),
            LATEST => Policy::Latest,
            _ => return Err(Fault::Field { field: "policy", value: policy.into() }.into()),
        }),
        role => return Err(Fault::Field { field: "role", value: role.into() }.into()),
    };
    if !matches!(role, Role::Subscriber(_)) {
        must_be("policy", policy.into(), 0)?;
    }
    must_be("depth", depth.into(), 0)?;
    Ok(role)
}

fn check_topic(body: &TopicBody) -> Result<Topic> {
    let in_range = |field, value: U32, most: u32, is_power: bool| {
        let value = value.get();
        let is_right = (1..=most).contains(&value) && (!is_power || value.is_power_of_two());
        if is_right { Ok(value) } else { Err(Fault::Field { field, value: value.into() }) }
    };
    let slots = in_range("topic.slots", body.slots, 1 << 16, true)?;
    let slot_len = in_range("topic.slot_len", body.slot_len, SLOT_LEN, true)?;
    let hold_limit = in_range("topic.hold_limit", body.hold_limit, HOLDS, false)?;
    let history = body.history.get();
    if slots < 2 {
        return Err(Fault::Field { field: "topic.slots", value: slots.into() }.into());
    }
    if slot_len < 64 {
        return Err(Fault::Field { field: "topic.slot_len", value: slot_len.into() }.into());
    }
    if history >= slots {
        return Err(Fault::Field { field: "topic.history", value: history.into() }.into());
    }
    let (hold_bytes, first) = (body.hold_bytes.get(), body.first.get());
    Ok(Topic { slots, slot_len, hold_limit, history, hold_bytes, first })
}

#[cfg(test)]
mod tests;
