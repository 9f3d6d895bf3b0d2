//! Unit tests of `link::registry`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::pool::{Borrower, Holder, LoanLimit, PoolOptions};
use crate::shm::Backing;

const GRACE: Duration = Duration::from_secs(1000);
const BLOCK: usize = 4096;

/// A borrower that returns the first loan when it is asked a second time.
#[derive(Default)]
struct Hesitant {
    was_asked: AtomicBool,
    first: AtomicU64,
}

impl Borrower for Hesitant {
    fn holder(&self) -> Holder {
        Holder { uid: 0, pid: None }
    }

    fn returned(&self, _slot: u32) -> u64 {
        let again = self.was_asked.swap(true, Ordering::Relaxed);
        if again { self.first.load(Ordering::Relaxed) } else { 0 }
    }
}

fn registry() -> LinkRegistry<u64> {
    let options = PoolOptions {
        quota: 1 << 20,
        footprint: 0,
        far_footprint: 0,
        loans: LoanLimit::NONE,
        backing: Backing::default(),
    };
    LinkRegistry::new(Pool::new(options), Some(GRACE))
}

fn lend(registry: &LinkRegistry<u64>, borrower: BorrowerId) -> Option<u64> {
    let mut block = registry.pool.alloc(BLOCK).unwrap().unwrap();
    registry.pool.lend(&mut block, borrower).map(|loan| loan.generation)
}

/// Enters a link whose peer keeps a loan, with a deadline. Returns its number.
fn keep(registry: &LinkRegistry<u64>, uid: u32, pid: u32, now: Instant) -> u64 {
    let borrower = registry.pool.open(Arc::new(Hesitant::default()), 1);
    let number = borrower.number();
    registry.enter(borrower, Holder { uid, pid: Some(pid) }, Arc::new(number));
    lend(registry, borrower).unwrap();
    registry.limit(borrower, now, || usize::MAX);
    number
}

#[test]
fn links_beyond_the_limit_are_taken_from_the_peer_that_has_most_of_them() {
    let (registry, start) = (registry(), Instant::now());
    let after = |nth: u64| start + Duration::from_millis(nth);
    // Users 1 and 2 were first. User 2 has two processes, and as many links as user 1 in all.
    let first = [(1, 10), (1, 10), (2, 20), (2, 21)];
    let kept: Vec<u64> =
        (0..).zip(first).map(|(at, (uid, pid))| keep(&registry, uid, pid, after(at))).collect();
    // User 3 has many more, most of them of one process.
    let other = keep(&registry, 3, 30, after(10));
    let greedy: Vec<u64> = (11..17).map(|at| keep(&registry, 3, 31, after(at))).collect();
    let over = registry.revoke_due(start, 7, |_| true);
    let over: Vec<u64> = over.iter().map(|link| **link).collect();
    assert_eq!(over, greedy[..4], "the earliest of the process that has most");
    // All users are equal then: the earliest of the process that has most.
    let over = registry.revoke_due(start, 4, |_| true);
    let over: Vec<u64> = over.iter().map(|link| **link).collect();
    assert_eq!(over, [greedy[4], kept[0], kept[2]]);
    let over = registry.revoke_due(start + 2 * GRACE, 4, |_| true);
    let over: Vec<u64> = over.iter().map(|link| **link).collect();
    assert_eq!(over, [kept[1], kept[3], other, greedy[5]], "the rest in order");
    assert!(registry.lock().deadlines.first_of_most().is_none());
}

#[test]
fn a_peer_that_ends_its_socket_has_a_deadline_whatever_it_returns_meanwhile() {
    let registry = registry();
    let peer = Arc::new(Hesitant::default());
    let borrower = registry.pool.open(peer.clone(), 2);
    registry.enter(borrower, Holder { uid: 1, pid: None }, Arc::new(1));
    peer.first.store(lend(&registry, borrower).unwrap(), Ordering::Relaxed);
    let now = Instant::now();
    assert!(registry.ended(borrower, &HealthWord::new(), PeerEnd::Cut, now).is_none());
    // A sender that does not know of the end lends on.
    assert!(registry.pool.settle(borrower) == 0 && lend(&registry, borrower).is_some());
    assert_eq!(registry.next_deadline(), Some(now + GRACE));
    registry.revoke_due(now + GRACE, usize::MAX, |_| false);
    assert!(lend(&registry, borrower).is_none(), "its account is closed");
}
