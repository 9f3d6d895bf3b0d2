//! The time for which a server waits for the bytes of a body.

use std::time::Duration;

use crate::limits::Limits;

/// The least bytes of a body in a second. Local links are a thousand times as fast.
const MIN_BYTES_PER_SECOND: u64 = 16 << 10;

/// The waits for one body. Bytes that arrive pay for the waits before them, and never for those behind them: a client that
/// has sent much must go on to send.
#[derive(Debug)]
pub(crate) struct Patience {
    stall_timeout: Duration,
    /// The waits that no bytes have paid for.
    unpaid: Duration,
}

impl Patience {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { stall_timeout: limits.stall_timeout, unpaid: Duration::ZERO }
    }

    /// Returns the longest time to wait for the next bytes.
    pub(crate) fn left(&self) -> Duration {
        self.stall_timeout.min(self.stall_timeout.saturating_mul(4).saturating_sub(self.unpaid))
    }

    /// Notes a wait.
    pub(crate) fn wait(&mut self, waited: Duration) {
        self.unpaid = self.unpaid.saturating_add(waited);
    }

    /// Notes bytes that have arrived.
    pub(crate) fn receive(&mut self, bytes: usize) {
        let paid = Duration::from_micros(bytes as u64 * 1_000_000 / MIN_BYTES_PER_SECOND);
        self.unpaid = self.unpaid.saturating_sub(paid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn bytes_pay_for_the_waits_before_them_alone() {
        let mut patience = Patience::new(&Limits::new().stall_timeout(10 * SECOND));
        patience.receive(1 << 30);
        for _ in 0..4 {
            assert_eq!(patience.left(), 10 * SECOND);
            patience.wait(9 * SECOND);
            patience.receive(1);
        }
        assert!(patience.left() <= 4 * SECOND + SECOND / 1000, "{:?}", patience.left());
        patience.wait(4 * SECOND);
        assert!(patience.left() < SECOND / 1000, "{:?}", patience.left());
        patience.receive(6 * MIN_BYTES_PER_SECOND as usize);
        assert!(patience.left() >= 6 * SECOND, "{:?}", patience.left());
        for _ in 0..100 {
            patience.wait(9 * SECOND);
            patience.receive(9 * MIN_BYTES_PER_SECOND as usize);
        }
        assert!(patience.left() >= 6 * SECOND, "a steady client is waited for");
    }
}
