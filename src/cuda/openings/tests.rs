//! Unit tests of `cuda::openings`.

use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value of which there is one at a time.
struct Single(Arc<AtomicUsize>);

impl Single {
    fn open(open: &Arc<AtomicUsize>) -> Result<Self> {
        assert_eq!(open.fetch_add(1, Ordering::SeqCst), 0, "opened twice");
        Ok(Self(open.clone()))
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        assert_eq!(self.0.fetch_sub(1, Ordering::SeqCst), 1, "closed twice");
    }
}

proptest! {
    #[test]
    fn a_handle_is_open_once_and_for_as_long_as_it_is_used(
        acts in proptest::collection::vec((0usize..3, any::<bool>()), 1..100),
    ) {
        let table = Table::default();
        let open: [Arc<AtomicUsize>; 3] = Default::default();
        let mut uses: [Vec<Opening<Single>>; 3] = Default::default();
        for (at, more) in acts {
            if more {
                let handle = [at as u8; 64];
                uses[at].push(table.get(handle, || Single::open(&open[at])).unwrap());
            } else {
                uses[at].pop();
            }
            for (count, uses) in open.iter().zip(&uses) {
                prop_assert_eq!(count.load(Ordering::SeqCst), usize::from(!uses.is_empty()));
            }
        }
        drop(uses);
        prop_assert!(table.shared.entries().is_empty());
    }
}

#[test]
fn threads_that_open_and_close_meet_one_at_most() {
    let (table, open) = (Table::default(), Arc::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    drop(table.get([7; 64], || Single::open(&open)).unwrap());
                }
            });
        }
    });
    assert_eq!(open.load(Ordering::SeqCst), 0);
}

#[test]
fn what_could_not_be_opened_is_tried_again() {
    let (table, open) = (Table::default(), Arc::default());
    assert!(table.get([1; 64], || Err(CudaFault::NoDevice.into())).is_err());
    assert!(table.get([1; 64], || Single::open(&open)).is_ok());
}
