//! Connections that are without a request for too long.
//!
//! They are looked through now and then. A timer for each request costs a wake-up of the runtime's driver, which made a
//! small request take half as long again (`benches/triton`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// The state of one connection: when it was last done with a request, or that it is not.
#[derive(Debug, Clone)]
pub(super) struct Idler {
    made: Instant,
    /// In milliseconds since it was made. `BUSY`: it works.
    since: Arc<AtomicU64>,
}

const BUSY: u64 = u64::MAX;

impl Idler {
    pub(super) fn new() -> Self {
        Self { made: Instant::now(), since: Arc::new(AtomicU64::new(0)) }
    }

    // Relaxed: a time, by which nothing else is read.

    /// A request is there.
    pub(super) fn works(&self) {
        self.since.store(BUSY, Ordering::Relaxed);
    }

    /// The request is answered; what is left is to send the answer.
    pub(super) fn rests(&self) {
        self.since.store(self.made.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn has_rested(&self, longest: Duration) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since != BUSY && self.made.elapsed().saturating_sub(Duration::from_millis(since)) > longest
    }
}

/// All connections of an address.
#[derive(Debug)]
pub(super) struct Idlers {
    longest: Duration,
    watched: Vec<(Idler, AbortHandle)>,
    /// From as many on, those that have ended are forgotten.
    most: usize,
    round: Interval,
}

/// So few are looked through only in their turn.
const FEW: usize = 64;

impl Idlers {
    pub(super) fn new(longest: Duration) -> Self {
        let mut round = tokio::time::interval((longest / 4).max(Duration::from_millis(1)));
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { longest, watched: Vec::new(), most: FEW, round }
    }

    pub(super) fn watch(&mut self, idler: Idler, connection: AbortHandle) {
        if self.watched.len() >= self.most {
            self.watched.retain(|(_, connection)| !connection.is_finished());
            self.most = FEW.max(2 * self.watched.len());
        }
        self.watched.push((idler, connection));
    }

    /// Waits for its turn, and ends those that have rested too long.
    pub(super) async fn look(&mut self) {
        self.round.tick().await;
        let longest = self.longest;
        self.watched.retain(|(idler, connection)| {
            if idler.has_rested(longest) {
                connection.abort();
            }
            !connection.is_finished()
        });
    }
}
