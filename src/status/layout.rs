//! The words of a status page, each with 64 bits in native order, by their offsets in bytes.
//!
//! ```text
//!   head   0 magic │ 8 version, bytes of a row │ 16 pid
//! ```
//!
//! ```text
//!   row    0 stamp │ 8 since │ 16 role │ 24 peer │ 32 own │ 40 theirs │ 48 context │ 56 limits
//!         64 bytes of the address │ 72 address, 112 bytes
//!        256 sender's half   264 messages │ bytes │ wakes │ state │ state since │ whom │ …
//!        320 receiver's half, the same
//!        384 loans           384 count │ bytes │ quota │ used
//!        448 end             448 health
//! ```
//!
//! A reader copies the page twice. A row whose first 256 bytes are the same in both copies is whole.

/// The first word of the page: "slipring".
pub const MAGIC: u64 = u64::from_le_bytes(*b"slipring");
/// The version of this layout. Readers refuse others.
pub const VERSION: u32 = 1;
/// Bytes of the head, and of a row.
pub const ROW: usize = 512;
/// The most rows of a page, the spare one included.
pub const MOST_ROWS: usize = 1 << 16;

/// In the head: [`VERSION`], and [`ROW`] in the upper half.
pub const HEAD_VERSION: usize = 8;
/// In the head: the process id of the owner, in its own namespace.
pub const HEAD_PID: usize = 16;

/// 0 for a row without an object; otherwise its kind in the low 8 bits, and a number that no other object of the process has.
pub const STAMP: usize = 0;
/// When the object was made, in nanoseconds of `CLOCK_MONOTONIC`.
pub const SINCE: usize = 8;
/// The role of the object's side: one of the roles below in the low 8 bits; of a subscriber its policy in bits 8 to 15 (1 every
/// message, 2 the newest, 3 the latest) and the depth of policy 2 in the upper half.
pub const ROLE: usize = 16;
/// The peer's process id in the low half, 0 if it is not known; its user id in the upper half.
pub const PEER: usize = 24;
/// The inode of this side's segment, of a topic that of the topic. No two segments that exist have the same.
pub const OWN: usize = 32;
/// The inode of the peer's segment.
pub const THEIRS: usize = 40;
/// The number of the context that the object belongs to, within its process.
pub const CONTEXT: usize = 48;
/// Of a link: the most loans of this side's that the peer may hold. Of a topic: its slots.
pub const LIMIT: usize = 56;
/// The bytes of the address: 0 if there is none, as over a socket pair.
pub const ADDRESS_LEN: usize = 64;
/// The address as in `sun_path`: an abstract one starts with a zero byte.
pub const ADDRESS: usize = 72;
/// The most bytes of an address.
pub const ADDRESS_MOST: usize = 112;
/// The bytes of a row that stay as they are while its object lives.
pub const FACTS: usize = 256;

/// The kinds of objects, in a [`STAMP`].
pub const LISTENER: u64 = 1;
/// See [`LISTENER`].
pub const LINK: u64 = 2;
/// See [`LISTENER`].
pub const TOPIC: u64 = 3;
/// See [`LISTENER`].
pub const POOL: u64 = 4;

/// The roles of a side, in a [`ROLE`].
pub const CONNECTED: u64 = 1;
/// See [`CONNECTED`].
pub const ACCEPTED: u64 = 2;
/// The publisher's side of a subscription. See [`CONNECTED`].
pub const PUBLISHES: u64 = 3;
/// The subscriber's side. See [`CONNECTED`].
pub const SUBSCRIBES: u64 = 4;

/// The line of a sender; of a topic that of the publisher.
pub const SENDER: usize = 256;
/// The line of a receiver.
pub const RECEIVER: usize = 320;
/// Within such a line: messages that passed, those with tensors included; in a stream up to 15 fewer. Of a subscription: the number of the last message
/// that the subscriber read; of a topic: that of the newest.
pub const MESSAGES: usize = 0;
/// Bytes of these messages. A sender's alone counts those of tensors.
pub const BYTES: usize = 8;
/// System calls that woke the other side.
pub const WAKES: usize = 16;
/// The state of the half: one of those below in the low 8 bits, and what it waits for in bits 8 to 15.
pub const STATE: usize = 24;
/// When it began to wait for this, or was dropped, in nanoseconds of `CLOCK_MONOTONIC_COARSE`. Waits for the same thing count
/// as one while no message passes.
pub const STATE_SINCE: usize = 32;
/// For whom a publisher waits: the inode of the subscriber's segment; otherwise 0.
pub const WHOM: usize = 40;
/// Messages that a subscriber missed.
pub const MISSED: usize = 48;

/// The half runs its user's code, or nobody uses it.
pub const RUNNING: u64 = 0;
/// It polls for what it waits for.
pub const POLLING: u64 = 1;
/// It sleeps on a futex.
pub const PARKED: u64 = 2;
/// A thread sleeps on a descriptor for it.
pub const ARMED: u64 = 3;
/// The half is dropped.
pub const GONE: u64 = 4;

/// The half waits for a message.
pub const FOR_MESSAGE: u64 = 1;
/// Room in the ring, or in the slots of a topic.
pub const FOR_ROOM: u64 = 2;
/// Memory of the pool, or the return of a loan.
pub const FOR_MEMORY: u64 = 3;
/// That a subscriber reads the packets of its socket.
pub const FOR_PACKETS: u64 = 4;

/// The line of loans. Its first word: blocks that the peer holds, as far as this side knows.
pub const LOANS: usize = 384;
/// Within this line: bytes of these blocks; of a pool, those in use.
pub const LOAN_BYTES: usize = 8;
/// Within this line, of a pool: the most bytes.
pub const QUOTA: usize = 16;
/// Within this line, of a pool: bytes that count for the quota.
pub const USED: usize = 24;

/// The line of the end. Its first word: 0 the link is alive, 1 the peer has closed it, 2 the peer's process has ended, 3 the link has failed.
/// Of a listener: peers that it accepted.
pub const END: usize = 448;
/// Within this line, of a listener: peers that it refused.
pub const REFUSED: usize = 8;
/// Within this line, of a listener: peers that stayed silent.
pub const SILENT: usize = 16;
