//! Unit tests of `shm::mapped_segments`.

use std::sync::Arc;

use super::*;
use crate::error::ErrorKind;
use crate::shm::{Backing, Segment, page_size};

const PEER: Process = (1000, Some(7));
const OTHER: Process = (1000, Some(8));

fn segment() -> Segment {
    Segment::create("slipring.test", (page_size(), page_size()), Backing::default()).unwrap()
}

fn attach(mapped: &MappedSegments, peer: Process, segment: &Segment) -> (PeerSegment, Arc<()>) {
    let charge = Arc::new(());
    let len = (page_size(), false);
    (mapped.attach(peer, segment.fd(), len, false, charge.clone()).unwrap(), charge)
}

fn address(segment: &PeerSegment) -> *const u8 {
    segment.mapping().bytes(0, 8).as_ptr()
}

#[test]
fn links_to_one_process_share_a_mapping_and_links_to_two_do_not() {
    let (mapped, mine) = (MappedSegments::default(), segment());
    let [first, second, other] = [PEER, PEER, OTHER].map(|peer| attach(&mapped, peer, &mine).0);
    assert_eq!(address(&first), address(&second));
    assert_ne!(address(&first), address(&other));
    let another = attach(&mapped, PEER, &segment()).0;
    assert_ne!(address(&first), address(&another));
}

#[test]
fn each_link_counts_the_memory_as_long_as_it_uses_it() {
    let (mapped, mine) = (MappedSegments::default(), segment());
    let (first, of_first) = attach(&mapped, PEER, &mine);
    let (second, of_second) = attach(&mapped, PEER, &mine);
    let (third, of_third) = attach(&mapped, PEER, &mine);
    let counted = || [&of_first, &of_second, &of_third].map(|charge| Arc::strong_count(charge) > 1);
    assert_eq!(counted(), [true; 3]);
    drop(second);
    assert_eq!(counted(), [true, false, true]);
    // The memory stays mapped, and counts for the link that mapped it.
    drop(first);
    assert_eq!(counted(), [true, false, true]);
    assert_eq!(third.mapping().bytes(0, 8).to_vec(), [0; 8]);
    drop(third);
    assert_eq!(counted(), [false; 3]);
}

#[test]
fn each_descriptor_is_checked() {
    let (mapped, mine) = (MappedSegments::default(), segment());
    let _first = attach(&mapped, PEER, &mine);
    let longer = mapped.attach(PEER, mine.fd(), (2 * page_size(), false), false, ());
    assert!(matches!(longer.unwrap_err().kind(), ErrorKind::Fault(_)));
}

#[test]
fn what_is_unmapped_is_forgotten() {
    let mapped = MappedSegments::default();
    let kept: Vec<_> = (0..20).map(|_| attach(&mapped, PEER, &segment()).0).collect();
    for _ in 0..1000 {
        attach(&mapped, PEER, &segment());
        let entries = mapped.table.lock().unwrap().mappings.len();
        assert!(entries <= 2 * kept.len() + 2, "{entries} entries");
    }
}
