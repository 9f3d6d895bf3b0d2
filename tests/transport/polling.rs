//! Whoever waits in vain, again and again, does not watch for ever.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use slipring::{ErrorKind, Options, Spin};

/// How long each wait may take.
const PATIENCE: Duration = Duration::from_millis(3);

/// How often somebody waits.
const WAITS: u32 = 100;

/// What this thread has computed for.
fn computed() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Less than half of the time since `start`, when this thread had computed for `before`.
fn assert_mostly_asleep(start: Instant, before: Duration) {
    let (all, watched) = (start.elapsed(), computed() - before);
    assert!(watched < all / 2, "{watched:?} of {all:?}");
}

#[test]
fn deadlines_in_vain_are_slept_through() {
    // As a rule it would watch for two seconds.
    let spin = Spin::Adaptive { max: Duration::from_secs(10) };
    let (mut near, _far) = crate::support::pair(Options::new().spin(spin));
    let (start, before) = (Instant::now(), computed());
    for _ in 0..WAITS {
        let error = near.recv_deadline(Instant::now() + PATIENCE).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    }
    assert_mostly_asleep(start, before);
}

#[cfg(feature = "tokio")]
#[test]
fn futures_dropped_in_vain_are_slept_through() {
    use slipring::tokio::Connection;
    use tokio::runtime::Builder;

    // As a rule it would watch for 50 ms.
    let spin = Spin::Adaptive { max: Duration::from_millis(250) };
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let (near, _far) = crate::support::pair(Options::new().spin(spin));
        let mut near = Connection::new(near).unwrap();
        let (start, before) = (Instant::now(), computed());
        for _ in 0..WAITS {
            tokio::time::timeout(PATIENCE, near.recv()).await.unwrap_err();
        }
        assert_mostly_asleep(start, before);
    });
}
