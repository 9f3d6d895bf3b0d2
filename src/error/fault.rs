//! What a peer can do wrong.

use crate::error::TensorFault;

/// How a peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A packet on the socket has a wrong length.
    #[error("packet of {len} bytes where {expected} were due")]
    PacketLength {
        /// Bytes that came.
        len: usize,
        /// Bytes that were due.
        expected: usize,
    },
    /// A packet does not start with the magic.
    #[error("packet without the magic")]
    Magic,
    /// A field of a packet has a value that it cannot have.
    #[error("{field} is {value:#x}")]
    Field {
        /// The field's name in `docs/wire.md`.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The peer runs another architecture or page size.
    #[error("architecture word is {theirs:#010x}, this side's is {ours:#010x}")]
    Architecture {
        /// This side's word.
        ours: u32,
        /// The peer's word.
        theirs: u32,
    },
    /// A packet came without credentials.
    #[error("packet without credentials")]
    NoCredentials,
    /// A packet carried another number of descriptors than it said, or than were due.
    #[error("packet with {count} descriptors where {expected} were due")]
    DescriptorCount {
        /// Descriptors that came.
        count: usize,
        /// Descriptors that were due.
        expected: usize,
    },
    /// The kernel cut the packet or its descriptors short.
    #[error("packet or its descriptors were cut short")]
    Truncated,
    /// A descriptor is not what it must be.
    #[error("descriptor is {0}")]
    Descriptor(DescriptorFault),
    /// A ring record's header has a value that it cannot have.
    #[error("record header {header:#018x}")]
    RecordHeader {
        /// The header as it was read.
        header: u64,
    },
    /// A record said that another follows at once, and none did.
    #[error("record after a batch member is missing")]
    RecordMissing,
    /// A record's length cannot be.
    #[error("record of {len} bytes in a ring of {capacity}")]
    RecordLength {
        /// The payload's length in bytes.
        len: u64,
        /// The ring's capacity in bytes.
        capacity: u64,
    },
    /// The reader's position went backwards or past what was written.
    #[error("reader position {position} is outside of {tail}..={head}")]
    Position {
        /// What the peer wrote.
        position: u64,
        /// The last position it had published.
        tail: u64,
        /// What this side has written.
        head: u64,
    },
    /// A parking word has a value that it cannot have.
    #[error("parking word {value:#x}")]
    Parking {
        /// What the peer wrote.
        value: u64,
    },
    /// A packet wakes an event loop of this side more often than it had asked for.
    #[error("wake-up that nobody asked for")]
    UnexpectedWake,
    /// So many tokens in a row came to a side that has handed out none.
    #[error("{count} tokens in a row, where none was handed out")]
    UnexpectedTokens {
        /// Tokens in a row.
        count: u32,
    },
    /// A record names a pool segment that was never sent.
    #[error("pool segment {segment} was never sent")]
    UnknownSegment {
        /// The segment's number.
        segment: u32,
    },
    /// More descriptors wait to be taken than this side holds.
    #[error("{count} descriptors wait to be taken, at most {limit} may")]
    HeldDescriptors {
        /// Descriptors that would wait.
        count: usize,
        /// How many may.
        limit: usize,
    },
    /// A record names descriptors that never came, or were taken before.
    #[error("{count} descriptors from number {first} on are not there")]
    UnknownDescriptors {
        /// The first one's number.
        first: u64,
        /// How many were named.
        count: usize,
    },
    /// A record names a range outside of its pool segment.
    #[error("descriptor claims {len} bytes at {offset}, the segment holds {capacity}")]
    SegmentRange {
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Length of the segment in bytes.
        capacity: u64,
    },
    /// A record names a loan slot outside of the table.
    #[error("loan slot {slot} of {slots}")]
    LoanSlot {
        /// The slot.
        slot: u64,
        /// Slots in the table.
        slots: u64,
    },
    /// A message is longer than this side accepts.
    #[error("message of {len} bytes, this side accepts {max}")]
    MessageLength {
        /// The message's length in bytes.
        len: u64,
        /// What this side accepts, in bytes.
        max: u64,
    },
    /// The peer sent more or larger pool segments than this side accepts.
    #[error("peer's pool would map {bytes} bytes in {segments} segments, over the limit")]
    PeerPool {
        /// Bytes that would be mapped.
        bytes: u64,
        /// Segments that would be mapped.
        segments: usize,
    },
    /// A record's description of its tensors cannot be.
    #[error("tensor: {0}")]
    Tensor(TensorFault),
    /// A response answers a request that was never made.
    #[error("response to request {id}, which was never made")]
    UnknownRequest {
        /// The request's id.
        id: u64,
    },
}

/// What is wrong with a descriptor that a peer sent as shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorFault {
    /// No memfd: it knows no seals, or lives on another filesystem than tmpfs.
    #[error("no memfd on tmpfs")]
    NotMemfd,
    /// Some required seal is missing.
    #[error("sealed with {seals:#x}, {required:#x} are required")]
    Seals {
        /// Its seals, as `F_GET_SEALS` gives them.
        seals: u32,
        /// The seals that must be there.
        required: u32,
    },
    /// It has another size than was said.
    #[error("{size} bytes long where {expected} were due")]
    Size {
        /// Its size in bytes.
        size: u64,
        /// The size that was due.
        expected: u64,
    },
    /// Not all of its blocks are allocated, so touching it could fail.
    #[error("sparse: {allocated} of {size} bytes are allocated")]
    Sparse {
        /// Bytes that are allocated.
        allocated: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// It was not opened for reading.
    #[error("not open for reading")]
    AccessMode,
}
