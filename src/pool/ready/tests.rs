//! Unit tests of `pool::ready`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::*;
use crate::pool::block::Block;
use crate::pool::limits::Lacking;
use crate::pool::loans::{BorrowerId, Loan, Promise};
use crate::pool::pool::Pool;
use crate::pool::support::{Peer, other, pool};

/// A quarter of the footprint of the tests' pool.
const BLOCK: usize = 256 << 10;

/// The pool's calls of a sending half.
struct Lending {
    pool: Pool,
    id: BorrowerId,
    ready: Ready,
    promise: Option<Promise>,
    prepared: Option<Prepared>,
    block: Block,
    /// Loans whose block was ready.
    were_ready: usize,
}

impl Lending {
    fn new((pool, id): (Pool, BorrowerId)) -> Self {
        let (ready, promise) = (pool.ready(id).unwrap(), pool.promise(id));
        let block = Block::empty();
        Self { pool, id, ready, promise, prepared: None, block, were_ready: 0 }
    }

    /// Takes the ready block if it serves `len` bytes.
    fn take(&mut self, len: usize) -> bool {
        let prepared = self.prepared.take().filter(|prepared| prepared.is_for(len));
        prepared.is_some_and(|prepared| self.block.take_ready(&self.ready, prepared, len))
    }

    fn lend(&mut self, len: usize) -> Loan {
        if self.take(len) {
            self.were_ready += 1;
        } else {
            self.block = self.pool.alloc_for(len, self.id).unwrap().unwrap();
        }
        self.block.bytes_mut().fill(1);
        let promise = self.promise.take().unwrap();
        let loan = promise.loan(self.block.place().unwrap());
        (self.promise, self.prepared) =
            self.pool.enter_and_prepare(&mut self.block, self.id, promise, || ());
        loan
    }
}

fn lending(quota: u64) -> (Lending, Arc<Peer>) {
    let (pool, peer, id) = pool(quota);
    (Lending::new((pool, id)), peer)
}

fn give_back(peer: &Peer, loan: &Loan) {
    peer.0[loan.slot as usize].store(loan.generation, Ordering::Relaxed);
}

#[test]
fn loans_that_come_back_are_followed_by_blocks_that_lie_ready() {
    let (mut lending, peer) = lending(64 << 20);
    let mut places = Vec::new();
    for _ in 0..40 {
        let loan = lending.lend(BLOCK);
        places.push((loan.segment, loan.offset));
        give_back(&peer, &loan);
    }
    // Four blocks rotate: all are ready but the first one, and those whose segments had to be made.
    assert!(lending.were_ready >= 35, "{}", lending.were_ready);
    assert_eq!(places[20..24], places[24..28], "the one unused for longest");
    assert_eq!(lending.pool.used(), 1 << 20);
}

#[test]
fn a_block_lies_ready_for_messages_of_its_class() {
    let (mut lending, peer) = lending(64 << 20);
    for _ in 0..4 {
        for len in [4096, 4096, 8192, 8192, BLOCK] {
            let loan = lending.lend(len);
            give_back(&peer, &loan);
        }
    }
    assert!(lending.were_ready > 0);
    // No class has lost a block.
    lending.pool.trim();
    assert_eq!(lending.pool.used(), 0);
}

#[test]
fn what_lies_ready_is_there_for_others_who_need_it() {
    let peers_are = |pool: &Pool, nanos| {
        (0..100).for_each(|_| pool.note_distance(Duration::from_nanos(nanos)));
    };
    // All blocks that there are: as many as rotate near, and more, once far peers have become near.
    for blocks in [4, 8] {
        let (mut lending, peer) = lending(blocks * BLOCK as u64);
        peers_are(&lending.pool, 900);
        let loans: Vec<Loan> = (1..blocks).map(|_| lending.lend(BLOCK)).collect();
        assert!(lending.prepared.is_some(), "the last one");
        peers_are(&lending.pool, 60);
        let others = other(&lending.pool);
        let block = lending.pool.alloc_for(BLOCK, others).unwrap();
        assert!(block.is_ok(), "{block:?}");
        assert!(!lending.take(BLOCK));
        let none = lending.pool.alloc_for(BLOCK, others).unwrap().unwrap_err();
        assert!(matches!(none, Lacking::Memory(_)));
        // Another class takes it, too.
        drop(block);
        loans.iter().for_each(|loan| give_back(&peer, loan));
        let loan = lending.lend(BLOCK);
        assert!(lending.prepared.is_some());
        give_back(&peer, &loan);
        assert!(lending.pool.alloc_for(4 * BLOCK, others).unwrap().is_ok());
    }
}

#[test]
fn what_lies_ready_goes_with_a_trim_and_with_its_account() {
    for closes in [false, true] {
        let (mut lending, peer) = lending(64 << 20);
        for _ in 0..8 {
            let loan = lending.lend(BLOCK);
            give_back(&peer, &loan);
        }
        if closes {
            lending.pool.close(lending.id);
        }
        lending.pool.trim();
        assert_eq!(lending.pool.used(), 0);
        assert!(!lending.take(BLOCK));
    }
}

#[test]
fn nothing_lies_ready_by_a_lie_or_behind_a_loan_that_is_kept() {
    for lie in [0, 2, u64::MAX] {
        let (mut lending, peer) = lending(4 * BLOCK as u64);
        let loans = [(); 3].map(|()| lending.lend(BLOCK));
        peer.0[loans[0].slot as usize].store(lie, Ordering::Relaxed);
        give_back(&peer, &loans[1]);
        let loan = lending.lend(BLOCK);
        assert!(lending.prepared.is_none(), "generation {lie} is not the loan's");
        // The pool finds loans behind the open one when no other block is left.
        give_back(&peer, &loan);
        lending.lend(BLOCK);
        assert!(lending.prepared.is_some());
        let ready = lending.ready.take().unwrap().home;
        assert_ne!((ready.segment, ready.offset), (loans[0].segment, loans[0].offset));
    }
}
