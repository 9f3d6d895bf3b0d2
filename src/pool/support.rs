//! A pool and borrowers for the pool's tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::{Borrower, BorrowerId, Holder, Loan, LoanLimit, Pool, PoolOptions};
use crate::shm::Backing;

/// A borrower whose returns the test writes.
pub(super) struct Peer(pub(super) Vec<AtomicU64>);

impl Borrower for Peer {
    fn holder(&self) -> Holder {
        // Each is a process of its own.
        Holder { uid: 0, pid: Some(std::ptr::from_ref(self).addr() as u32) }
    }

    fn returned(&self, slot: u32) -> u64 {
        self.0[slot as usize].load(Ordering::Relaxed)
    }
}

/// Returns a pool with a footprint of 1 MiB near and 4 MiB far, and a borrower with 8 slots.
pub(super) fn pool(quota: u64) -> (Pool, Arc<Peer>, BorrowerId) {
    let options = PoolOptions {
        quota,
        footprint: 1 << 20,
        far_footprint: 4 << 20,
        loans: LoanLimit::NONE,
        backing: Backing::default(),
    };
    let pool = Pool::new(options);
    let peer = Arc::new(Peer((0..8).map(|_| AtomicU64::new(0)).collect()));
    let id = pool.open(peer.clone(), 8);
    (pool, peer, id)
}

pub(super) fn lend(pool: &Pool, id: BorrowerId, len: usize) -> Loan {
    let mut block = pool.alloc_for(len, id).unwrap().unwrap();
    pool.lend(&mut block, id).unwrap()
}

pub(super) fn other(pool: &Pool) -> BorrowerId {
    pool.open(Arc::new(Peer(vec![AtomicU64::new(0)])), 1)
}
