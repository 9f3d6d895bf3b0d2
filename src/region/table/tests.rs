//! Unit tests of `region::table`.

use std::thread;

use super::*;

// Addresses that no mapping has, apart from the entries of other tests.
const BASE: usize = 0x1000;

#[test]
fn an_address_is_found_while_its_place_is_taken() {
    let slot = Slot::claim(BASE..BASE + 64, true, 7).unwrap();
    for (address, process, hit) in [
        (BASE, 7, true),
        (BASE + 63, 7, true),
        (BASE + 64, 7, false),
        (BASE - 1, 7, false),
        (BASE, 8, false),
    ] {
        assert_eq!(find(address, process).is_some(), hit, "{address:#x} of {process}");
    }
    assert!(!slot.faulted());
    find(BASE, 7).unwrap().mark();
    assert!(slot.faulted());
    drop(slot);
    assert!(find(BASE, 7).is_none());
    assert!(!Slot::claim(BASE..BASE + 64, true, 7).unwrap().faulted());
}

#[test]
fn what_is_found_is_never_a_mixture() {
    // Start and length determine each other.
    let pages = |len: usize| {
        let start = 0x10_0000 + len * 4096;
        start..start + len
    };
    let process = 99;
    let looked = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                drop(Slot::claim(pages(16 * (1 + round % 7)), false, process).unwrap());
                if looked.load(SeqCst) {
                    return;
                }
            }
        });
        for round in 0..2_000_000 {
            let pages = pages(16 * (1 + round % 7));
            let found = find(pages.start, process);
            let mixed = found.filter(|found| found.pages != pages).map(|found| found.pages);
            let beyond = find(pages.end, process).map(|found| found.pages);
            if mixed.is_some() || beyond.is_some() {
                looked.store(true, SeqCst);
                panic!("{mixed:?} or {beyond:?} instead of {pages:?}");
            }
        }
        looked.store(true, SeqCst);
    });
}
