//! How long an operation waits.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, TryRecvError};

/// The moment after `timeout`, or one that nobody lives to see.
pub(crate) fn after(timeout: Duration) -> Instant {
    const LIFETIME: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + LIFETIME)
}

/// How long to wait for a message.
#[derive(Clone, Copy)]
pub(crate) enum RecvPatience {
    None,
    Until(Instant),
    Forever,
}

/// How long to wait for room.
#[derive(Clone, Copy)]
pub(crate) enum SendPatience {
    None,
    Until(Instant),
    /// The connection's send timeout, taken when waiting begins.
    Default,
}

/// How long whoever does not wait may be kept by a peer that has packets taken.
const MOMENT: Duration = Duration::from_millis(100);

impl RecvPatience {
    /// Whether there is time left for somebody who began to look at `start`.
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
