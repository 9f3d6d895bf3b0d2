//! The words of a status page, each with 64 bits in native order, by their offsets in bytes.
//!
//! ```text
//!   head   0 magic │ 8 version, bytes of a row │ 16 pid
//! ```
//!
//! ```text
//!   row    0 stamp │ 8 since │ 16 role │ 24 peer │ 32 own │ 40 theirs │ 48 context │ 56 limits
//!         64 bytes of the address │ 72 address, 112 bytes
//!        184 version
//!        256 sender's half   256 messages │ bytes │ wakes │ state │ state since │ whom │ written │ sleeps
//!        320 receiver's half 320 messages │ bytes │ wakes │ state │ state since │ taken │ missed │ sleeps
//!        384 loans           384 count │ bytes │ quota │ used
//!        448 end             448 health │ – │ – │ died │ evicted        of a link
//!                            448 accepted │ refused │ silent            of a listener
//! ```
//!
//! A reader copies the page twice. A row whose first 256 bytes are the same in both copies is whole.

/// The first word of the page: "slipring".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"slipring");
/// The version of this layout. Readers refuse others.
pub(crate) const VERSION: u32 = 2;
/// Bytes of the head, and of a row.
pub(crate) const ROW: usize = 512;
/// The most rows of a page, the spare one included.
pub(crate) const MOST_ROWS: usize = 1 << 16;

/// In the head: [`VERSION`], and [`ROW`] in the upper half.
pub(crate) const HEAD_VERSION: usize = 8;
/// In the head: the process id of the owner, in its own namespace.
pub(crate) const HEAD_PID: usize = 16;

/// 0 for a row without an object; otherwise its [`Kind`](super::Kind) in the low 8 bits, and a number that no other object of the process has.
pub(crate) const STAMP: usize = 0;
/// When the object was made, in nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) const SINCE: usize = 8;
/// The [`Role`](super::Role) of the object's side in the low 8 bits; of a subscriber its policy in bits 8 to 15 (1 every
/// message, 2 the newest, 3 the latest) and the depth of policy 2 in the upper half.
pub(crate) const ROLE: usize = 16;
/// The peer's process id in the low half, 0 if it is not known; its user id in the upper half.
pub(crate) const PEER: usize = 24;
/// The inode of this side's segment, of a topic that of the topic. No two segments that exist have the same.
pub(crate) const OWN: usize = 32;
/// The inode of the peer's segment.
pub(crate) const THEIRS: usize = 40;
/// The number of the context that the object belongs to, within its process.
pub(crate) const CONTEXT: usize = 48;
/// Of a link: the most loans of this side's that the peer may hold. Of a topic: its slots.
pub(crate) const LIMIT: usize = 56;
/// The bytes of the address: 0 if there is none, as over a socket pair.
pub(crate) const ADDRESS_LEN: usize = 64;
/// The address as in `sun_path`: an abstract one starts with a zero byte.
pub(crate) const ADDRESS: usize = 72;
/// The most bytes of an address.
pub(crate) const ADDRESS_MOST: usize = 112;
/// The version of the wire format that both sides of a link speak.
pub(crate) const LINK_VERSION: usize = 184;
/// The bytes of a row that stay as they are while its object lives.
pub(crate) const FACTS: usize = 256;

/// The line of a sender; of a topic that of the publisher.
pub(crate) const SENDER: usize = 256;
/// The line of a receiver.
pub(crate) const RECEIVER: usize = 320;
/// Within such a line: messages that passed, those with tensors included; in a stream up to 15 fewer. Of a subscription: the number of the last message
/// that the subscriber read; of a topic: that of the newest.
pub(crate) const MESSAGES: usize = 0;
/// Bytes of these messages. A sender's alone counts those of tensors.
pub(crate) const BYTES: usize = 8;
/// System calls that woke the other side.
pub(crate) const WAKES: usize = 16;
/// The [`State`](super::State) of the half in the low 8 bits, and what it [waits for](super::Awaited) in bits 8 to 15.
pub(crate) const STATE: usize = 24;
/// When it began to wait for this, or was dropped, in nanoseconds of `CLOCK_MONOTONIC_COARSE`. Waits for the same thing count
/// as one while no message passes.
pub(crate) const STATE_SINCE: usize = 32;
/// Of a topic: for whom the publisher waits, by the inode of the subscriber's segment.
pub(crate) const WHOM: usize = 40;
/// Of a subscription, in the same place: messages that the subscriber took.
pub(crate) const TAKEN: usize = WHOM;
/// Messages that a subscriber missed.
pub(crate) const MISSED: usize = 48;
/// Of a sender of a link, in the same place: the bytes of the ring that it has written since it was made, stored with
/// [`MESSAGES`]; without the feature `metrics` only at its waits and its end.
pub(crate) const WRITTEN: usize = MISSED;
/// Times that the half slept.
pub(crate) const SLEEPS: usize = 56;

/// The line of loans. Its first word: blocks that the peer holds, as far as this side knows.
pub(crate) const LOANS: usize = 384;
/// Within this line: bytes of these blocks; of a pool, those in use.
pub(crate) const LOAN_BYTES: usize = 8;
/// Within this line, of a pool: the most bytes.
pub(crate) const QUOTA: usize = 16;
/// Within this line, of a pool: bytes that count for the quota.
pub(crate) const USED: usize = 24;

/// The line of the end. Its first word: the [`Health`](super::Health) of a link. Of a listener: peers that it accepted.
pub(crate) const END: usize = 448;
/// Within this line, of a listener: peers that it refused.
pub(crate) const REFUSED: usize = 8;
/// Within this line, of a listener: peers that stayed silent.
pub(crate) const SILENT: usize = 16;
/// Within this line, of a link: 1 once the peer's death was told of.
pub(crate) const DIED: usize = 24;
/// Within this line, of a publisher's side: 1 more than the [`Eviction`](crate::error::Eviction), or 0.
pub(crate) const EVICTED: usize = 32;
