//! A bare ring with one writer and one reader, published by an index: the floor of streams.
//!
//! The leader owns the slots and the head, and the follower owns the tail. Each keeps a copy of the other's index and loads
//! it when the copy says full or empty. The writer fills and publishes each message by itself, and the reader sums it. The
//! reader checks the sum of the batch, and nothing else.
//!
//! ```text
//! leader's segment:    page: head | slot 0 | slot 1 | …
//! follower's segment:  page: tail | answer in the next line
//! ```

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::memory::{Mapping, PAGE};
use crate::payload::{self, FROM_LEADER};

const ANSWER: usize = 64;

/// Returns the numbers of slots to try. The fastest is the floor.
pub fn capacities(bytes: usize) -> Vec<u64> {
    match bytes {
        ..=1024 => vec![64, 256, 1024, 4096, 16384],
        _ => vec![2, 4, 8, 16, 32, 64],
    }
}

/// One side.
pub struct Ring {
    slots: Mapping,
    indices: Mapping,
    bytes: usize,
    capacity: u64,
    /// Messages sent (leader) or received (follower).
    position: u64,
    /// The copy of the peer's index.
    cached: u64,
    batches: u64,
}

impl Ring {
    /// Opens a side.
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let bytes = setup.bytes;
        let most = capacities(bytes).last().map_or(0, |most| *most as usize);
        let (mine, theirs) = setup.segments(PAGE + most * bytes, false)?;
        let (slots, indices) = match setup.role {
            Role::Leader => (mine, theirs),
            Role::Follower => (theirs, mine),
        };
        Ok(Box::new(Ring {
            slots,
            indices,
            bytes,
            capacity: 64,
            position: 0,
            cached: 0,
            batches: 0,
        }))
    }
}

fn slot(position: u64, capacity: u64, bytes: usize) -> std::ops::Range<usize> {
    let start = PAGE + (position & (capacity - 1)) as usize * bytes;
    start..start + bytes
}

impl Exchange for Ring {
    fn tune(&mut self, variant: u64) {
        self.capacity = variant;
    }

    fn lead(&mut self, count: u64) -> Outcome<()> {
        let (capacity, bytes) = (self.capacity, self.bytes);
        let head = self.slots.word(0);
        let tail = self.indices.watch(0);
        // Between batches the ring is empty, so the tail stands at `position`.
        let (mut position, mut cached) = (self.position, self.position);
        for _ in 0..count {
            if position - cached == capacity {
                cached = tail.until(|tail| position - tail < capacity);
            }
            // SAFETY: the reader's tail is past this slot, and the reader reads it only after the store of the head below.
            let buffer = unsafe { self.slots.bytes_mut(slot(position, capacity, bytes)) };
            payload::fill(buffer, payload::seed(position, FROM_LEADER));
            position += 1;
            // Pairs with the fence of `until` in `follow`: the reader sees the filled slot with the head.
            head.store(position, Ordering::Release);
        }
        self.position = position;
        self.batches += 1;
        let batches = self.batches;
        self.indices.watch(ANSWER).until(|answered| answered >= batches);
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let (capacity, bytes) = (self.capacity, self.bytes);
        let tail = self.indices.word(0);
        let head = self.slots.watch(0);
        let (mut position, mut cached) = (self.position, self.cached);
        let (mut sum, mut expected) = (0_u64, 0_u64);
        for _ in 0..count {
            if cached == position {
                cached = head.until(|head| head != position);
            }
            // SAFETY: the head is past this slot, and the writer writes it only after the store of the tail below.
            let buffer = unsafe { self.slots.bytes(slot(position, capacity, bytes)) };
            sum = sum.wrapping_add(payload::sum(buffer));
            expected = expected
                .wrapping_add(payload::expected(bytes, payload::seed(position, FROM_LEADER)));
            position += 1;
            // Pairs with the fence of `until` in `lead`: the slot is read before the writer sees the tail.
            tail.store(position, Ordering::Release);
        }
        (self.position, self.cached) = (position, cached);
        self.batches += 1;
        payload::check(sum, expected, position)?;
        // Pairs with the fence of `until` in `lead`. It publishes the word alone.
        self.indices.word(ANSWER).store(self.batches, Ordering::Release);
        Ok(())
    }
}
