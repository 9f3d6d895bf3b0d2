//! Panics of what users gave: they end what they belong to, and go no further.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what a user gave, or drops it. `None`: it panicked.
///
/// What it leaves half done is its own: the caller's state must not be in its hands.
#[inline]
pub(crate) fn contain<T>(given: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(given)).map_err(discard).ok()
}

/// The payload is a value of the user's, too: its drop may panic, and so may the drop of that
/// panic's payload, which is the last that is tried.
#[cold]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(Self);
        }
    }

    #[test]
    fn a_panic_goes_no_further_whatever_its_payload_does() {
        assert_eq!(contain(|| 7), Some(7));
        assert_eq!(contain(|| panic!("on purpose")), None::<()>);
        assert_eq!(contain(|| std::panic::panic_any(Bomb)), None::<()>);
    }
}
