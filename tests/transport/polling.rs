//! A thread that waits in vain many times stops polling, and sleeps.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::support::Stage;
use crate::support::raw::{Hello, RECEIVER_STATE};
use slipring::options::Spin;
use slipring::{Connection, ErrorKind, Options};

/// The deadline of each wait.
const PATIENCE: Duration = Duration::from_millis(3);

/// The number of waits.
const WAITS: u32 = 100;

/// Returns the processor time of this thread.
fn computed() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Asserts that this thread has computed for less than half of the time after `start`, when its processor time was
/// `before`.
fn assert_mostly_asleep(start: Instant, before: Duration) {
    let (all, watched) = (start.elapsed(), computed() - before);
    assert!(watched < all / 2, "{watched:?} of {all:?}");
}

#[test]
fn deadlines_in_vain_are_slept_through() {
    // Polling lasts longer than the deadline.
    let spin = Spin::Adaptive { max: Duration::from_secs(10) };
    let (mut near, _far) = crate::support::pair(Options::new().spin(spin));
    let (start, before) = (Instant::now(), computed());
    for _ in 0..WAITS {
        let error = near.receiver().recv_deadline(Instant::now() + PATIENCE).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    }
    assert_mostly_asleep(start, before);
}

/// The peer of a receiver that streams issues no fence. A stream of 64 bytes takes half of the time so.
#[test]
fn a_receiver_of_many_messages_is_hot() {
    // A receiver that finds nothing tells its position.
    assert_hot(0, |link| drop(link.receiver().try_recv().unwrap_err()));
}

/// Such a receiver tells its position once in an eighth of the ring.
#[test]
fn a_receiver_whose_ring_is_never_empty_is_hot() {
    assert_hot(1, |_| {});
}

/// Asserts that a receiver is hot after many messages, between which it calls `pause`. The peer is so many messages `ahead`.
fn assert_hot(ahead: usize, pause: impl Fn(&mut Connection)) {
    const HOT: u64 = 4;
    let mut stage = Stage::new(Options::new());
    // It is registered for `membarrier`, and so is this process.
    let (mut link, mut peer) = stage.link_with(Hello { flags: 1, ..Hello::honest() });
    (0..ahead).for_each(|_| peer.say(&[7; 48]));
    for count in 0..4096 {
        peer.say(&[7; 48]);
        assert!(link.receiver().try_recv().unwrap().is_some());
        pause(&mut link);
        if peer.theirs().load(RECEIVER_STATE) == HOT {
            assert!(count >= 512, "hot after {count} messages");
            return;
        }
    }
    if can_interrupt() {
        panic!("the receiver is not hot after 4,096 messages");
    }
    eprintln!("SKIPPED: this kernel, or its sandbox, has no membarrier");
}

/// Returns whether the kernel interrupts the processors of registered processes.
fn can_interrupt() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

#[cfg(feature = "tokio")]
#[test]
fn futures_dropped_in_vain_are_slept_through() {
    use slipring::tokio::AsyncConnection;
    use tokio::runtime::Builder;

    // Polling lasts longer than the timeout.
    let spin = Spin::Adaptive { max: Duration::from_millis(250) };
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let (near, _far) = crate::support::pair(Options::new().spin(spin));
        let mut near = AsyncConnection::new(near).unwrap();
        let (start, before) = (Instant::now(), computed());
        for _ in 0..WAITS {
            tokio::time::timeout(PATIENCE, near.recv()).await.unwrap_err();
        }
        assert_mostly_asleep(start, before);
    });
}
