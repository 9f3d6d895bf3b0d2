//! Shared words over loom, so that models run the shipped code.
//!
//! Each word has a value, which loom lets a load see as late as the memory model allows, and a cell in which
//! loom records accesses as plain memory. There are two kinds of loads:
//!
//! - [`PeerWords::load`] reads values: a model that compares them sees stale ones.
//! - [`LoomWords::read`] reads values and, like every store, touches the cell: loom fails if a read and a
//!   store are not ordered. loom executes loads in program order and shows no value from the future, so a
//!   store that comes *too early*, into bytes that another thread still reads, shows here alone.
//!
//! Not modelled: the mirror (a model wraps its positions), words of 32 bits, and bytes.

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use crate::shm::{OwnRing, OwnWords, PeerRing, PeerWords};
use crate::sync::Ordering;

/// A segment of words, all zero. Clones share the memory.
#[derive(Debug, Clone)]
pub(crate) struct LoomWords(Arc<Vec<Word>>);

#[derive(Debug)]
struct Word {
    value: AtomicU64,
    /// The lock only makes the cell `Sync`. loom does not see it.
    touched: Mutex<UnsafeCell<()>>,
}

impl Word {
    fn touch(&self, how: fn(&UnsafeCell<()>)) {
        how(&self.touched.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl LoomWords {
    /// Returns a segment of `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        let word = || Word { value: AtomicU64::new(0), touched: Mutex::default() };
        Self(Arc::new((0..len / 8).map(|_| word()).collect()))
    }

    fn word(&self, offset: usize) -> &Word {
        assert!(offset.is_multiple_of(8), "words are aligned");
        &self.0[offset / 8]
    }

    /// Reads a word as plain memory: every store must be ordered with this read.
    pub(crate) fn read(&self, offset: usize) -> u64 {
        self.word(offset).touch(|cell| cell.with(|_| ()));
        self.load(offset)
    }
}

/// The words of a ring, by position.
#[derive(Debug)]
pub(crate) struct LoomRing {
    words: LoomWords,
    start: usize,
    mask: u64,
}

impl LoomRing {
    fn offset(&self, position: u64) -> usize {
        self.start + (position & self.mask) as usize
    }
}

impl OwnRing for LoomRing {
    fn store(&self, position: u64, value: u64, order: Ordering) {
        self.words.store(self.offset(position), value, order);
    }
}

impl PeerRing for LoomRing {
    fn load(&self, position: u64) -> u64 {
        self.words.load(self.offset(position))
    }
}

impl OwnWords for LoomWords {
    type Ring = LoomRing;

    fn ring(&self, start: usize, len: u64) -> LoomRing {
        LoomRing { words: self.clone(), start, mask: len - 1 }
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).touch(|cell| cell.with_mut(|_| ()));
        self.word(offset).value.store(value, order);
    }

    fn add(&self, offset: usize, value: u64) {
        self.word(offset).value.fetch_add(value, Ordering::Relaxed);
    }
}

impl PeerWords for LoomWords {
    type Ring = LoomRing;

    fn ring(&self, start: usize, len: u64) -> LoomRing {
        OwnWords::ring(self, start, len)
    }

    fn load(&self, offset: usize) -> u64 {
        self.word(offset).value.load(Ordering::Relaxed)
    }
}
