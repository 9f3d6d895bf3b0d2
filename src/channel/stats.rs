//! The counters of a half, from the start of its connection on.

/// The counters of a [`Sender`](crate::Sender) or of a [`Receiver`](crate::Receiver).
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
/// near.send(&[7; 100_000])?;
/// assert_eq!(far.recv()?.as_deref(), Some(&b"hello"[..]));
///
/// let (sent, received) = (near.stats().sent, far.stats().received);
/// assert_eq!((sent.messages, sent.bytes, sent.pooled), (2, 100_005, 1));
/// assert_eq!((received.messages, received.bytes, received.pooled), (1, 5, 0));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HalfStats {
    /// Messages that the sender published, or that the receiver received.
    pub messages: u64,
    /// Bytes of these messages. A sender adds those of the tensors.
    pub bytes: u64,
    /// Messages that went through the pool. `messages` counts them, too.
    pub pooled: u64,
    /// Messages that carried tensors. `messages` does not count them.
    pub tensors: u64,
    /// Tensors in memory of a GPU in these messages, whose order is kept by events of both processes
    /// ([`Order::Events`](crate::cuda::Order::Events)). 0 of a receiver.
    pub gpu_by_events: u64,
    /// Those whose order is kept by words in the memory. 0 of a receiver.
    pub gpu_by_words: u64,
    /// Those that were written when they were shared. 0 of a receiver.
    pub gpu_synchronized: u64,
    /// Tokens that the sender triggered. 0 of a receiver.
    pub triggers: u64,
    /// Triggers by the peer whose token is not registered here. 0 of a sender.
    pub stale_tokens: u64,
    /// System calls that woke the other side's half.
    pub wakes: u64,
    /// Times that the half slept: a sender because there was no room, a receiver because no message had come.
    pub sleeps: u64,
}
