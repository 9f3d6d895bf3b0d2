//! The time that an operation waits.
//!
//! 1. A patience of `None` never sleeps.
//! 2. A deadline is a point of the monotonic clock.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, TryRecvError};

/// Returns the point in time after `timeout`, or in a hundred years if the clock cannot hold it.
pub(crate) fn after(timeout: Duration) -> Instant {
    const LIFETIME: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + LIFETIME)
}

/// The time to wait for a message.
#[derive(Clone, Copy)]
pub(crate) enum RecvPatience {
    None,
    Until(Instant),
    Forever,
}

/// The time to wait for room.
#[derive(Clone, Copy)]
pub enum SendPatience {
    /// No time.
    None,
    /// Until then.
    Until(Instant),
    /// The connection's send timeout, from the start of the wait.
    Default,
}

/// The most that a task under tokio does before it lets others run: sends and receives, most of which take less than a
/// microsecond, or slices of a long message.
pub(crate) const TASK_TURN: u32 = 64;

/// The longest time that a peer can hold an operation that does not wait, by packets for it to take.
const MOMENT: Duration = Duration::from_millis(100);

impl RecvPatience {
    /// Checks that time is left for an operation that began at `start`.
    ///
    /// # Errors
    ///
    /// - [`TryRecvError::Empty`]: the operation does not wait.
    /// - [`ErrorKind::TimedOut`]: the deadline has passed.
    pub(crate) fn check(self, start: Instant) -> Result<(), TryRecvError> {
        match self {
            Self::None if start.elapsed() >= MOMENT => Err(TryRecvError::Empty),
            Self::Until(deadline) if Instant::now() >= deadline => {
                Err(Error::from(ErrorKind::TimedOut { after: start.elapsed() }).into())
            }
            _ => Ok(()),
        }
    }
}
