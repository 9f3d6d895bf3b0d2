//! The ways in which a peer breaks the protocol.

use crate::error::{MetadataFault, TensorFault};

/// The ways in which a peer breaks the protocol. Each ends the peer's own link and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A packet on the socket has a wrong length.
    #[error("packet of {len} bytes, {expected} expected")]
    PacketLength {
        /// Bytes that came.
        len: usize,
        /// Bytes of such a packet.
        expected: usize,
    },
    /// A packet does not start with the magic.
    #[error("packet without the magic")]
    Magic,
    /// A field of a packet has an impossible value.
    #[error("{field} is {value:#x}")]
    Field {
        /// The field's name in `docs/wire.md`.
        field: &'static str,
        /// The value that the peer wrote.
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
    /// A packet carries another number of descriptors than it says or than it needs.
    #[error("packet with {count} descriptors, {expected} expected")]
    DescriptorCount {
        /// Descriptors that came.
        count: usize,
        /// Descriptors of such a packet.
        expected: usize,
    },
    /// The kernel cut the packet or its descriptors short.
    #[error("packet or its descriptors were cut short")]
    Truncated,
    /// A descriptor of memory knows no seals, or lives on another filesystem than tmpfs.
    #[error("descriptor is no memfd on tmpfs")]
    NotMemfd,
    /// A descriptor of memory lacks a required seal.
    #[error("descriptor is sealed with {seals:#x}, {required:#x} are required")]
    Seals {
        /// Its seals, as `F_GET_SEALS` returns them.
        seals: u32,
        /// The required seals.
        required: u32,
    },
    /// A descriptor's memory has another size than the peer said.
    #[error("descriptor is {size} bytes long, {expected} expected")]
    MemorySize {
        /// Its size in bytes.
        size: u64,
        /// The size that the peer said, in bytes.
        expected: u64,
    },
    /// The kernel has not allocated all blocks of a descriptor's memory, so an access can fail.
    #[error("descriptor is sparse: {allocated} of {size} bytes are allocated")]
    Sparse {
        /// Bytes that are allocated.
        allocated: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// A descriptor's memory has blocks behind its end, which take long to free.
    #[error("descriptor has {allocated} bytes allocated, its size allows {most}")]
    Excess {
        /// Bytes that are allocated.
        allocated: u64,
        /// The most bytes that memory of its size may have.
        most: u64,
    },
    /// A descriptor of memory is not open for reading.
    #[error("descriptor is not open for reading")]
    AccessMode,
    /// A publisher has overwritten a message for a subscriber that it has to wait for.
    #[error("message {message} is overwritten, and the publisher had to wait for this subscriber")]
    Overrun {
        /// The number of the message.
        message: u64,
    },
    /// A ring record's header has an impossible value.
    #[error("record header {header:#018x}")]
    RecordHeader {
        /// The header that the peer wrote.
        header: u64,
    },
    /// A record says that another one follows at once, and none does.
    #[error("record after a batch member is missing")]
    RecordMissing,
    /// A record's length is impossible.
    #[error("record of {len} bytes in a ring of {capacity}")]
    RecordLength {
        /// The payload's length in bytes.
        len: u64,
        /// The ring's capacity in bytes.
        capacity: u64,
    },
    /// The peer has ended, and its ring shows more records than it can hold.
    #[error("{len} bytes of records after the end of the peer, its ring holds {capacity}")]
    RecordsAfterEnd {
        /// Bytes of records after the end.
        len: u64,
        /// The ring's capacity in bytes.
        capacity: u64,
    },
    /// The peer's socket has ended, and the ring has told of more packets than came.
    #[error("{records} records told of packets, the socket has ended after {packets} packets")]
    PacketsAfterEnd {
        /// Records that say that packets wait.
        records: u64,
        /// Packets that came.
        packets: u64,
    },
    /// The reader's position went backwards or past the written bytes.
    #[error("reader position {position} is outside of {tail}..={head}")]
    Position {
        /// The position that the peer wrote.
        position: u64,
        /// The last position that it had published.
        tail: u64,
        /// Bytes that this side has written.
        head: u64,
    },
    /// The word that says whether the peer sleeps has an impossible value.
    #[error("sleep word is {value:#x}")]
    Parking {
        /// The value that the peer wrote.
        value: u64,
    },
    /// A side that has handed out no token got tokens.
    #[error("{count} tokens in a row, this side has handed out none")]
    UnexpectedTokens {
        /// Tokens in a row.
        count: u32,
    },
    /// A record names a pool segment that the peer never sent.
    #[error("pool segment {segment} was never sent")]
    UnknownSegment {
        /// The segment's number.
        segment: u32,
    },
    /// More descriptors wait for this side than it holds.
    #[error("{count} descriptors wait for this side, it holds {limit}")]
    HeldDescriptors {
        /// Descriptors that would wait.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A record names descriptors that never came or are taken.
    #[error("{count} descriptors from number {first} on are not there")]
    UnknownDescriptors {
        /// The first descriptor's number.
        first: u64,
        /// Descriptors that the record names.
        count: usize,
    },
    /// A record names an allocation of a GPU that the peer never announced, or has withdrawn.
    #[error("allocation {number} was never announced, or is withdrawn")]
    UnknownAllocation {
        /// The allocation's number.
        number: u64,
    },
    /// The peer announced more allocations of GPUs than this side keeps.
    #[error("the peer announces {count} allocations of GPUs, this side keeps {limit}")]
    PeerAllocations {
        /// Allocations that would be kept.
        count: usize,
        /// The limit.
        limit: usize,
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
    #[error("message of {len} bytes, this side accepts {max} (Options::max_message)")]
    MessageLength {
        /// The message's length in bytes.
        len: u64,
        /// The longest message that this side accepts, in bytes.
        max: u64,
    },
    /// The peer sent more or larger pool segments than this side maps.
    #[error(
        "the peer's pool would map {bytes} bytes in {segments} segments, this side maps {limit} bytes (Options::peer_pool_limit)"
    )]
    PeerPool {
        /// Bytes that would be mapped.
        bytes: u64,
        /// Segments that would be mapped.
        segments: usize,
        /// The limit in bytes.
        limit: u64,
    },
    /// A record has impossible metadata.
    #[error("metadata: {0}")]
    Metadata(MetadataFault),
    /// A record describes an impossible tensor.
    #[error("tensor: {0}")]
    Tensor(TensorFault),
    /// A response names a request that this side never made.
    #[error("response to request {id}, which this side never made")]
    UnknownRequest {
        /// The request's id.
        id: u64,
    },
}

impl Fault {
    /// Returns whether a descriptor is no shared memory of the agreed kind.
    pub(crate) fn is_of_memory(&self) -> bool {
        use Fault::*;
        matches!(
            self,
            NotMemfd
                | Seals { .. }
                | MemorySize { .. }
                | Sparse { .. }
                | Excess { .. }
                | AccessMode
        )
    }
}
