//! Unit tests of `cuda::closer`.

use std::sync::Arc;

use super::*;
use crate::cuda::waits::{Place, Wait};

/// Counts its drop, and panics then if it is to.
struct Object {
    dropped: &'static AtomicUsize,
    panics: bool,
}

impl Parked for Object {
    fn is_over(&self) -> bool {
        true
    }

    fn drop_waits(&self) -> bool {
        !self.panics
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "an owner of adopted memory");
    }
}

/// A word that nobody writes, and whose reading panics: a subscriber of traces does.
struct Word {
    _place: Place,
}

impl Wait for Word {
    fn ask(self: Arc<Self>) {
        panic!("a subscriber");
    }
}

#[test]
fn the_thread_goes_on_whatever_panics() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    let object = |panics| (Box::new(Object { dropped: &DROPPED, panics }) as Box<dyn Parked>, None);
    LEFT.fetch_add(3, Ordering::Relaxed);
    let mut parked = vec![object(false), object(true), object(false)];
    let waits = Waits::default();
    let word = waits.add(|place| Word { _place: place });
    drop_unused(&mut parked, &waits);
    assert_eq!((parked.len(), DROPPED.load(Ordering::Relaxed)), (2, 1), "two wait for the word");
    drop(word);
    drop_unused(&mut parked, &waits);
    assert_eq!((parked.len(), DROPPED.load(Ordering::Relaxed)), (0, 3));
}
