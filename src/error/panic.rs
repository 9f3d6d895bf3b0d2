//! Panics of user code. A panic ends the object that it belongs to and goes no further.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs or drops a user's value. Returns `None` if it panicked.
///
/// The user's code may stop halfway, so it gets none of the library's state to change.
#[inline]
pub(crate) fn contain<T>(user: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(user)).map_err(discard).ok()
}

/// Drops the payload, which is a value of the user's, too: its drop may panic, and so may the drop of that panic's
/// payload. The third payload leaks.
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
