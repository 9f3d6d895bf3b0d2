//! Unit tests of `pool::frozen`.

use crate::pool::{LoanLimit, Pool, PoolOptions};
use crate::shm::{Backing, page_size};

fn pool(quota: u64) -> Pool {
    let backing = Backing::default();
    Pool::new(PoolOptions {
        quota,
        loans: LoanLimit::NONE,
        footprint: 1 << 20,
        far_footprint: 4 << 20,
        backing,
    })
}

#[test]
fn frozen_memory_counts_until_its_last_use_here() {
    let pool = pool(1 << 20);
    let mut draft = pool.draft(1 << 20).unwrap().unwrap();
    assert!(pool.draft(1).unwrap().is_err(), "the quota is spent");
    assert!(pool.alloc(1).unwrap().is_err(), "blocks count for it, too");
    draft.bytes_mut().fill(3);
    let frozen = draft.freeze().unwrap();
    assert_eq!(frozen.memory().bytes(5, 2), [3, 3]);
    assert_eq!(pool.used(), 1 << 20);
    drop(frozen);
    assert_eq!(pool.used(), 0);
}

#[test]
fn frozen_memory_keeps_its_number_and_gives_it_to_nobody_else() {
    let pools = [pool(1 << 20), pool(1 << 20)];
    let frozen = pools[0].draft(10).unwrap().unwrap().freeze().unwrap();
    let number = pools[0].number_of(&frozen).unwrap();
    assert_eq!(pools[0].number_of(&frozen).unwrap(), number);
    let (_, len, is_frozen) = pools[0].segment_of(number).unwrap().unwrap();
    assert_eq!((len, is_frozen), (page_size() as u64, true));
    pools[1].number_of(&frozen).unwrap();
    assert!(pools[0].holds(number));
    drop(frozen);
    assert!(!pools[0].holds(number));
    let block = pools[0].alloc(10).unwrap().unwrap();
    assert_ne!(block.segment(), number);
}
