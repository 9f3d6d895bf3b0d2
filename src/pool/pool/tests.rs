//! Unit tests of `pool::pool`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::pool::support::{Peer, lend, other, pool};
use crate::pool::{Holder, Users};

/// A borrower that declares to hold nothing, whatever it has returned.
struct Released;

impl Borrower for Released {
    fn holder(&self) -> Holder {
        Holder { uid: 0, pid: None }
    }

    fn returned(&self, _slot: u32) -> u64 {
        u64::MAX
    }

    fn holds_nothing(&self) -> bool {
        true
    }
}

#[test]
fn what_a_lost_borrower_held_is_told_from_what_it_never_took() {
    let (pool, peer, returns) = pool(1 << 20);
    let (breaks, released) = (other(&pool), pool.open(Arc::new(Released), 1));
    for (id, then) in [(returns, Users::Nobody), (breaks, Users::Lost), (released, Users::Nobody)] {
        let mut block = pool.alloc(64).unwrap().unwrap().share().unwrap();
        let loan = pool.lend_shared(&block, id).unwrap();
        assert_eq!(block.users(), Users::Others);
        if id == returns {
            peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
        }
        pool.close(id);
        assert_eq!(block.users(), then);
    }
}

#[test]
fn a_closed_account_lends_nothing_even_if_its_place_is_taken() {
    let (pool, _peer, id) = pool(1 << 20);
    pool.close(id);
    let next = other(&pool);
    assert_eq!(pool.alloc_for(4096, id).unwrap().unwrap_err(), Lacking::Share);
    assert!(pool.alloc_for(4096, next).unwrap().is_ok());
    pool.close(id);
    assert!(pool.alloc_for(4096, next).unwrap().is_ok());
}

#[test]
fn more_bytes_rotate_while_peers_are_far() {
    let (pool, peer, id) = pool(64 << 20);
    let walk = |rounds: usize| {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..rounds {
            let loan = lend(&pool, id, 256 << 10);
            seen.insert((loan.segment, loan.offset));
            peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
        }
        seen.len()
    };
    assert_eq!(walk(40), 4);
    (0..100).for_each(|_| pool.note_distance(Duration::from_nanos(900)));
    assert_eq!(walk(40), 16);
    (0..100).for_each(|_| pool.note_distance(Duration::from_nanos(60)));
    walk(16);
    assert_eq!(walk(40), 4);
}

#[test]
fn a_distance_is_measured_only_where_the_footprint_depends_on_it() {
    assert!(pool(8 << 20).0.minds_distance(), "as in the test above");
    assert!(!shared_out().minds_distance(), "its footprints are the same");
}

#[test]
fn a_block_comes_back_by_its_generation_only() {
    let (pool, peer, id) = pool(1 << 20);
    let loan = lend(&pool, id, 1 << 20);
    assert!(pool.alloc_for(1 << 20, id).unwrap().is_err(), "the quota is one block");
    for lie in [0, loan.generation + 1, u64::MAX] {
        peer.0[loan.slot as usize].store(lie, Ordering::Relaxed);
        assert!(
            pool.alloc_for(1 << 20, id).unwrap().is_err(),
            "generation {lie} is not the loan's"
        );
    }
    peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
    let again = lend(&pool, id, 1 << 20);
    assert_ne!(again.generation, loan.generation);
    // The old generation, still in its slot, returns nothing.
    assert!(pool.alloc_for(1 << 20, id).unwrap().is_err());
}

#[test]
fn a_closed_account_gives_everything_back() {
    let (pool, _peer, id) = pool(1 << 20);
    lend(&pool, id, 1 << 20);
    pool.close(id);
    assert!(pool.alloc_for(1 << 20, other(&pool)).unwrap().is_ok());
}

#[test]
fn slots_run_out_with_an_answer() {
    let (pool, peer, id) = pool(64 << 20);
    let loans: Vec<Loan> = (0..8).map(|_| lend(&pool, id, 4096)).collect();
    assert_eq!(pool.alloc_for(4096, id).unwrap().unwrap_err(), Lacking::Share);
    peer.0[loans[3].slot as usize].store(loans[3].generation, Ordering::Relaxed);
    assert_eq!(lend(&pool, id, 4096).slot, loans[3].slot);
}

#[test]
fn blocks_rotate_within_the_footprint() {
    let (pool, peer, id) = pool(64 << 20);
    let mut seen = Vec::new();
    for _ in 0..12 {
        let loan = lend(&pool, id, 256 << 10);
        seen.push((loan.segment, loan.offset));
        peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
    }
    // Footprint 1 MiB, blocks of 256 KiB: four places, each the one unused for longest.
    assert_eq!(seen[..4], seen[4..8]);
    assert_eq!(seen[..4], seen[8..]);
    let mut places = seen[..4].to_vec();
    places.dedup();
    assert_eq!(places.len(), 4);
}

