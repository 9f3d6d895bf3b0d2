//! Counters of the two halves of a connection.

/// What a sending half has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStats {
    /// Messages published.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages of these that travelled through the pool.
    pub pooled: u64,
    /// Tensors, or named sets of them, published.
    pub tensors: u64,
    /// Tokens triggered.
    pub triggers: u64,
    /// How often the receiver had to be woken.
    pub wakes: u64,
    /// How often this half went to sleep for want of room.
    pub sleeps: u64,
}

/// What a receiving half has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecvStats {
    /// Messages received.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages of these that travelled through the pool.
    pub pooled: u64,
    /// Tensors, or named sets of them, received.
    pub tensors: u64,
    /// How often the sender had to be woken.
    pub wakes: u64,
    /// How often this half went to sleep for want of messages.
    pub sleeps: u64,
    /// Tokens that the peer triggered and that did nothing here: stale, or invented.
    pub stale_tokens: u64,
}
