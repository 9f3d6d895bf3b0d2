//! Models of `link::parts`.

use std::sync::Arc;

use super::*;
use crate::shm::{LoomWords, OwnWords, PeerWords};
use crate::sync::failure_without;
use loom::thread;

/// loom's message about plain memory that is accessed without an order.
const RACE: &str = "Causality violation";

/// Two threads read a held message, and each drops its part. The thread that drops the last one gives the hold back, and
/// frees the slot. The publisher uses the memory anew, and this side holds another message in the slot.
fn parts() {
    loom::model(|| {
        let [holds, memory] = [(); 2].map(|()| LoomWords::new(8));
        memory.store(0, 1, Ordering::Relaxed);
        let slot = Arc::new(Parts::new());
        slot.take();
        holds.store(0, 1, Ordering::Relaxed);
        slot.add();
        let read = {
            let (slot, holds, memory) = (slot.clone(), holds.clone(), memory.clone());
            move || {
                assert_eq!(memory.read(0), 1);
                if slot.drop_one() {
                    holds.store(0, 0, Edge::Return.store());
                    slot.free();
                }
            }
        };
        let reading = [thread::spawn(read.clone()), thread::spawn(read)];
        if slot.is_free() {
            slot.take();
            holds.store(0, 2, Edge::Return.store());
        }
        let held = holds.load(0);
        Edge::Reclaim.acquire();
        if held != 1 {
            memory.store(0, 9, Ordering::Relaxed);
        }
        reading.into_iter().for_each(|reading| reading.join().unwrap());
        assert!(held != 2 || holds.load(0) == 2, "a hold was lost");
    });
}

#[test]
fn the_last_part_gives_a_hold_back() {
    parts();
}

#[test]
fn the_last_part_fails_without_part() {
    assert!(failure_without(Edge::Part, parts).contains(RACE));
}