#[test]
fn blocks_in_turn_are_no_neighbors() {
    let (pool, peer, id) = pool(64 << 20);
    let turn = || {
        let loan = lend(&pool, id, 128 << 10);
        peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
        loan.offset >> 17
    };
    for _ in 0..3 {
        assert_eq!([(); 8].map(|()| turn()), [0, 2, 4, 6, 1, 3, 5, 7]);
    }
}

#[test]
fn idle_segments_make_room_for_another_class() {
    let (pool, _peer, id) = pool(4 << 20);
    drop(pool.alloc_for(3 << 20, id).unwrap().unwrap());
    lend(&pool, id, 1 << 20);
    assert_eq!(pool.used(), 4 << 20);
    let second = pool.alloc_for(2 << 20, id).unwrap();
    assert!(second.is_ok(), "the idle 3 MiB are dropped for it");
    assert_eq!(pool.used(), 3 << 20);
}

#[test]
fn a_class_rotates_after_segments_of_it_were_dropped() {
    let (pool, peer, id) = pool(64 << 20);
    let give_back =
        |loan: &Loan| peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
    // More than the footprint, in segments of which only the last one stays.
    let loans: Vec<Loan> = (0..8).map(|_| lend(&pool, id, 256 << 10)).collect();
    loans[..7].iter().for_each(give_back);
    pool.trim();
    give_back(&loans[7]);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..12 {
        let loan = lend(&pool, id, 256 << 10);
        seen.insert((loan.segment, loan.offset));
        give_back(&loan);
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_block_that_was_not_lent_is_handed_out_first() {
    let (pool, _peer, id) = pool(64 << 20);
    let home = |block: &Block| block.place().unwrap();
    let first = pool.alloc_for(256 << 10, id).unwrap().unwrap();
    let place = home(&first);
    drop(first);
    assert_eq!(home(&pool.alloc_for(256 << 10, id).unwrap().unwrap()), place);
}

#[test]
fn a_dropped_block_is_free_again() {
    let (pool, _peer, id) = pool(1 << 20);
    for _ in 0..10 {
        let mut block = pool.alloc_for(1 << 20, id).unwrap().unwrap();
        block.bytes_mut().fill(7);
        assert_eq!(block.bytes()[99], 7);
    }
    assert_eq!(pool.trim(), 1 << 20);
}

/// Returns a pool of 8 MiB whose borrowers may hold 3 blocks and 64 KiB.
fn shared_out() -> Pool {
    let loans = LoanLimit { blocks: 3, bytes: 64 << 10, is_right: true };
    let backing = crate::shm::Backing::default();
    Pool::new(PoolOptions { quota: 8 << 20, footprint: 1, far_footprint: 1, loans, backing })
}

fn peer(pool: &Pool) -> (Arc<Peer>, BorrowerId) {
    let peer = Arc::new(Peer((0..8).map(|_| AtomicU64::new(0)).collect()));
    let id = pool.open(peer.clone(), 8);
    (peer, id)
}

#[test]
fn a_borrower_holds_no_more_than_its_share_and_others_get_theirs() {
    let pool = shared_out();
    let ((miser, id), (_other, other)) = (peer(&pool), peer(&pool));
    let first = lend(&pool, id, 32 << 10);
    lend(&pool, id, 32 << 10);
    assert_eq!(pool.alloc_for(1, id).unwrap().unwrap_err(), Lacking::Share, "64 KiB are out");
    assert!(pool.admits(other, 3, 64 << 10));
    lend(&pool, other, 64 << 10);
    miser.0[first.slot as usize].store(first.generation, Ordering::Relaxed);
    assert!(pool.alloc_for(32 << 10, id).unwrap().is_ok(), "32 KiB came back");
    assert_eq!(pool.alloc_for(33 << 10, id).unwrap().unwrap_err(), Lacking::Share);
    for _ in 0..2 {
        lend(&pool, id, 1);
    }
    assert_eq!(pool.alloc_for(1, id).unwrap().unwrap_err(), Lacking::Share, "3 blocks are out");
}

/// A link of process 7 of user 1.
struct Linked(Peer);

impl Borrower for Linked {
    fn returned(&self, slot: u32) -> u64 {
        self.0.returned(slot)
    }

    fn holder(&self) -> Holder {
        Holder { uid: 1, pid: Some(7) }
    }
}

#[test]
fn the_links_of_one_process_leave_something_to_others() {
    let loans = LoanLimit { blocks: 64, bytes: 2 << 20, is_right: true };
    let backing = crate::shm::Backing::default();
    let pool =
        Pool::new(PoolOptions { quota: 8 << 20, footprint: 1, far_footprint: 1, loans, backing });
    let links: Vec<_> = (0..8)
        .map(|_| {
            let link = Linked(Peer((0..64).map(|_| AtomicU64::new(0)).collect()));
            pool.open(Arc::new(link), 64)
        })
        .collect();
    let mut lent = 0;
    for id in links.iter().cycle().take(64) {
        if let Ok(mut block) = pool.alloc_for(256 << 10, *id).unwrap() {
            pool.lend(&mut block, *id).unwrap();
            lent += 1;
        }
    }
    assert_eq!(lent, 16, "half of the quota: two thirds of three quarters");
    let (_other, other) = peer(&pool);
    lend(&pool, other, 1 << 20);
    assert!(links.iter().all(|id| !pool.promise(*id).unwrap().admits(256 << 10)));
}

#[test]
fn a_block_longer_than_the_share_is_lent_to_a_borrower_that_holds_nothing() {
    let pool = shared_out();
    let (peer, id) = peer(&pool);
    let long = lend(&pool, id, 128 << 10);
    assert_eq!(pool.alloc_for(1, id).unwrap().unwrap_err(), Lacking::Share);
    peer.0[long.slot as usize].store(long.generation, Ordering::Relaxed);
    lend(&pool, id, 128 << 10);
    let lacking = pool.alloc_for(16 << 20, id).unwrap().unwrap_err();
    assert!(matches!(lacking, Lacking::Memory(_)), "no return makes room for that");
}

#[test]
fn a_shared_block_counts_for_each_that_holds_it() {
    let pool = shared_out();
    let ((_first, first), (_second, second)) = (peer(&pool), peer(&pool));
    let block = pool.alloc(64 << 10).unwrap().unwrap().share().unwrap();
    for id in [first, second] {
        assert!(pool.lend_shared(&block, id).is_some());
        assert!(!pool.admits(id, 1, 1));
    }
    assert!(!pool.promise(first).unwrap().admits(1));
    let holdings = pool.holdings();
    assert_eq!(holdings.matches("a peer holds 1 blocks, 65536 bytes").count(), 2, "{holdings}");
    pool.close(first);
    assert!(pool.admits(second, 0, 0) && !pool.admits(first, 0, 0));
}

#[test]
fn a_sender_takes_back_old_loans_as_it_goes() {
    let (pool, ..) = pool(1 << 20);
    let peer = Arc::new(Peer((0..64).map(|_| AtomicU64::new(0)).collect()));
    let id = pool.open(peer.clone(), 64);
    let mut shared =
        [0, 1, 2].map(|_| pool.alloc(64).unwrap().unwrap().share().expect("it has memory"));
    let mut promise = pool.promise(id);
    let mut lend = |block: &SharedBlock| {
        let next = promise.take().expect("a slot is free");
        let loan = next.loan(block.place());
        promise = pool.enter_shared(block, id, next, || ());
        loan
    };
    let give_back =
        |loan: Loan| peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
    let [first, second] = [0, 1].map(|at| lend(&shared[at]));
    for _ in 0..16 {
        lend(&shared[2]);
    }
    give_back(second);
    lend(&shared[2]);
    assert_eq!(shared[1].users(), Users::Others, "the oldest loan is open");
    give_back(first);
    assert_eq!(shared[0].users(), Users::Others, "nothing was looked at");
    lend(&shared[2]);
    assert_eq!([shared[0].users(), shared[1].users()], [Users::Nobody; 2]);
    assert_eq!(pool.settle(id), 18, "the others are open");
}

#[test]
fn the_block_of_the_next_tensor_lies_ready_for_whoever_needs_it() {
    const BLOCK: usize = 256 << 10;
    let (pool, peer, id) = pool(4 * BLOCK as u64);
    let mut promise = pool.promise(id);
    let mut hand = || {
        let mut block = pool.alloc(BLOCK).unwrap().unwrap();
        let this = promise.take().unwrap();
        let loan = this.loan(block.place().unwrap());
        promise = pool.enter(&mut block, id, this, || ());
        peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
        (loan.segment, loan.offset)
    };
    let places: Vec<_> = (0..12).map(|_| hand()).collect();
    assert_eq!(places[4..8], places[8..12], "the one unused for longest");
    assert!(pool.loose.take(4096).is_none(), "it is longer");
    let ready = pool.loose.take(BLOCK as u64).expect("it lies ready");
    assert!(!places[9..].contains(&(ready.home.segment, ready.home.offset)));
    assert!(pool.loose.put(ready).is_none());
    // All blocks that there are.
    let others = other(&pool);
    let blocks: Vec<_> = (0..4).map(|_| pool.alloc_for(BLOCK, others).unwrap()).collect();
    assert!(blocks.iter().all(Result::is_ok), "{blocks:?}");
    assert!(pool.loose.take(BLOCK as u64).is_none());
    drop(blocks);
    hand();
    assert!(pool.loose.take(BLOCK as u64).is_some_and(|ready| pool.loose.put(ready).is_none()));
    pool.trim();
    assert_eq!(pool.used(), 0);
}
