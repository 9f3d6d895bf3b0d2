//! Unit tests of `shm::mapping`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::shm::segment::{create_memfd, fill};
use crate::shm::{Backing, Segment};

#[test]
fn words_outside_of_a_mapping_are_refused() {
    let page = page_size();
    let segment = Segment::create("slipring.test", (page, page), Backing::default()).unwrap();
    let (mapping, _area, _descriptor) = segment.into_parts(64);
    let is_refused = |access: &dyn Fn()| catch_unwind(AssertUnwindSafe(access)).is_err();
    let last = page - 8;
    OwnWords::store(&mapping, last, 7, Ordering::Relaxed);
    assert_eq!(PeerWords::load(&mapping, last), 7);
    for offset in [4, last + 1, last + 7, page, page + 8, usize::MAX - 7] {
        assert!(is_refused(&|| assert_eq!(PeerWords::load(&mapping, offset), 0)), "{offset}");
    }
    let ring = |start: usize, len: usize| OwnWords::ring(&mapping, start, len as u64);
    for (start, len) in [
        (0, 2 * page),
        (page / 2 + 8, page / 2),
        (page, 8),
        (4, 8),
        (0, 24),
        (0, 4),
        (0, 0),
        (usize::MAX - 7, 8),
    ] {
        assert!(is_refused(&|| drop(ring(start, len))), "{len} from {start}");
    }
    // Every position maps to a word of the ring.
    let half = ring(page / 2, page / 2);
    for (position, offset) in [(0, page / 2), (8 + page / 2, page / 2 + 8), (usize::MAX, last)] {
        half.store(position as u64, position as u64, Ordering::Relaxed);
        assert_eq!(PeerWords::load(&mapping, offset), position as u64);
    }
    let word = OwnWords::ring(&mapping, last, 8);
    word.store(64, 9, Ordering::Relaxed);
    assert_eq!(PeerWords::load(&mapping, last), 9);
}

/// Says which thread dropped it, by name.
#[derive(Debug)]
struct Probe(std::sync::mpsc::SyncSender<Option<String>>);

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().name().map(str::to_owned));
    }
}

#[test]
fn a_large_mapping_is_unmapped_on_a_thread_of_its_own_and_counts_until_then() {
    let unmapped_by = |len| {
        let fd = create_memfd("slipring.test").unwrap();
        fill(&fd, len).unwrap();
        let mapping = PeerMapping::map(&fd, len, len).unwrap();
        let (said, heard) = std::sync::mpsc::sync_channel(1);
        mapping.count(Probe(said));
        assert_eq!(mapping.bytes(0, len).byte(len - 1), 0);
        let copy = mapping.clone();
        drop(mapping);
        assert!(heard.try_recv().is_err(), "somebody holds it");
        drop(copy);
        heard.recv_timeout(std::time::Duration::from_secs(60)).unwrap()
    };
    let here = std::thread::current().name().map(str::to_owned);
    assert_eq!(unmapped_by(LARGE), here);
    // Several steps.
    assert_eq!(unmapped_by(STEP * 2 + LARGE).as_deref(), Some("slipring-free"));
    assert_eq!(unmapped_by(2 * LARGE).as_deref(), Some("slipring-free"));
}

#[test]
fn the_mapping_of_a_part_is_unmapped_on_another_thread_if_the_object_is_or_may_become_large() {
    let unmapped_by = |len: usize, is_sealed: bool| {
        let fd = create_memfd("slipring.test").unwrap();
        fill(&fd, len).unwrap();
        if is_sealed {
            rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::GROW).unwrap();
        }
        let mapping = ForeignMapping::map_alone(&fd, 0, 4096, false).unwrap();
        let (said, heard) = std::sync::mpsc::sync_channel(1);
        mapping.view.span.charge.set(Box::new(Probe(said))).unwrap();
        drop((fd, mapping));
        heard.recv_timeout(std::time::Duration::from_secs(60)).unwrap()
    };
    let here = std::thread::current().name().map(str::to_owned);
    assert_eq!(unmapped_by(LARGE, true), here);
    assert_eq!(unmapped_by(2 * LARGE, true).as_deref(), Some("slipring-free"));
    assert_eq!(unmapped_by(LARGE, false).as_deref(), Some("slipring-free"));
}
