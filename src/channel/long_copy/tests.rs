//! Unit tests of `channel::long_copy`.

use super::*;
use crate::account::Limits;

#[test]
fn a_long_message_is_copied_a_slice_at_a_time_and_never_mixed_with_another() {
    let first: Vec<u8> = (0..3 * SLICE + 5).map(|at| at as u8).collect();
    let second: Vec<u8> = first.iter().map(|byte| !byte).collect();
    let mut copy = LongCopy::default();
    let account = Account::of_link((0, None), Limits::default());
    let mut go_on = |number, bytes: &[u8]| copy.go_on(number, Bytes::of(bytes), &account);
    assert!(go_on(7, &first).is_none());
    assert!(go_on(7, &first).is_none());
    // Somebody else has taken the first one.
    assert!(go_on(8, &second).is_none());
    let whole =
        std::iter::repeat_with(|| go_on(8, &second)).take(second.len() / STEP + 1).flatten().next();
    assert_eq!(whole.expect("each turn copies a step").unwrap().0, second);
    assert_eq!(go_on(9, b"short").unwrap().unwrap().0, b"short");
}

/// Keeps the thread that frees memory until the other end is dropped.
struct Busy(std::sync::mpsc::Receiver<()>);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

#[test]
fn a_copy_that_is_given_up_stays_charged_until_its_memory_is_freed() {
    let long = vec![1; 2 * LARGE];
    let mut limits = Limits::default();
    limits.set_link(Resource::Memory, long.len() as u64);
    let account = Account::of_link((0, None), limits);
    let mut copy = LongCopy::default();
    while copy.body.len() <= LARGE {
        assert!(copy.go_on(0, Bytes::of(&long), &account).is_none());
    }
    let (free, busy) = std::sync::mpsc::channel::<()>();
    discard(Busy(busy), &Generation::current().unwrap());
    drop(copy);
    assert!(account.charge(Resource::Memory, 1).is_err(), "the memory is not free");
    drop(free);
    let start = std::time::Instant::now();
    while account.charge(Resource::Memory, 1).is_err() {
        assert!(start.elapsed().as_secs() < 60, "the charge stays");
        std::thread::yield_now();
    }
}
