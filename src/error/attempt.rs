//! Answers of operations that do not wait.

use crate::error::{Error, Fault};

/// The reasons why an operation that does not wait sent nothing.
///
/// # Examples
///
/// ```
/// use slipring::error::TrySendError;
/// # use slipring::{Address, Context, Options};
/// # let (context, address) = (Context::with_options(Options::new().ring_capacity(4096))?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut link = context.connect(&address)?;
/// # let far = far.join().unwrap()?;
///
/// let mut sent = 0;
/// loop {
///     match link.sender().try_send(&[7; 500]) {
///         Ok(()) => sent += 1,
///         Err(TrySendError::Full { free, needed }) => break assert!(free < needed),
///         Err(TrySendError::Failed(error)) => return Err(error),
///     }
/// }
/// assert!(sent > 0);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum TrySendError {
    /// There is no room now. Room comes as the receiver receives.
    #[error("no room now: {needed} bytes needed, {free} free")]
    Full {
        /// Bytes that are free.
        free: u64,
        /// Bytes that the message needs.
        needed: u64,
    },
    /// The connection cannot send this message, or has ended.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<Fault> for TrySendError {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault.into())
    }
}

/// The reasons why an operation that does not wait received nothing.
///
/// # Examples
///
/// ```
/// use slipring::error::TryRecvError;
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut link = context.connect(&address)?;
/// # let far = far.join().unwrap()?;
///
/// match link.receiver().try_recv() {
///     Ok(Some(message)) => println!("{} bytes", message.len()),
///     Ok(None) => println!("the peer has finished"),
///     Err(TryRecvError::Empty) => println!("nothing yet"),
///     Err(TryRecvError::Failed(error)) => return Err(error),
/// }
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum TryRecvError {
    /// Nothing has arrived.
    #[error("nothing has arrived")]
    Empty,
    /// The connection ended with an error.
    #[error(transparent)]
    Failed(#[from] Error),
}
