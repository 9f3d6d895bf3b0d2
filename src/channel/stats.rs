//! The counters of a sender and of a receiver. Each counts from the start of its connection.

/// The counters of a [`Sender`](crate::Sender).
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let _far = far.join().unwrap()?;
/// near.send(b"hello")?;
/// near.send(&[7; 100_000])?;
///
/// let sent = near.stats().sent;
/// assert_eq!((sent.messages, sent.bytes, sent.pooled), (2, 100_005, 1));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStats {
    /// Messages that were published.
    pub messages: u64,
    /// Bytes of these messages, and of the tensors.
    pub bytes: u64,
    /// Messages that went through the pool. `messages` counts them, too.
    pub pooled: u64,
    /// Messages that carried tensors. `messages` does not count them.
    pub tensors: u64,
    /// Tokens that were triggered.
    pub triggers: u64,
    /// System calls that woke the receiver.
    pub wakes: u64,
    /// Times that the sender slept because there was no room.
    pub sleeps: u64,
}

/// The counters of a [`Receiver`](crate::Receiver).
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let mut far = far.join().unwrap()?;
/// near.send(b"hello")?;
/// assert_eq!(far.recv()?.as_deref(), Some(&b"hello"[..]));
///
/// let received = far.stats().received;
/// assert_eq!((received.messages, received.bytes, received.pooled), (1, 5, 0));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecvStats {
    /// Messages that were received.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages that came through the pool. `messages` counts them, too.
    pub pooled: u64,
    /// Messages that carried tensors. `messages` does not count them.
    pub tensors: u64,
    /// System calls that woke the sender.
    pub wakes: u64,
    /// Times that the receiver slept because no message had come.
    pub sleeps: u64,
    /// Triggers by the peer whose token is not registered here.
    pub stale_tokens: u64,
}
