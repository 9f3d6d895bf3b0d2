//! Times to wait, as C gives them.

use std::time::{Duration, Instant};

use crate::failure::{Answer, Failure};
use crate::status::slipring_status::SLIPRING_INVALID_ARGUMENT;

/// Do not wait.
pub const SLIPRING_NONBLOCK: i64 = 0;

/// Wait as long as it takes. A peer that dies ends the wait.
pub const SLIPRING_FOREVER: i64 = 9223372036854775807;

/// Wait as the options of the context say: to send, SLIPRING_OPTION_SEND_TIMEOUT; to connect,
/// SLIPRING_OPTION_HANDSHAKE_TIMEOUT; to receive or to accept, as long as it takes.
pub const SLIPRING_DEFAULT: i64 = -1;

/// A time to wait.
#[derive(Clone, Copy)]
pub(crate) enum Timeout {
    None,
    Default,
    Forever,
    For(Duration),
}

/// Returns whether [`Timeout::new`] knows this time.
#[inline(always)]
pub(crate) fn is_known(nanoseconds: i64) -> bool {
    nanoseconds >= SLIPRING_DEFAULT
}

impl Timeout {
    #[inline(always)]
    pub(crate) fn new(nanoseconds: i64) -> Answer<Self> {
        match nanoseconds {
            SLIPRING_NONBLOCK => Ok(Self::None),
            SLIPRING_DEFAULT => Ok(Self::Default),
            SLIPRING_FOREVER => Ok(Self::Forever),
            time if time > 0 => Ok(Self::For(Duration::from_nanos(time as u64))),
            _ => Err(Self::refusal()),
        }
    }

    #[cold]
    fn refusal() -> Failure {
        let text =
            "the time to wait is negative: pass nanoseconds, SLIPRING_FOREVER or SLIPRING_DEFAULT";
        Failure::Border(SLIPRING_INVALID_ARGUMENT, text)
    }

    /// Returns when the time is over, if it begins now. It reads the clock.
    #[cold]
    pub(crate) fn deadline(self) -> Instant {
        const LIFETIME: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);
        let now = Instant::now();
        match self {
            Self::None => now,
            Self::For(time) => now.checked_add(time).unwrap_or(now + LIFETIME),
            Self::Default | Self::Forever => now + LIFETIME,
        }
    }
}
